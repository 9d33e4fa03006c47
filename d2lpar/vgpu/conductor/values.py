"""Values on their way between a rank's process and the conductor, in memory that both see.

A rank copies what it gives into a block of its own, the conductor carries the exchange out there,
and the rank copies what it takes from it. So a block belongs to one call at a time, and nobody but
these two ever looks at it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from ..ranks.calls.collective_calls import CollectiveCall

ALIGNED = 64  # bytes
SMALLEST = 1 << 16
PREFIX = "d2lpar"  # of folders, which is followed by the number of the process that has it
META = -1  # the offset of what has a shape only

Place = tuple[int, int, str]  # offset, elements, data type
Piece = Place | None
Part = tuple[str, str | None, int | None, list[Piece], list[Piece]]  # text, op, root, gives, takes


class Parcel(NamedTuple):
    """What a call gives and takes: the file of its block (None: no values), and where in it."""

    file: str | None
    size: int
    parts: list[Part]


class Taken(NamedTuple):
    """What is to be copied when a call is over, and the block that is free then."""

    block: torch.Tensor | None
    file: str | None
    size: int
    moves: list[tuple[torch.Tensor, Place]]


class OwnBlocks:
    """The blocks of one rank: files in a folder, whose names begin with `prefix`."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._path = os.path.join(folder, prefix)
        self._free: defaultdict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        self._made = 0

    def packed(self, call: CollectiveCall) -> tuple[Parcel, Taken]:
        """Copy what a call gives into a block."""
        layout = _Layout()
        calls = list(call.parts) or [call]
        parts: list[Part] = [
            (str(part), part.op, part.root, layout.places(part.gives), layout.places(part.takes))
            for part in calls
        ]
        file, block = self._block(layout.size) if layout.size else (None, None)
        moves = []
        for part, (_, _, _, gives, takes) in zip(calls, parts, strict=True):
            for values, piece in zip(part.gives, gives, strict=True):
                if values is not None and piece is not None and piece in layout.fresh:
                    layout.fresh.discard(piece)
                    _in(block, piece).copy_(values)
            moves += [
                (values, piece)
                for values, piece in zip(part.takes, takes, strict=True)
                if values is not None and piece is not None and piece[0] != META
            ]
        size = 0 if block is None else block.numel()
        return Parcel(file, size, parts), Taken(block, file, size, moves)

    def take(self, taken: Taken) -> None:
        """Copy what a call has taken from its block."""
        for values, piece in taken.moves:
            values.copy_(_in(taken.block, piece))

    def free(self, taken: Taken) -> None:
        """Let another call have the block of one that has taken all."""
        if taken.block is not None and taken.file is not None:
            self._free[taken.size].append((taken.file, taken.block))

    def _block(self, nbytes: int) -> tuple[str, torch.Tensor]:
        size = max(SMALLEST, 1 << (nbytes - 1).bit_length())
        if self._free[size]:
            return self._free[size].pop()
        self._made += 1
        file = f"{self._path}{self._made}"
        try:
            _reserve(file, size)
        except OSError:  # full: containers often have 64 MB there
            os.unlink(file)
            file = os.path.join(tempfile.gettempdir(), os.path.basename(file))
            _reserve(file, size)
        return file, mapped(file, size)


class _Layout:
    """Where pieces of memory lie in a block: each once, however often it is given."""

    def __init__(self) -> None:
        self.size = 0
        self.fresh: set[Piece] = set()
        self._known: dict[tuple[int, int, torch.dtype], Piece] = {}

    def places(self, pieces: Sequence[torch.Tensor | None]) -> list[Piece]:
        """One for each."""
        return [None if values is None else self._place(values) for values in pieces]

    def _place(self, values: torch.Tensor) -> Piece:
        name = str(values.dtype).removeprefix("torch.")
        if values.is_meta:
            return META, values.numel(), name
        key = values.data_ptr(), values.numel(), values.dtype
        if key not in self._known:
            place = self.size, values.numel(), name
            nbytes = values.numel() * values.element_size()
            self.size += -(-nbytes // ALIGNED) * ALIGNED
            self._known[key] = place
            if nbytes:
                self.fresh.add(place)
        return self._known[key]


class FarBlocks:
    """The blocks of a rank, as the conductor sees them."""

    def __init__(self) -> None:
        self._mapped: dict[str, torch.Tensor] = {}

    def unpacked(self, parcel: Parcel) -> list[tuple[list, list]]:
        """What each part of a call gives and takes, on the block itself."""
        block = None
        if parcel.file is not None:
            if parcel.file not in self._mapped:
                self._mapped[parcel.file] = mapped(parcel.file, parcel.size)
                with suppress(PermissionError):  # of Windows, where the folder's end is its end
                    os.unlink(parcel.file)  # the rank has mapped it, too: nothing is left behind
            block = self._mapped[parcel.file]
        return [
            ([view(block, piece) for piece in gives], [view(block, piece) for piece in takes])
            for _, _, _, gives, takes in parcel.parts
        ]


@contextmanager
def exchange_folder() -> Iterator[str]:
    """A new folder for the values of a run, where files are memory if the system has such a place.

    It goes with the block; what a run has left that was killed goes with the next one.
    """
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    for left in Path(where).glob(f"{PREFIX}-*-*"):
        pid = left.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-", dir=where)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reserve(file: str, size: int) -> None:
    """Take the memory of a file: to write into a mapped one that has none is the end of a process.
    Raises OSError if there is too little."""
    with open(file, "wb") as made:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(made.fileno(), 0, size)


def mapped(file: str, size: int) -> torch.Tensor:
    """The bytes of a file as a tensor, which others may have mapped, too."""
    return torch.from_file(file, shared=True, size=size, dtype=torch.uint8)


def view(block: torch.Tensor | None, piece: Piece) -> torch.Tensor | None:
    """A piece of a block, flat."""
    return None if piece is None else _in(block, piece)


def _in(block: torch.Tensor | None, place: Place) -> torch.Tensor:
    offset, count, name = place
    dtype: torch.dtype = getattr(torch, name)
    if offset == META or block is None:
        return torch.empty(count, dtype=dtype, device="meta" if offset == META else "cpu")
    return block[offset : offset + count * dtype.itemsize].view(dtype)
