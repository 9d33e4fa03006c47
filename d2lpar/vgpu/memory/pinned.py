"""Page-locked host memory of virtual devices: a mark on the storage, and what it costs the host.

As in PyTorch, blocks come from a caching allocator: their sizes are powers of two; a block whose
tensor is gone serves a later one for nothing, once the copies that used it are done. Fresh ones
take the host the time to find and lock their pages. The host memory itself is locked by nobody.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..sim.clock import Clock, HostThread
from ..sim.constants import PAGE_LOCK_BYTES_PER_S
from ..sim.event_queue import QueuedWork
from ..sim.staging import host_copy_s

PAGE_BYTES = 4096


class PinnedBlock:
    """Page-locked memory of one storage, and the last copy of each stream that used it.

    Without a storage it is memory of the program's own, page-locked until it says otherwise.
    """

    __slots__ = ("owner", "size", "storage", "uses")

    def __init__(
        self, storage: torch.UntypedStorage | None, nbytes: int, owner: PinnedMemory
    ) -> None:
        self.size = block_bytes(nbytes)
        self.owner = owner
        self.storage = None if storage is None else StorageWeakRef(storage)
        self.uses: dict[tuple[int, int], QueuedWork] = {}

    @property
    def is_gone(self) -> bool:
        """Whether its storage is no more."""
        return self.storage is not None and self.storage.expired()


_blocks: dict[int, PinnedBlock] = {}  # of all virtual machines of the process, by storage
_registered: dict[int, PinnedBlock] = {}  # of programs' own memory, by address
_books = threading.RLock()  # held by who changes them: a data loader's thread pins, too
_thread = threading.local()


@contextmanager
def unpaid() -> Iterator[None]:
    """Page-lock in this thread without taking the host's time: a data loader's own thread does so
    beside the program, whenever the operating system lets it."""
    _thread.unpaid = True
    try:
        yield
    finally:
        _thread.unpaid = False


def block_bytes(nbytes: int) -> int:
    """The size of the block for so many bytes: the next power of two, a page at least."""
    return max(PAGE_BYTES, 1 << (nbytes - 1).bit_length())


def block_of(tensor: torch.Tensor) -> PinnedBlock | None:
    """The page-locked block that a CPU tensor is in; None if its memory is pageable."""
    block = _blocks.get(StorageWeakRef(tensor.untyped_storage()).cdata) if _blocks else None
    if block is None and _registered:
        block = _registered.get(tensor.untyped_storage().data_ptr())
    return None if block is None or block.is_gone else block


def unregister(address: int) -> None:
    """Let memory of the program's own be pageable again."""
    _registered.pop(address, None)


class PinnedMemory:
    """The caching allocator of one virtual machine.

    `submit(action, *args)` runs `action(host_thread, *args)` on the host's thread, in due order.
    """

    def __init__(self, clock: Clock, submit: Callable[..., None]) -> None:
        self._clock = clock
        self._submit = submit
        self._used: defaultdict[int, list[PinnedBlock]] = defaultdict(list)
        self._free: defaultdict[int, list[PinnedBlock]] = defaultdict(list)

    def lock(self, tensor: torch.Tensor, nbytes: int | None = None) -> torch.Tensor:
        """Treat the storage of a CPU tensor as page-locked; the host pays for a fresh block.

        `nbytes` is the size of what it stands for, if that is not the storage's own.
        """
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes() if nbytes is None else nbytes
        block = PinnedBlock(storage, nbytes, self)
        assert block.storage is not None, "it has just been given"
        with _books:
            _blocks[block.storage.cdata] = block
            self._collect(block.size)
            self._used[block.size].append(block)
        self._pay(self._take, block.size)
        return tensor

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock memory that a program has already; the host pays for it."""
        _registered[address] = PinnedBlock(None, nbytes, self)
        seconds = nbytes / PAGE_LOCK_BYTES_PER_S
        self._pay(self._clock.host_work, seconds, "page-lock memory")

    def owns(self, block: PinnedBlock) -> bool:
        """Whether a block is one of this virtual machine's."""
        return block.owner is self

    def _pay(self, action: Callable[..., None], *args: object) -> None:
        if not getattr(_thread, "unpaid", False):
            self._submit(action, *args)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return block_of(tensor) is not None

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A page-locked copy of a CPU tensor; the tensor itself if it is page-locked already.

        Raises RuntimeError for tensors that are not on the CPU.
        """
        if tensor.device.type != "cpu":
            raise RuntimeError(
                f"cannot pin a tensor on {tensor.device}: only dense CPU tensors can be pinned"
            )
        if tensor in self:
            return tensor
        copy = self.lock(tensor.clone())
        seconds = host_copy_s(self._clock.machine.host, tensor.numel() * tensor.element_size())
        self._pay(self._clock.host_work, seconds, "copy to page-locked memory")
        return copy

    def empty_cache(self) -> None:
        """Give the free blocks back to the system."""
        with _books:
            for size in list(self._used):
                self._collect(size)
            self._free.clear()

    def _collect(self, size: int) -> None:
        """Find the blocks of this size whose tensors are gone."""
        used = self._used[size]
        gone = [block for block in used if block.is_gone]
        if gone:
            used[:] = [block for block in used if not block.is_gone]
            self._free[size] += gone
            for key in [key for key, block in _blocks.items() if block.is_gone]:
                del _blocks[key]

    def _take(self, host_thread: HostThread, size: int) -> None:
        """Reuse a free block that no copy uses any more, or lock a fresh one."""
        free = self._free[size]
        for i, block in enumerate(free):
            if all(self._clock.is_done(host_thread, work) for work in block.uses.values()):
                del free[i]
                return
        self._clock.host_work(host_thread, size / PAGE_LOCK_BYTES_PER_S, "page-lock memory")
