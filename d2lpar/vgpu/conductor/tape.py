"""What a timeline is told, kept to be told to one in another process."""

from __future__ import annotations

from ...timeline import MemorySample, Span


class Tape:
    """In the place of a `Timeline` on a clock: `told` are the methods that were called, with the
    number of the operation that the process was in, `details`."""

    samples_memory = True

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple, int]] = []
        self.details = 0

    def add(self, span: Span) -> None:
        """Keep a span."""
        self.told.append(("add", (span,), self.details))

    def add_dispatch(
        self, thread: str, name: str, start_s: float, end_s: float, correlation: int, line: str = ""
    ) -> None:
        """Keep the queueing of an operation."""
        told = (thread, name, start_s, end_s, correlation, line)
        self.told.append(("add_dispatch", told, self.details))

    def add_memory(self, sample: MemorySample) -> None:
        """Keep what tensors occupy."""
        self.told.append(("add_memory", (sample,), self.details))

    def add_annotation(self, span: Span) -> None:
        """Keep a block that the program has named."""
        self.told.append(("add_annotation", (span,), self.details))
