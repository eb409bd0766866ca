# SPDX-License-Identifier: MIT
"""Uses beyond a plain forward and backward: in place, derivatives of higher order, odd gradients, default devices."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.adapters import TAKEN, adapter, arguments_of, core, function_of
from tests.support.calls import Outcome, attempt
from tests.support.gather import gather_by, make_input
from tests.support.oracle import Case, upstream, values
from tests.support.world import device

Sizes = tuple[int, ...]


# ------------------------------------------------------------------ in place


def factor(rank: int, shape: Any) -> Tensor:
    """What a rank multiplies its gathered tensor by, in place."""
    return values(rank + 3, shape, "float64")


def in_place(subject: str, case: Case) -> tuple[Tensor, Tensor]:
    """The gathered tensor after two changes in place, and the gradient through them."""
    rank = dist.get_rank()
    x = make_input(case, rank).requires_grad_()
    gathered, _ = gather_by(subject)(x, case.dim, None)
    gathered *= factor(rank, gathered.shape).to(device())
    gathered.add_(rank)
    (gradient,) = torch.autograd.grad(gathered, x, upstream(rank, gathered.shape, "float64").to(device()))
    return gathered, gradient


def in_place_in_a_container(kind: str, case: Case, waits: bool) -> list[tuple[Tensor, Tensor]]:
    """The same for two tensors of a list or dict, at once or asynchronously."""
    rank = dist.get_rank()
    xs = [make_input(case, rank).requires_grad_(), (make_input(case, rank) + 1).requires_grad_()]
    batch: Any = {"list": xs, "tuple": tuple(xs), "dict": dict(zip("ab", xs, strict=True))}[kind]
    gathered = core().all_gather_async(batch, case.dim).wait()[0] if waits else core().all_gather(batch, case.dim)[0]
    tensors = list(gathered.values()) if kind == "dict" else list(gathered)
    for tensor in tensors:
        tensor *= factor(rank, tensor.shape).to(device())
        tensor.add_(rank)
    arriving = [upstream(rank, tensor.shape, "float64").to(device()) for tensor in tensors]
    return list(zip(tensors, torch.autograd.grad(tensors, xs, arriving), strict=True))


def reduced_in_place(sizes: Sizes, dim: int, dtype: str) -> tuple[Tensor, Tensor]:
    """A reduce-scatter, its result changed in place, and the gradient."""
    rank = dist.get_rank()
    shape = [3, 3]
    shape[dim] = sum(sizes)
    x = values(rank, shape, dtype).to(device()).requires_grad_()
    own = core().reduce_scatter(x, dim, sizes=sizes)
    own *= 2
    own.add_(rank)
    (gradient,) = torch.autograd.grad(own, x, values(rank + 1, own.shape, dtype).to(device()))
    return own, gradient


# ------------------------------------------------------------------ derivatives of higher order


def curve(rank: int, kind: str, y: Tensor) -> Tensor:
    """A rank's loss, linear or not, on what it gathered or on a derivative."""
    weight = (upstream(rank, y.shape, "float64") / 8 + 0.3).to(y.device)
    return (weight * (y if kind == "linear" else y**3)).sum()


def start(rank: int, rows: int, columns: int = 2) -> Tensor:
    return values(rank, (rows, columns), "float64") / 50 + 0.1


def derivatives(subject: str, kinds: list[list[str]], sizes: Sizes) -> list[Tensor]:
    """As many derivatives as there are kinds of losses, by order and by rank, each of a loss on the one before."""
    rank = dist.get_rank()
    if subject == "reduce_scatter":
        x = start(rank, sum(sizes)).to(device()).requires_grad_()
        derivative = core().reduce_scatter(x, sizes=sizes)
    else:
        x = start(rank, sizes[rank]).to(device()).requires_grad_()
        derivative, _ = gather_by(subject)(x, 0, None)
    found = []
    for kind in kinds:
        (derivative,) = torch.autograd.grad(curve(rank, kind[rank], derivative), x, create_graph=True)
        found.append(derivative.detach())
    return found


def readmes_losses(subject: str) -> list[float]:
    """The two losses of the README, squared on one rank and linear on the other; the second derivative."""
    rank = dist.get_rank()
    x = torch.tensor([[1.0, 2.0], [3.0]][rank], device=device(), requires_grad=True)
    gathered, _ = gather_by(subject)(x, 0, None)
    loss = gathered.square().sum() if rank == 0 else 10 * gathered.sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    return list(torch.autograd.grad(first.square().sum(), x)[0].tolist())


def derivatives_or_zeros(loss: Tensor, xs: list[Tensor]) -> list[Tensor]:
    """The loss's derivatives; zeros for what it does not depend on. torch 2.0 has no `materialize_grads`."""
    found = torch.autograd.grad(loss, xs, create_graph=True, allow_unused=True)
    return [torch.zeros_like(x, requires_grad=True) if d is None else d for x, d in zip(xs, found, strict=True)]


def derivatives_in_a_container(kinds: list[list[str]], sizes: Sizes) -> list[list[Tensor]]:
    """Two tensors gathered together; each rank's loss looks at one of them, by turns."""
    rank = dist.get_rank()
    xs = [start(rank + 5 * i, sizes[rank], i + 1).to(device()).requires_grad_() for i in range(2)]
    gathered, _ = core().all_gather(xs)
    derivatives, found = list(gathered), []
    for order, kind in enumerate(kinds):
        loss = curve(rank, kind[rank], derivatives[(rank + order) % 2])
        derivatives = derivatives_or_zeros(loss, xs)
        found.append([d.detach() for d in derivatives])
    return found


# ------------------------------------------------------------------ gradients as they come


def lookup(rank: int, rows: int) -> Tensor:
    """The rows that a rank looks up, some twice, some never."""
    return torch.tensor([(2 * rank + 3 * i) % rows for i in range(4)])


def sparse_gradient(subject: str, sizes: Sizes, sparse: list[bool]) -> Tensor:
    """The gathered rows as an embedding's table, whose gradient is sparse on some ranks."""
    rank = dist.get_rank()
    x = values(rank, (sizes[rank], 3), "float32").to(device()).requires_grad_()
    table, _ = gather_by(subject)(x, 0, None)
    rows = lookup(rank, len(table)).to(device())
    found = torch.nn.functional.embedding(rows, table, sparse=sparse[rank])
    (gradient,) = torch.autograd.grad(found, x, upstream(rank, found.shape, "float32").to(device()))
    return gradient.to_dense() if gradient.is_sparse else gradient


def sparse_gradient_of_the_adjoint(sizes: Sizes, sparse: list[bool]) -> Tensor:
    """The same for a table that reduce_scatter gives."""
    rank = dist.get_rank()
    x = values(rank, (sum(sizes), 3), "float32").to(device()).requires_grad_()
    table = core().reduce_scatter(x, sizes=sizes)
    found = torch.nn.functional.embedding(lookup(rank, len(table)).to(device()), table, sparse=sparse[rank])
    (gradient,) = torch.autograd.grad(found, x, upstream(rank, found.shape, "float32").to(device()))
    return gradient.to_dense() if gradient.is_sparse else gradient


def lazy_gradient(subject: str, case: Case) -> tuple[Tensor, Tensor]:
    """The gradients of a complex and of a real input, where those that arrive are lazily conjugated and negated."""
    rank = dist.get_rank()
    z = make_input(case, rank).requires_grad_()
    y = make_input(case, rank).real.clone().requires_grad_()
    gather = gather_by(subject)
    gathered, gathered_real = gather(z, case.dim, None)[0], gather(y, case.dim, None)[0]
    arriving = upstream(rank, gathered.shape, case.dtype).to(device()).conj()
    assert arriving.is_conj()
    assert arriving.imag.is_neg()
    (gradient,) = torch.autograd.grad(gathered, z, arriving)
    (real,) = torch.autograd.grad(gathered_real, y, arriving.imag)
    return gradient, real


def low_precision_gradient(subject: str, dtype: str, large: float) -> list[float]:
    """Every row of the sum has one large number, each from another rank, and ones from all others."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(world, device=device(), dtype=getattr(torch, dtype), requires_grad=True)
    gathered, _ = gather_by(subject)(x, 0, None)
    arriving = torch.tensor([large if row % world == rank else 1.0 for row in range(world**2)], device=device())
    return list(torch.autograd.grad(gathered, x, arriving.to(x.dtype))[0].tolist())


# ------------------------------------------------------------------ default devices


def on_default_device(subject: str, how: str, case: Case) -> dict[str, Any]:
    """A gather and its gradient, then an error, while new tensors go to the meta device by default."""
    rank = dist.get_rank()
    x = make_input(case, rank).requires_grad_()
    arriving = upstream(rank, case.shape(sum(case.sizes)), case.dtype).to(device())
    gather = gather_by(subject)

    def use() -> dict[str, Any]:
        assert torch.zeros(1).is_meta
        gathered, sizes = gather(x, case.dim, None)
        again, _ = gather(x, case.dim, sizes)
        (gradient,) = torch.autograd.grad(gathered, x, arriving)
        clash = attempt(lambda: gather(x.double() if rank else x, case.dim, None))
        return {"gathered": gathered, "again": again, "sizes": list(sizes), "gradient": gradient, "clash": clash}

    if how == "context":
        with torch.device("meta"):
            return use()
    torch.set_default_device("meta")
    try:
        return use()
    finally:
        torch.set_default_device(None)


def helpers_on_default_device(name: str) -> dict[str, Any]:
    """What an adapter has beside its differentiable gather."""
    rank, module = dist.get_rank(), adapter(name)
    x = values(rank, (rank + 1, 2), "float32").to(device())
    with torch.device("meta"):
        seen: dict[str, Any] = {"variable": module.all_gather_variable_dim(x)[0]}
        if hasattr(module, "all_gather_same_dim"):
            seen["same"] = [t.tolist() for t in module.all_gather_same_dim(x[0, 0])]
        if hasattr(module, "gather_sizes"):
            seen["sizes"] = module.gather_sizes(x, dim=0).tolist()
        if "split_by_rank" in TAKEN[name]:
            seen["split"] = module.split_by_rank((x, x[:1]))[1].tolist()
    return seen


# ------------------------------------------------------------------ tensors that cannot be used


def unusable_with_sizes(subject: str, kinds: list[str]) -> Outcome:
    """Sizes given: the rank that sees it raises at once, and nobody waits."""
    from tests.support.calls import make_tensor

    x = make_tensor({"kind": kinds[dist.get_rank()]})
    return attempt(lambda: gather_by(subject)(x, 0, [2] * dist.get_world_size()) and None)


# ------------------------------------------------------------------ torch.compile, on some ranks


def spelled(name: str, how: str, summed: bool) -> Any:
    """A gather as downstream code may write it: a module, a Function's apply, or all_gather."""
    module = adapter(name)
    if how == "module":
        gather = module.AllGather(dim=0, **({"all_reduce_grads": True} if summed else {}))
        return lambda x, sizes: gather(x, sizes)
    last = [True] if summed else [False] * (arguments_of(name) - 3)
    if how == "all_gather":
        return lambda x, sizes: module.all_gather(x, 0, sizes, *last)
    function = getattr(module, function_of(name))
    return lambda x, sizes: function.apply(x, 0, sizes, *last)


def compiled_on(
    ranks: list[int], whole: bool, name: str, how: str, summed: bool, given: bool, case: Case
) -> tuple[Any, ...]:
    """Values, sizes and gradient of a region that some ranks compile, and whether its graph was broken there."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    rank, gather = dist.get_rank(), spelled(name, how, summed)

    def region(x: Tensor, sizes: Any, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gathered, found = gather(x * 2, sizes)
        return gathered + 1, found, (gathered * weight).sum()

    x = make_input(case, rank).requires_grad_()
    weight = upstream(rank, case.shape(sum(case.sizes)), case.dtype).to(device())
    run = torch.compile(region, backend="aot_eager", fullgraph=whole) if rank in ranks else region
    gathered, found, loss = run(x, list(case.sizes) if given else None, weight)
    (gradient,) = torch.autograd.grad(loss, x)
    return gathered, found.tolist(), gradient, bool(counters["graph_break"])


# ------------------------------------------------------------------ a mixture of experts


class Mixture:
    """What a rank of a mixture of experts holds: tokens and an expert of its own, a gate like the others'."""

    def __init__(self, rank: int, sizes: Sizes) -> None:
        self.tokens = values(rank, (sizes[rank], 4), "float64").sin().requires_grad_()
        self.expert = values(rank + 7, (4, 4), "float64").sin().requires_grad_()
        self.gate = values(3, (4, len(sizes)), "float64").cos().requires_grad_()

    def leaves(self) -> list[Tensor]:
        return [self.tokens, self.expert, self.gate]

    @staticmethod
    def routed(tokens: Tensor, gate: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The order in which tokens go to experts, and those of each expert, weighed by the gate."""
        scores = (tokens @ gate).softmax(1)
        best = scores.argmax(1)
        order = best.argsort(stable=True)
        counts = torch.bincount(best, minlength=scores.shape[1]).tolist()
        weighed = (tokens * scores.gather(1, best[:, None]))[order]
        return order, weighed.split(counts)

    @staticmethod
    def loss(rank: int, outputs: Tensor) -> Tensor:
        weight = upstream(rank, outputs.shape, "float64").to(outputs.device)
        return (weight * outputs**2).sum() + outputs.sum() ** 2 / (rank + 1)


def mixture_of_experts(all_reduce_grads: bool, sizes: Sizes) -> list[Tensor]:
    """Each expert on a rank of its own, each rank with a loss on its own tokens: the gradients of all that it holds."""
    moe, rank, mine = adapter("st-moe"), dist.get_rank(), Mixture(dist.get_rank(), sizes)
    tokens, expert, gate = (leaf.detach().to(device()).requires_grad_() for leaf in mine.leaves())
    gather = moe.AllGather(dim=0, **({"all_reduce_grads": True} if all_reduce_grads else {}))
    everyones, found = gather(tokens)
    order, parts = mine.routed(everyones, gate)
    own, counts = moe.split_by_rank(parts)
    answers, _ = gather((own @ expert).tanh(), sizes=counts)
    outputs = torch.zeros_like(answers).index_copy(0, order, answers)
    loss = mine.loss(rank, outputs.split(found.tolist())[rank])
    return list(torch.autograd.grad(loss, [tokens, expert, gate]))
