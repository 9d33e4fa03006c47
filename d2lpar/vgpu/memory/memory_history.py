"""What an allocator has done, noted as torch's memory visualiser reads it.

Entries are those of `device_traces` in `torch.cuda.memory._snapshot`, whose docstring describes
them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import CodeType, FrameType
from typing import Any

from .segments import Block

_OWN = str(Path(__file__).parents[2])
_DYNAMO = str(Path("torch", "_dynamo", "eval_frame.py"))

Stack = tuple[tuple[CodeType, int], ...]  # code and line, the innermost first


@dataclass(frozen=True)
class HistoryOptions:
    """What to note: `context` says of what with a stack ("state" and "alloc": allocations), with
    `events` all that happens, the last `most`, but for the actions `skipped`."""

    events: bool = True
    context: str | None = "all"
    most: int | None = None
    skipped: Collection[str] = field(default_factory=tuple)


class MemoryHistory:
    """What one device's allocator does from now on; `now_s` is asked for the host's simulated
    time."""

    def __init__(self, options: HistoryOptions, now_s: Callable[[], float]) -> None:
        self.options = options
        self._entries: deque[tuple[str, int, int, int, Stack, int, dict]] = deque(
            maxlen=options.most
        )
        self._now_s = now_s

    def go_on(self, options: HistoryOptions, *, clear: bool) -> None:
        """Note from now on what these options say, after all that is noted or (`clear`) anew."""
        self.options = options
        self._entries = deque(
            () if clear or not options.events else self._entries, maxlen=options.most
        )

    def allocated(self, block: Block) -> None:
        """Note a block that is in use from now on."""
        block.stack = () if self.options.context is None else stack_here()
        self._note("alloc", block.address, block.requested, block.stream, block.stack)

    def stack_of_free(self) -> Stack:
        """What is noted of who frees something now."""
        return stack_here() if self.options.context == "all" else ()

    def freed(self, block: Block, stack: Stack) -> None:
        """Note that a block is given back, at once or when streams are done with it."""
        self._note("free_requested", block.address, block.requested, block.stream, stack)

    def completed(self, block: Block) -> None:
        """Note that others may have this block from now on."""
        self._note("free_completed", block.address, block.requested, block.stream, ())

    def taken(self, address: int, nbytes: int, stream: int, *, expandable: bool) -> None:
        """Note that the allocator takes so many bytes of the device."""
        stack = () if self.options.context is None else stack_here()
        self._note("segment_map" if expandable else "segment_alloc", address, nbytes, stream, stack)

    def given_back(self, block: Block, by: CodeType) -> None:
        """Note that it gives them back; `by` is what the program has called, as there would be a
        frame of torch's."""
        stack: Stack = ()
        if self.options.context == "all":
            stack = ((by, by.co_firstlineno), *stack_here())
        action = "segment_unmap" if block.expandable else "segment_free"
        self._note(action, block.address, block.size, block.stream, stack)

    def out_of_memory(self, nbytes: int, free_bytes: int, stream: int) -> None:
        """Note that so much was asked for in vain."""
        self._note("oom", 0, nbytes, stream, stack_here(), device_free=free_bytes)

    def snapshot_taken(self) -> None:
        """Note that this was looked at."""
        self._note("snapshot", 0, 0, 0, ())

    def _note(
        self, action: str, address: int, size: int, stream: int, stack: Stack, **more: int
    ) -> None:
        if self.options.events and action not in self.options.skipped:
            time_us = round(self._now_s() * 1e6)
            if self.options.context == "state":  # stacks of what there is, not of what happened
                stack = ()
            self._entries.append((action, address, size, stream, stack, time_us, more))

    def entries(self) -> list[dict[str, Any]]:
        """What has happened, in torch's form; times are simulated microseconds."""
        happened = [*self._entries]  # garbage that is freed meanwhile adds to them
        return [
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time_us,
                "frames": frames_of(stack),
                "pool_id": (0, 0),
                **more,
            }
            for action, address, size, stream, stack, time_us, more in happened
        ]


def stack_here() -> Stack:
    """The lines of Python that run now, but for d2lpar's own, the innermost first.

    A thread in which d2lpar runs a process of the program is no part of that, nor is what Dynamo,
    once it is imported, puts around the code of virtual tensors.
    """
    frame: FrameType | None = _getframe(1)
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith(_OWN) or (not found and file.endswith(_DYNAMO))):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    while found and found[-1][0].co_filename == threading.__file__:
        del found[-1]
    return tuple(found)


def frames_of(stack: Stack) -> list[dict[str, Any]]:
    """A stack in torch's form."""
    return [
        {"filename": code.co_filename, "line": line, "name": code.co_name} for code, line in stack
    ]
