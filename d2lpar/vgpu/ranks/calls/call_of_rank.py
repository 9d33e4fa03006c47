"""One rank's part in each kind of collective: which of its values it gives to whom, and takes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..private.c10d import ReducesBy
from .collective_calls import CollectiveCall, op_name, reduced_by, values_of

Tensors = Sequence[torch.Tensor]


def check_one_for_all(name: str, part: torch.Tensor, whole: torch.Tensor, count: int) -> None:
    """Whether one tensor is of the parts of all ranks, in the words of torch's NCCL groups: they
    raise TypeError for another data type, and ValueError for another number of elements."""
    gathers = name == "all_gather"
    if part.dtype != whole.dtype:
        raise TypeError(
            f"output tensor must have the same type as input tensor: {whole.dtype}, {part.dtype}"
            if gathers
            else "input tensor must be the same type as the output tensor. They are "
            f"{whole.dtype} and {part.dtype}"
        )
    if part.numel() * count != whole.numel():
        words = (
            "output tensor size must be equal to world_size times input tensor size"
            if gathers
            else "input tensor must be the same size as output size times world size"
        )
        raise ValueError(
            f"{words}: {name} on {count} ranks needs {count} times {part.numel()} elements on its "
            f"other side, not {list(whole.shape)}"
        )


@dataclass(frozen=True)
class CallOfRank:
    """The calls of the rank with number `member` in a group of `count`.

    Each method is a collective; it raises ValueError for tensors of sizes that do not fit.
    """

    member: int
    count: int

    def reduce(
        self, name: str, tensor: torch.Tensor, opts: ReducesBy, root: int | None = None
    ) -> CollectiveCall:
        """The root (None: each rank) has the sum."""
        values, op = values_of(tensor), op_name(opts.reduceOp, tensor)
        takes = [values] if self._root(root) in (None, self.member) else []
        gives = [reduced_by(opts.reduceOp, values)] * self.count
        return CollectiveCall(
            name, [tensor], [tensor] if takes else [], gives, takes,
            tensor.nbytes, op, root, tensor.numel(),
        )  # fmt: skip

    def broadcast(self, tensor: torch.Tensor, root: int) -> CollectiveCall:
        """Each rank has what the root had."""
        values, size = values_of(tensor), tensor.numel()
        if self._root(root) == self.member:
            return CollectiveCall(
                "broadcast", reads=[tensor], gives=[values] * self.count,
                nbytes=tensor.nbytes, root=root, same=size,
            )  # fmt: skip
        return CollectiveCall(
            "broadcast", writes=[tensor], takes=self._only(root, values),
            nbytes=tensor.nbytes, root=root, same=size,
        )  # fmt: skip

    def all_gather(self, targets: Tensors, source: torch.Tensor) -> CollectiveCall:
        """Each rank has the inputs of all, in a tensor each or in one. Tensors of several sizes,
        which NCCL broadcasts one after the other, take the time of one gather of as many bytes."""
        if self._is_uneven(targets, source):
            sizes = tuple(target.numel() for target in targets)
            takes, gives = [values_of(t) for t in targets], [values_of(source)] * self.count
            size = sum(target.nbytes for target in targets)
            return CollectiveCall("all_gather", [source], targets, gives, takes, size, same=sizes)
        takes = self._split("all_gather", targets, source.numel())
        gives = [values_of(source)] * self.count
        size = source.nbytes * self.count
        return CollectiveCall(
            "all_gather", [source], targets, gives, takes, size, same=source.numel()
        )

    def reduce_scatter(
        self, target: torch.Tensor, sources: Tensors, opts: ReducesBy
    ) -> CollectiveCall:
        """Rank i has the sum of the parts number i of all inputs. They may have several sizes, as
        those of `all_gather` may."""
        if self._is_uneven(sources, target):
            sizes = tuple(source.numel() for source in sources)
            gives = [reduced_by(opts.reduceOp, values_of(source)) for source in sources]
            size = sum(source.nbytes for source in sources)
            return CollectiveCall(
                "reduce_scatter", sources, [target], gives, [values_of(target)], size,
                op_name(opts.reduceOp, target), same=sizes,
            )  # fmt: skip
        pieces = self._split("reduce_scatter", sources, target.numel())
        gives = [reduced_by(opts.reduceOp, piece) for piece in pieces]
        takes, size = [values_of(target)], target.nbytes * self.count
        op = op_name(opts.reduceOp, target)
        return CollectiveCall(
            "reduce_scatter", sources, [target], gives, takes, size, op, same=target.numel()
        )

    def all_to_all(self, targets: Tensors, sources: Tensors) -> CollectiveCall:
        """Rank i has the inputs number i of all."""
        gives, takes = [values_of(t) for t in sources], [values_of(t) for t in targets]
        size = sum(tensor.nbytes for tensor in sources)
        return CollectiveCall("all_to_all", sources, targets, gives, takes, size)

    def all_to_all_single(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        target_sizes: Sequence[int],
        source_sizes: Sequence[int],
    ) -> CollectiveCall:
        """Rank i has the parts number i of all inputs; sizes are in rows."""
        gives, takes = self._rows(source, source_sizes), self._rows(target, target_sizes)
        return CollectiveCall("all_to_all", [source], [target], gives, takes, source.nbytes)

    def gather(self, targets: Tensors, source: torch.Tensor, root: int) -> CollectiveCall:
        """The root has the inputs of all."""
        gives = self._only(self._root(root), values_of(source))
        takes = [values_of(target) for target in targets]
        size = source.nbytes * self.count
        return CollectiveCall(
            "gather", [source], targets, gives, takes, size, root=root, same=source.numel()
        )

    def scatter(self, target: torch.Tensor, sources: Tensors, root: int) -> CollectiveCall:
        """Rank i has input number i of the root."""
        gives = [values_of(source) for source in sources]
        takes = self._only(self._root(root), values_of(target))
        size = target.nbytes * self.count
        return CollectiveCall(
            "scatter", sources, [target], gives, takes, size, root=root, same=target.numel()
        )

    def _is_uneven(self, of_all: Tensors, mine: torch.Tensor) -> bool:
        """Whether there is a tensor for each rank, this rank's fits, and not all have one size."""
        sizes = [tensor.numel() for tensor in of_all]
        fits = len(sizes) == self.count and sizes[self.member] == mine.numel()
        return fits and len(set(sizes)) > 1

    def _root(self, root: int | None) -> int | None:
        if root is not None and not 0 <= root < self.count:
            raise ValueError(
                f"invalid root rank: {root}: a group of {self.count} ranks has no such root, name "
                "a rank of the group"
            )
        return root

    def _only(self, member: int | None, values: torch.Tensor) -> list[torch.Tensor | None]:
        return [values if i == member else None for i in range(self.count)]

    def _split(self, name: str, tensors: Tensors, size: int) -> list[torch.Tensor]:
        """A piece of `size` elements a rank: of one tensor, or a tensor each."""
        if len(tensors) == 1 and tensors[0].numel() == size * self.count:
            return list(values_of(tensors[0]).split(size)) if size else [values_of(tensors[0])]
        if len(tensors) == self.count and all(tensor.numel() == size for tensor in tensors):
            return [values_of(tensor) for tensor in tensors]
        found = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(
            f"{name} on {self.count} ranks needs {self.count} times {size} elements on its other "
            f"side, not {found}"
        )

    def _rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """A piece of so many rows a rank; by default, the same for all."""
        rows = tensor.shape[0] if tensor.dim() else 1
        sizes = [operator.index(size) for size in sizes]  # they may be in a tensor
        if not sizes and rows % self.count:
            raise ValueError(
                f"all_to_all_single on {self.count} ranks cannot split {rows} rows evenly: give "
                "the sizes"
            )
        sizes = sizes or [rows // self.count] * self.count
        if len(sizes) != self.count or sum(sizes) != rows:
            raise ValueError(
                f"all_to_all_single on {self.count} ranks cannot split {rows} rows as {sizes}"
            )
        width = tensor.numel() // rows if rows else 0
        return list(values_of(tensor).split([size * width for size in sizes]))
