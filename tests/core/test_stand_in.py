# SPDX-License-Identifier: MIT
"""`allow_no_rows`: models that raise for 0 rows run on stand-in rows, and nobody sees a trace of these."""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import shared_distributed as core
from shared_distributed import allow_no_rows
from tests.house.pages import ROOT
from tests.support import Worlds
from tests.support.old_torch import needs_compile
from tests.support.oracle import values

pytestmark = pytest.mark.only_over("gloo", reason="about models, not about what moves bytes")


class Attention(nn.Module):
    """Token ids and a mask `(n, t)`, to embeddings `(n, 8)`. As in transformers, `view(n, t, -1, 4)` refuses 0 rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.qkv, self.out = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        rows, length = ids.shape
        queries, keys, values = self.qkv(self.embed(ids)).view(rows, length, -1, 4).transpose(1, 2).chunk(3, dim=1)
        visible = None if mask is None else mask[:, None, None, :].bool()
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, -1)[:, 0])


def ids_of(rank: int, step: int, rows: int) -> Tensor:
    return (values(10 * rank + step, (rows, 5), "float32").abs() * 7).long() % 20


class Refuses(nn.Module):
    """A layer, and then something that raises for 0 rows."""

    def __init__(self, refusal: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layer, self.refusal = nn.Linear(6, 4), refusal

    def forward(self, x: Tensor) -> Tensor:
        return self.refusal(self.layer(x))


def packed(x: Tensor) -> Tensor:
    """An LSTM over a packed sequence."""
    lstm = nn.LSTM(2, 3, batch_first=True)
    sequences = nn.utils.rnn.pack_padded_sequence(x.view(len(x), 2, 2), [2] * len(x), batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(lstm(sequences)[0], batch_first=True)[0]


REFUSALS: dict[str, Callable[[Tensor], Tensor]] = {
    "view(n, -1)": lambda x: x.view(len(x), -1),
    "InstanceNorm1d": lambda x: nn.InstanceNorm1d(2, affine=True)(x.view(len(x), 2, 2)),
    "packed LSTM": packed,
    "max over rows": lambda x: x - x.max(dim=0).values,
    "stack of rows": lambda x: torch.stack([row * 2 for row in x]),
}


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Result:
    embedding: Tensor
    note: str = "kept"


class Nested(nn.Module):
    """Takes and returns containers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, batch: dict[str, Any], *, more: Any) -> Any:
        out = self.inner(batch["text"]["ids"])
        return OrderedDict(
            pair=Pair(out, out * 2),
            listed=[out, ("a", 3)],
            result=Result(out),
            scale=out.new_tensor(3.0),
            name=batch["name"],
        )


class OwnLoss(nn.Module):
    """Returns a loss, as many models of transformers do, and its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        out = self.inner(ids)
        return {"loss": out.square().mean(), "logits": out}


class Normalised(nn.Module):
    """A convolution with BatchNorm, a 1 × 1 map, and a reshape that refuses 0 rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        maps = self.norm(self.conv(x))
        if self.fails:
            raise KeyError("something else")
        return maps.view(len(maps), -1)


def has_zero_gradients(model: nn.Module) -> bool:
    return all(p.grad is not None and not p.grad.any() for p in model.parameters())


# ------------------------------------------------------------------ on ranks

STEPS = [(3, 2, 0), (2, 0, 0), (1, 0, 4)]  # rows by step and rank; 0: no batch


def trained(world: int, how: str) -> list[Tensor]:
    """The weights after a loop under DDP in which some ranks have no rows, or no batch at all."""
    rank = dist.get_rank()
    batches = [ids_of(rank, step, sizes[rank]) for step, sizes in enumerate(STEPS) if sizes[rank]]
    model: Any = Attention()
    if how == "checkpoint":
        model.qkv = Checkpointed(model.qkv)
    if how == "compiled":
        model = torch.compile(model, backend="aot_eager", dynamic=False)
    if how == "outside":
        wrapped = allow_no_rows(DistributedDataParallel(model))
    else:
        wrapped = DistributedDataParallel(allow_no_rows(model))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.3)
    for ids in core.until_all_done(batches, empty=lambda: torch.zeros(0, 5, dtype=torch.long)):
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            embedding = wrapped(ids)
        gathered, sizes = core.all_gather(embedding.float())
        labels = torch.arange(len(ids)) + sizes.start
        loss = cross_entropy(embedding.float() @ gathered.T, labels, reduction="sum") * sizes.ddp_scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach() for p in wrapped.parameters()]


class Checkpointed(nn.Module):
    """A layer whose activations are computed again in the backward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


def trained_alone(world: int) -> list[Tensor]:
    """In one process that sees the rows of all ranks at each step."""
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    own = [[(rank, step) for step, sizes in enumerate(STEPS) if sizes[rank]] for rank in range(world)]
    for number in range(max(map(len, own))):
        present = [mine[number] for mine in own if number < len(mine)]
        ids = torch.cat([ids_of(rank, step, STEPS[step][rank]) for rank, step in present])
        embedding = model(ids)
        optimizer.zero_grad()
        cross_entropy(embedding @ embedding.T, torch.arange(len(ids))).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def synchronised() -> list[Any]:
    """SyncBatchNorm asks the other ranks in its forward; on the CPU a stand-in notes what it was given."""
    seen: list[int] = []

    class Noted(nn.SyncBatchNorm):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x

    model = allow_no_rows(nn.Sequential(nn.Linear(6, 4), Noted(4)))
    model(torch.ones(0, 6))
    model.eval()(torch.ones(0, 6))
    return seen


# ------------------------------------------------------------------ tests

PAGE = "shared/distributed/docs/unequal-batches.md"
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 4), (4,)),
    "Embedding": (lambda: nn.Embedding(5, 2), ()),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(5, 2), (3,)),
    "Bilinear": (lambda: Twice(nn.Bilinear(4, 4, 2)), (4,)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (4,)),
    "GroupNorm": (lambda: nn.GroupNorm(1, 2), (2, 5)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (4,)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (4, 1, 1)),
    "Conv2d": (lambda: nn.Conv2d(2, 2, 3), (2, 5, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 2, 3), (2, 5, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 5, 5)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (2, 5, 5)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), (2, 5, 5)),
    "MultiheadAttention": (lambda: Twice(nn.MultiheadAttention(4, 2, batch_first=True)), (5, 4)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (5, 4)),
    "LSTM": (lambda: nn.LSTM(4, 4, batch_first=True), (5, 4)),
    "GRU": (lambda: nn.GRU(4, 4, batch_first=True), (5, 4)),
}


class Twice(nn.Module):
    """A layer that takes its input as each of its arguments."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x, x)


@needs_compile  # an old torch refuses more
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_take_0_rows_by_themselves(name: str) -> None:
    """Forward and backward, as the page lists them."""
    make, shape = LAYERS[name]
    x = torch.zeros(0, *shape, dtype=torch.long) if name.startswith("Embedding") else torch.zeros(0, *shape)
    out = make()(x)
    out = out[0] if isinstance(out, tuple) else out
    assert len(out) == 0
    if out.requires_grad:
        out.sum().backward()


@needs_compile
def test_the_page_lists_these_layers() -> None:
    """In its order; and PixelShuffle, whose backward refuses 0 rows."""
    (row,) = [line for line in (ROOT / PAGE).read_text().splitlines() if line.startswith("| Linear")]
    assert row == f"| {', '.join(LAYERS)} | yes |"
    x = torch.zeros(0, 4, 5, 5, requires_grad=True)
    out = nn.PixelShuffle(2)(x)
    with pytest.raises(RuntimeError):
        out.sum().backward()


@pytest.mark.parametrize("refusal", REFUSALS)
def test_layers_that_refuse_0_rows_work(refusal: str) -> None:
    """They raise without; with it they return 0 rows, and gradients are zeros and not None."""
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        Refuses(REFUSALS[refusal])(torch.zeros(0, 6))
    for earlier in (0, 1, 3):
        model = allow_no_rows(Refuses(REFUSALS[refusal]))
        if earlier:
            expected = model(values(1, (earlier, 6), "float32"))
            assert len(expected) == earlier
        out = model(torch.zeros(0, 6))
        assert len(out) == 0
        out.sum().backward()
        assert has_zero_gradients(model)


def test_real_batches_are_untouched() -> None:
    """Values and gradients are those of the model alone, before and after a batch of 0 rows."""
    ids, model, plain = ids_of(0, 0, 3), allow_no_rows(Attention()), Attention()
    for _ in range(2):
        torch.testing.assert_close(model(ids), plain(ids), rtol=0, atol=0)
        assert model(ids[:0]).shape == (0, 8)


def test_the_stand_in_rows_are_rows_of_an_earlier_batch() -> None:
    """For every argument; without an earlier batch, ids and masks are ones, and numbers differ from each other."""
    seen: list[Any] = []
    model = nn.Module()
    model.forward = lambda *args, **named: seen.append((args, named))  # type: ignore[method-assign]
    allow_no_rows(model)
    ids, mask = ids_of(0, 0, 3), torch.tensor([[True, False]] * 3)
    model(ids[:0], mask=mask[:0], x=torch.zeros(0, 4), n=7)
    model(ids, mask=mask, x=torch.ones(3, 4), n=7)
    model(ids[:0, :0], mask=mask[:0], x=torch.zeros(0, 4), n=7)
    model(ids[:1], mask=mask[:1], x=torch.ones(1, 4))
    (made_up, named), _, (copied, copied_named), _ = seen
    assert made_up[0].tolist() == [[1] * 5] * 2
    assert named["mask"].all()
    assert len(named["x"].unique()) == 8
    assert copied[0].equal(ids[:2])
    assert copied_named["mask"].equal(mask[:2])
    assert copied_named["n"] == 7


def test_nested_arguments_and_results() -> None:
    """Keywords, mappings, lists, namedtuples and dataclasses. What is no tensor stays."""
    model = allow_no_rows(Nested())
    ids = ids_of(0, 0, 3)
    for rows in (3, 0, 2, 0):
        batch = {"text": OrderedDict(ids=ids[:rows]), "name": "text"}
        out = model(batch, more=[ids[:rows], None])
        assert len(batch["text"]["ids"]) == rows  # type: ignore[index]
        assert type(out) is OrderedDict
        assert [len(x) for x in (*out["pair"], out["listed"][0], out["result"].embedding)] == [rows] * 4
        assert type(out["pair"]) is Pair
        assert (out["listed"][1], out["result"].note, out["name"]) == (("a", 3), "kept", "text")
        assert out["scale"] == (3.0 if rows else 0.0)


def test_a_loss_of_the_models_own_counts_nothing() -> None:
    """It is 0, and its gradients are zeros."""
    model = allow_no_rows(OwnLoss())
    out = model(ids_of(0, 0, 0))
    assert out["loss"].item() == 0
    assert out["logits"].shape == (0, 8)
    out["loss"].backward()
    assert has_zero_gradients(model)


def test_an_input_with_a_gradient_gets_one_of_0_rows() -> None:
    """So that what made it takes part in the backward too."""
    below, model = nn.Linear(3, 6), allow_no_rows(Refuses(REFUSALS["view(n, -1)"]))
    model(below(torch.zeros(0, 3))).sum().backward()
    assert has_zero_gradients(below)
    assert has_zero_gradients(model)


def test_batch_norm_does_not_count_the_stand_in_rows() -> None:
    """Its statistics and its count of steps stay; it trains on with the next batch, also if the model raised."""
    model = allow_no_rows(Normalised())
    model(values(1, (4, 1, 3, 3), "float32"))
    before = copy.deepcopy(model.norm.state_dict())
    out = model(torch.zeros(0, 1, 3, 3))
    out.sum().backward()
    assert out.shape == (0, 4)
    assert has_zero_gradients(model)
    for name, value in model.norm.state_dict().items():
        assert value.equal(before[name])
    assert model.norm.training
    model.fails = True
    with pytest.raises(KeyError):
        model(torch.zeros(0, 1, 3, 3))
    model.fails = False
    assert len(model(values(1, (4, 1, 3, 3), "float32"))) == 4
    assert model.norm.training
    assert model.norm.num_batches_tracked == 2


def test_a_model_with_sync_batch_norm_gets_the_0_rows(worlds: Worlds) -> None:
    """While it trains: the other ranks wait for its statistics. In evaluation it does not ask them."""
    assert worlds.get("gloo", 2).run(synchronised) == [[0, 2]] * 2


def test_copies_remember_for_themselves() -> None:
    """Deep copies, as for a moving average, and pickled ones, as for other processes."""
    model = allow_no_rows(Attention())
    model(ids_of(0, 0, 3))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other(ids_of(0, 0, 0)).shape == (0, 8)
        torch.testing.assert_close(other(ids_of(0, 0, 3)), model(ids_of(0, 0, 3)))
    assert model.state_dict().keys() == Attention().state_dict().keys()


@needs_compile
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo's, where it traces the hooks
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_compiled(where: str) -> None:
    """Around a compiled model, or within: values, 0 rows and zero gradients."""
    if where == "outside":
        model: Any = allow_no_rows(torch.compile(Attention(), backend="aot_eager", dynamic=False))
    else:
        model = torch.compile(allow_no_rows(Attention()), backend="aot_eager", dynamic=False)
    for rows in (3, 0, 2, 0, 3):
        model.zero_grad()
        out = model(ids_of(0, 0, rows))
        torch.testing.assert_close(out, Attention()(ids_of(0, 0, rows)) if rows else torch.zeros(0, 8))
        out.sum().backward()
        assert has_zero_gradients(model) == (rows == 0)


@pytest.mark.parametrize(
    "how", ["inside", "outside", "autocast", pytest.param("compiled", marks=needs_compile), "checkpoint"]
)
@pytest.mark.parametrize("world", [2, 3])
def test_training_under_ddp_is_that_of_one_process(how: str, world: int, worlds: Worlds) -> None:
    """With ranks that have fewer batches or none; `allow_no_rows` inside DDP or around it."""
    tolerance = {"rtol": 0.05, "atol": 0.02} if how == "autocast" else {"rtol": 1e-5, "atol": 1e-6}
    expected = trained_alone(world)
    fresh = list(Attention().parameters())
    for weights in worlds.get("gloo", world).run(trained, world, how):
        for found, one, start in zip(weights, expected, fresh, strict=True):
            torch.testing.assert_close(found, one, **tolerance)
            assert (one - start).norm() > 1e-3
