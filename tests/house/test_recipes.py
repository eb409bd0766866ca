# SPDX-License-Identifier: MIT
"""Every recipe, on ranks with ragged rows, beside one process that sees every row and shares none of its code."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from tests.house.pages import names_of, prompts
from tests.support import Worlds
from tests.support.world import device

pytestmark = pytest.mark.only_over("gloo", "nccl", reason="DDP calls collectives that nccl-rules does not have")

PAGE = "shared/distributed/docs/recipes.md"
SIZES = [(3, 5), (4, 0), (3, 0, 4), (1, 2, 5)]
ragged = pytest.mark.parametrize("sizes", SIZES, ids=str)


class Towers(nn.Module):
    """Two embeddings of a row, a scale and a bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.image, self.text = nn.Linear(6, 4), nn.Linear(6, 4)
        self.scale, self.bias = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-1.0))
        self.double()

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (
            F.normalize(self.image(image), dim=-1),
            F.normalize(self.text(text), dim=-1),
            self.scale.clone(),
            self.bias.clone(),
        )


class Batch:
    """The rows of all ranks; `of(rank)` are one rank's."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, total = sizes, sum(sizes)
        random = torch.Generator().manual_seed(total)
        self.image, self.text = torch.randn(2, total, 6, generator=random, dtype=torch.float64)
        self.label = torch.randint(0, 3, (total,), generator=random)
        self.label[-1] = 9  # has no partner
        self.valid = torch.arange(total) % 3 != 1

    def of(self, rank: int) -> "Batch":
        start = sum(self.sizes[:rank])
        part = Batch(self.sizes)
        for name in ("image", "text", "label", "valid"):
            setattr(part, name, getattr(self, name)[start : start + self.sizes[rank]])
        return part

    def to(self, where: torch.device) -> "Batch":
        for name in ("image", "text", "label", "valid"):
            setattr(self, name, getattr(self, name).to(where))
        return self


# ------------------------------------------------------------------ losses: the recipe's call, and one process


def _clip(n: dict[str, Any], b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return n["clip_loss"](image, text, scale) + 0 * bias


def _siglip(n: dict[str, Any], b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return n["siglip_loss"](image, text, scale, bias)


def _supervised(n: dict[str, Any], b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return n["supervised_contrastive_loss"](image * scale, b.label) + 0 * (text.sum() + bias)


def _masked(n: dict[str, Any], b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return n["masked_contrastive_loss"](image * scale, text, b.valid) + 0 * bias


def one_clip(b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    scores = scale * image @ text.T
    return -(scores.log_softmax(1).diagonal().mean() + scores.log_softmax(0).diagonal().mean()) / 2


def one_siglip(b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    chance = torch.sigmoid(scale * image @ text.T + bias)
    right = torch.where(torch.eye(len(image), dtype=torch.bool), chance, 1 - chance)
    return -right.log().sum() / len(image)


def one_supervised(b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    anchors = []
    for i, row in enumerate(image * scale):
        others = [j for j in range(len(image)) if j != i]
        positives = [j for j in others if b.label[j] == b.label[i]]
        scores = {j: row @ (image[j] * scale) / 0.1 for j in others}
        if positives:
            bottom = torch.stack(list(scores.values())).logsumexp(0)
            anchors.append(-torch.stack([scores[j] - bottom for j in positives]).mean())
    return torch.stack(anchors).mean()


def one_masked(b: Batch, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    image, text = (image * scale)[b.valid], text[b.valid]
    return F.cross_entropy(image @ text.T, torch.arange(len(image)))


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "clip_loss": (_clip, one_clip),
    "siglip_loss": (_siglip, one_siglip),
    "supervised_contrastive_loss": (_supervised, one_supervised),
    "masked_contrastive_loss": (_masked, one_masked),
}


def gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def trained_on_ranks(loss: str, sizes: tuple[int, ...], grad: str) -> tuple[float, list[Tensor]]:
    """The loss for the log and the parameters' gradients, under DDP."""
    names = names_of(PAGE)
    names["all_gather"] = partial(names["all_gather"], grad=grad)
    batch = Batch(sizes).of(dist.get_rank()).to(device())
    model = DistributedDataParallel(Towers().to(device()))
    value = LOSSES[loss][0](names, batch, *model(batch.image, batch.text))
    value.backward()
    return names["for_the_log"](value), gradients(model)


def in_one_process(loss: str, sizes: tuple[int, ...]) -> tuple[float, list[Tensor]]:
    batch, model = Batch(sizes), Towers()
    value = LOSSES[loss][1](batch, *model(batch.image, batch.text))
    value.backward()
    return value.item(), gradients(model)


# ------------------------------------------------------------------ the other recipes, on ranks


class Pairs(Towers):
    """Without the bias, which a CLIP loss has no use for."""

    def forward(self, image: Tensor, text: Tensor) -> Any:
        return super().forward(image, text)[:3]


def epoch_on_ranks(rows: int) -> list[Tensor]:
    """The weights after an epoch of batches of 2 rows a rank."""
    batch = Batch((rows,)).to(device())
    model = DistributedDataParallel(Pairs().to(device()), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    names_of(PAGE)["train_epoch"](model, TensorDataset(batch.image, batch.text), 2, optimizer)
    return [p.detach() for p in model.parameters()]


def epoch_in_one_process(rows: int, world: int) -> list[Tensor]:
    """The same, each step over every rank's two rows; rows go to ranks in turn."""
    batch, model = Batch((rows,)), Towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    shares = [list(range(rank, rows, world)) for rank in range(world)]
    for step in range(0, len(shares[0]), 2):
        chosen = [row for share in shares for row in share[step : step + 2]]
        loss = one_clip(batch, *model(batch.image[chosen], batch.text[chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def recalled(sizes: tuple[int, ...]) -> list[float]:
    batch = Batch(sizes).of(dist.get_rank()).to(device())
    return [names_of(PAGE)["recall_at"](k, batch.image, batch.text) for k in (1, 3, 50)]


def attended(lengths: tuple[int, ...]) -> list[Tensor]:
    """The result, and the gradients of queries, keys and values, of this rank's piece."""
    start = sum(lengths[: (rank := dist.get_rank())])
    whole = sequences(sum(lengths)).to(device())
    pieces = [x[..., start : start + lengths[rank], :].clone().requires_grad_() for x in whole]
    out = names_of(PAGE)["causal_attention"](*pieces[:3])
    (out * pieces[3].detach()).sum().backward()
    return [out.detach(), *[piece.grad for piece in pieces[:3]]]  # type: ignore[list-item]


def sequences(length: int) -> Tensor:
    """Queries, keys, values and a weight of each result."""
    return torch.randn(4, 2, 2, length, 4, generator=torch.Generator().manual_seed(length), dtype=torch.float64)


def padded_sequences(rank: int, rows: int) -> tuple[Tensor, Tensor]:
    """A rank's sequences, from 0 tokens up, padded to the longest of them with numbers that must not travel."""
    lengths = torch.arange(rows) * (rank + 1) % 5
    mask = torch.arange(max(lengths.tolist(), default=0)) < lengths[:, None]
    x = torch.arange(mask.numel() * 3, dtype=torch.float64).view(*mask.shape, 3) + 100 * rank
    return x.masked_fill(~mask[..., None], -7.0), mask


def gathered_sequences(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    rank = dist.get_rank()
    x, mask = (each.to(device()) for each in padded_sequences(rank, sizes[rank]))
    padded, masks = names_of(PAGE)["gather_sequences"](x.requires_grad_(), mask)
    ((rank + 1) * padded.square()).sum().backward()
    assert x.grad is not None
    return padded.detach(), masks, x.grad


EXPERTS = 5


def expert(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()


class Gated(nn.Module):
    """Embeddings of rows, and gates that leave most experts out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.trunk, self.gate = nn.Linear(6, 4).double(), nn.Linear(6, EXPERTS).double()

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        chances = self.gate(rows).softmax(dim=1)
        return self.trunk(rows), chances * (chances >= chances.topk(2).values[:, -1:])


def mixed_on_ranks(sizes: tuple[int, ...]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """This rank's results, and the gradients of the shared parameters and of this rank's experts."""
    rank, world = dist.get_rank(), dist.get_world_size()
    bounds = [EXPERTS * r // world for r in range(world + 1)]
    batch = Batch(sizes).of(rank).to(device())
    model = DistributedDataParallel(Gated().to(device()))
    own = [expert(number).to(device()) for number in range(bounds[rank], bounds[rank + 1])]
    counts = [bounds[r + 1] - bounds[r] for r in range(world)]
    experts = names_of(PAGE)["ExpertsOnRanks"](own, rank, counts)
    out = experts(*model(batch.image))
    (F.mse_loss(out, batch.text[:, :4], reduction="sum") * world / sum(sizes)).backward()
    return out.detach(), gradients(model), gradients(experts)


def mixed_in_one_process(sizes: tuple[int, ...]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    batch, model = Batch(sizes), Gated()
    experts = nn.ModuleList(expert(number) for number in range(EXPERTS))
    rows, gates = model(batch.image)
    out = sum(gates[:, number, None] * one(rows) for number, one in enumerate(experts))
    assert isinstance(out, Tensor)
    (F.mse_loss(out, batch.text[:, :4], reduction="sum") / sum(sizes)).backward()
    return out.detach(), gradients(model), gradients(experts)


# ------------------------------------------------------------------ the tests


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
@ragged
def test_losses_under_ddp(loss: str, sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """The parameters' gradients and the logged loss are those of one process."""
    expected = in_one_process(loss, sizes)
    for seen in worlds.get(backend, len(sizes)).run(trained_on_ranks, loss, sizes, "sum"):
        same(seen, expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", [1, 7])
def test_losses_without_a_process_group(loss: str, rows: int) -> None:
    """The same code runs on one machine, in one process."""
    batch, model = Batch((rows,)), Towers()
    value = LOSSES[loss][0](names_of(PAGE), batch, *model(batch.image, batch.text))
    value.backward()
    if rows > 1:  # one row has no partner
        same((value.item(), gradients(model)), in_one_process(loss, (rows,)))
    assert all(gradient.isfinite().all() for gradient in gradients(model))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_local_gradient_is_not_enough_for_these_losses(loss: str, backend: str, worlds: Worlds) -> None:
    """With `grad="local"` the logged loss is the same, and the gradient is not."""
    value, expected = in_one_process(loss, (3, 5))
    for logged, seen in worlds.get(backend, 2).run(trained_on_ranks, loss, (3, 5), "local"):
        same(logged, value)
        assert max((a - b).abs().max() / b.abs().max() for a, b in zip(seen, expected, strict=True) if b.any()) > 0.1


@pytest.mark.parametrize(("world", "rows"), [(2, 5), (2, 8), (3, 8), (3, 13)])
def test_an_epoch_in_which_ranks_run_out_of_batches(world: int, rows: int, backend: str, worlds: Worlds) -> None:
    """No row is repeated or dropped, and the weights are those of one process."""
    expected = epoch_in_one_process(rows, world)
    for seen in worlds.get(backend, world).run(epoch_on_ranks, rows):
        same(seen, expected)


@ragged
def test_recall(sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """The same number on every rank, and that of one process."""
    batch = Batch(sizes)
    places = (batch.image @ batch.text.T).argsort(dim=1, descending=True).tolist()
    expected = [sum(i in row[:k] for i, row in enumerate(places)) / len(places) for k in (1, 3, 50)]
    for seen in worlds.get(backend, len(sizes)).run(recalled, sizes):
        same(seen, expected)


@ragged
def test_attention_over_a_sequence_on_all_ranks(sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """Each rank gets its piece of the result and of the gradients."""
    q, k, v, weight = sequences(sum(sizes))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*whole, is_causal=True)
    (out * weight).sum().backward()
    expected = [out.detach(), *[x.grad for x in whole]]
    for rank, seen in enumerate(worlds.get(backend, len(sizes)).run(attended, sizes)):
        start = sum(sizes[:rank])
        same(seen, [x[..., start : start + sizes[rank], :] for x in expected if x is not None])


@pytest.mark.parametrize("sizes", [*SIZES, (0, 0), (0, 1, 0)], ids=str)
def test_rows_and_tokens_both_ragged(sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """Every token arrives in its place without the padding, and gets the gradients of all ranks."""
    parts = [padded_sequences(rank, rows) for rank, rows in enumerate(sizes)]
    longest = max(mask.shape[1] for _, mask in parts)
    wide = [F.pad(x.masked_fill(~mask[..., None], 0.0), (0, 0, 0, longest - x.shape[1])) for x, mask in parts]
    masks = [F.pad(mask, (0, longest - mask.shape[1])) for _, mask in parts]
    total = sum(range(1, len(sizes) + 1))
    for rank, seen in enumerate(worlds.get(backend, len(sizes)).run(gathered_sequences, sizes)):
        x, mask = parts[rank]
        same(seen, (torch.cat(wide), torch.cat(masks), (2 * total * x).masked_fill(~mask[..., None], 0.0)))


@ragged
def test_experts_on_different_ranks(sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """Results and gradients, of the shared parameters and of every expert, are those of one process."""
    out, shared, experts = mixed_in_one_process(sizes)
    answers = worlds.get(backend, len(sizes)).run(mixed_on_ranks, sizes)
    same(torch.cat([answer[0] for answer in answers]), out)
    for answer in answers:
        same(answer[1], shared)
    same([gradient for answer in answers for gradient in answer[2]], experts)


def test_experts_without_a_process_group() -> None:
    """All experts are here, and nothing is divided."""
    batch, model = Batch((6,)), Gated()
    experts = names_of(PAGE)["ExpertsOnRanks"]([expert(number) for number in range(EXPERTS)], 0, [EXPERTS])
    out = experts(*model(batch.image))
    F.mse_loss(out, batch.text[:, :4], reduction="sum").div(6).backward()
    same((out.detach(), gradients(model), gradients(experts)), mixed_in_one_process((6,)))


def to_one_and_back(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """All rows on the last rank, which weights and returns them; and the gradient of this rank's rows."""
    rank, root = dist.get_rank(), len(sizes) - 1
    recipes = names_of(PAGE)
    x = Batch(sizes).of(rank).to(device()).image.requires_grad_()
    gathered = recipes["gather_to"](root, x)
    weights = torch.arange(1.0, len(gathered) + 1, dtype=torch.float64, device=device()).unsqueeze(1)
    returned = recipes["scatter_from"](root, gathered * weights, list(sizes))
    (returned.square().sum() * (rank + 1)).backward()
    assert x.grad is not None
    return gathered.detach(), returned.detach(), x.grad


@ragged
def test_all_rows_to_one_rank_and_from_one(sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """Values and gradients, against one process."""
    x = Batch(sizes).image.requires_grad_()
    weights = torch.arange(1.0, len(x) + 1, dtype=torch.float64).unsqueeze(1)
    returned = (x * weights).split(sizes)
    sum((part.square().sum() * (rank + 1) for rank, part in enumerate(returned)), torch.zeros(())).backward()
    assert x.grad is not None
    answers = worlds.get(backend, len(sizes)).run(to_one_and_back, sizes)
    for rank, (gathered, own, gradient) in enumerate(answers):
        same(gathered, x.detach() if rank == len(sizes) - 1 else x.detach()[:0])
        same(own, returned[rank].detach())
        same(gradient, x.grad.split(sizes)[rank])


@pytest.mark.only_over("gloo", reason="the tensors are on the CPU")
def test_what_the_recipes_show_at_a_prompt(worlds: Worlds) -> None:
    """On three ranks, the same on each."""
    assert worlds.get("gloo", 3).run(prompts, PAGE) == [""] * 3


def test_every_recipe_is_tested_here() -> None:
    """What is added to the page is added to this list, and to the tests above."""
    others = {"every_row_once", "train_epoch", "for_the_log", "recall_at", "causal_attention", "gather_sequences"}
    others |= {"gather_to", "scatter_from"}
    defined = {name for name, value in names_of(PAGE).items() if getattr(value, "__module__", None) == PAGE}
    assert defined == {*LOSSES, *others, "ExpertsOnRanks"}
