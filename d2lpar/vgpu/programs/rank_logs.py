"""What ranks print, dealt with as torchrun does: `--redirects`, `--tee`, `--local-ranks-filter`."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import TextIO

from .torchrun import LogOptions

OUT, ERR = 1, 2
FILES = {OUT: "stdout.log", ERR: "stderr.log"}


class RankLogs:
    """Where the ranks' lines go; one for all attempts of a run. Raises OSError if no file can be
    made there."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._folder = self._made() if options.files else None
        self._files: dict[tuple[int, int], TextIO] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """In the block files are open that ranks have written to."""
        try:
            yield
        finally:
            while self._files:
                self._files.popitem()[1].close()

    def write(self, rank: int, std: int, attempt: int, text: str, stream: TextIO) -> None:
        """Deal with lines that a rank has written in that attempt, perhaps on `stream`."""
        to_file, shown, prefixed = self.goes(rank, std)
        if to_file:
            if (rank, std) not in self._files:
                self._files[rank, std] = self.open(rank, std, attempt)
            self._files[rank, std].write(text)
        if shown:
            prefix = self.prefix(rank) if prefixed else ""
            for line in text.splitlines(keepends=True):
                stream.write(prefix + line)
            stream.flush()

    def goes(self, rank: int, std: int) -> tuple[bool, bool, bool]:
        """Whether a stream of a rank goes to a file, to the console, and with a prefix there."""
        options, local = self._options, rank % self._options.per_node
        tee = bool(options.tee.get(local, 0) & std)
        redirected = bool(options.redirects.get(local, 0) & std)
        return tee or redirected, local in options.shown and (tee or not redirected), tee

    def prefix(self, rank: int) -> str:
        """What stands before a line of a rank."""
        values = {
            "role_name": self._options.role,
            "local_rank": rank % self._options.per_node,
            "rank": rank,
            "hostname": socket.gethostname(),
        }
        return Template(self._options.prefix).safe_substitute(values)

    def _made(self) -> Path:
        """The folder of this run's files."""
        parent = self._options.folder or tempfile.mkdtemp(prefix="torchelastic_")
        os.makedirs(parent, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{self._options.run_id}_", dir=parent)).absolute()

    def open(self, rank: int, std: int, attempt: int) -> TextIO:
        """The file of a rank: `<folder>/<run id>_…/attempt_0/1/stdout.log`, as torchrun has it;
        the ranks of several machines, which torchrun writes on each, have the numbers of all."""
        assert self._folder is not None, "there are files"
        folder = self._folder / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        return open(folder / FILES[std], "w", encoding="utf-8", buffering=1)
