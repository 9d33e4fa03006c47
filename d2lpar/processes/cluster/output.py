"""What ranks print: whole lines, in the order of the ranks, however they came."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...timeline.printing import printable
from . import messages

_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")  # of a progress bar only the last state stays


@dataclass
class Output:
    """What one rank printed in one call; what it showed counts as printed."""

    rank: int
    printed: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def take(self, kind: str, content: dict) -> None:
        """Keep a message of Jupyter's protocol that has a text."""
        if kind == "stream":
            (self.warned if content["name"] == "stderr" else self.printed).append(content["text"])
        elif kind in ("execute_result", "display_data"):
            text = content["data"].get("text/plain", "")
            begun = bool(self.printed) and not self.printed[-1].endswith("\n")
            self.printed.append("\n" * begun + text + "\n")


def show(outputs: Iterable[Output]) -> None:
    """Print what the ranks printed, each line headed by its rank: first stdout, then stderr."""
    outputs = list(outputs)
    for stream, parts in (
        (sys.stdout, [(one.rank, one.printed) for one in outputs]),
        (sys.stderr, [(one.rank, one.warned) for one in outputs]),
    ):
        text = "".join(_headed(rank, "".join(pieces)) for rank, pieces in parts)
        if text:
            stream.write(printable(text, stream))
            stream.flush()


def _headed(rank: int, text: str) -> str:
    prefix = messages.PREFIX.format(rank=rank)
    lines = _OVERWRITTEN.sub("", text).splitlines()
    return "".join(f"{prefix}{line}".rstrip() + "\n" for line in lines)
