# SPDX-License-Identifier: MIT
"""The gather as an nn.Module."""

from typing import Any, Literal

from torch import Tensor, nn

from ._gather import all_gather
from ._layout import RowLayout, Sizes


class _Shared:
    """A process group as a module holds it. A deep copy of the module shares it: there is no other such group."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def __deepcopy__(self, memo: Any) -> "_Shared":
        return self

    def __reduce__(self) -> Any:
        """Not pickled: the default group must not silently take its place."""
        if self.group is not None:
            raise TypeError("an AllGather with a group cannot be pickled: build it where it is used")
        return _Shared, (None,)


class AllGather(nn.Module):
    """`all_gather` with its options bound: `AllGather(dim=1)(x)` gives the tensor and the sizes.

    >>> gathered, sizes = AllGather(dim=1)(torch.ones(2, 3))
    >>> sizes
    (3,)
    """

    def __init__(self, dim: int = 0, *, grad: Literal["sum", "local"] = "sum", group: Any = None) -> None:
        super().__init__()
        self.dim = dim
        self.grad = grad
        self._shared = _Shared(group)

    @property
    def group(self) -> Any:
        """The process group; None is the default one."""
        return self._shared.group

    def forward(self, x: Tensor, sizes: Sizes | None = None) -> tuple[Tensor, RowLayout]:
        """`(… n_r …) -> (… sum(n) …)` and the sizes; see `all_gather`."""
        return all_gather(x, self.dim, sizes=sizes, grad=self.grad, group=self.group)

    def extra_repr(self) -> str:
        """Shown by `print(module)`."""
        return f"dim={self.dim}, grad={self.grad!r}"
