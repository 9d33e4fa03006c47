"""Timelines as trace files, which https://ui.perfetto.dev and Holistic Trace Analysis open.

The events are those of `trace_events`: Chrome's format, as torch.profiler writes it. A path that
ends in .json or .json.gz is one file with a process for each rank; Perfetto opens it. Any other
path is a folder with a file for each rank, `rank_0.json` and so on, whose `distributedInfo` says
which rank it is; `hta.trace_analysis.TraceAnalysis(trace_dir=folder)` reads it. Beside the list
`traceEvents`, `otherData` names the clock.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TextIO

from ..host_processes import Owners, numbered
from ..spans import ANNOTATION, MemorySample, Span
from ..whole_file import OutputFile
from . import kineto
from .trace_events import COUNTER, Events

ONE_FILE = (".json", ".json.gz", ".gz")
RANK = re.compile(r"rank_\d+\.json")


def is_part(path: str | os.PathLike[str], name: str) -> bool:
    """Whether a trace that is written to `path` may have a file of that name in a folder."""
    return not os.fspath(path).endswith(ONE_FILE) and RANK.fullmatch(name) is not None


class TraceWriter:
    """Trace files that grow span by span; they are there, complete, once it is closed, and are not
    after an error in its block.

    Raises OSError where they cannot be written. If that turns out later, as the disk gets full, who
    adds spans goes on: `close` raises it, and says where the beginning is.
    """

    def __init__(self, path: str | os.PathLike[str], clock: str) -> None:
        self._path, self._clock = Path(path).absolute(), clock
        self._failed: OSError | None = None
        self._owners = Owners()
        self._files: dict[str, _TraceFile] = {}
        self._one: _TraceFile | None = None
        self._early: list[MemorySample] = []  # of devices that nobody has given work so far
        if self._path.name.endswith(ONE_FILE):
            self._one = _TraceFile(self._path, clock)
        else:
            _make_folder(self._path)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        for file in self._all_files():
            file.drop()

    def add(self, span: Span) -> None:
        """Write a span, or an annotation."""
        process, launch = self._owners.of(span)
        with self._noted_failure():
            file = self._file_of(process)
            file.write(file.events.of_span(span, process, launch))
        if self._early and self._owners.knows(span.device):
            self._write_early(span.device)

    def add_memory(self, sample: MemorySample) -> None:
        """Write a sample of memory; one of a device without work, when it is known whose it is."""
        if self._owners.knows(sample.device):
            self.write_memory(sample)
        else:
            self._early.append(sample)

    def write_memory(self, sample: MemorySample) -> None:
        """Write a sample of memory at once, as no more spans will come."""
        process = self._owners.of_device(sample.device)
        with self._noted_failure():
            file = self._file_of(process)
            file.write(file.events.of_sample(sample, process))

    @contextmanager
    def _noted_failure(self) -> Iterator[None]:
        """In the block, what cannot be written is noted: who works must not fail by it."""
        try:
            yield
        except OSError as error:
            self._failed = self._failed or error

    def _write_early(self, device: str) -> None:
        for sample in [sample for sample in self._early if sample.device == device]:
            self._early.remove(sample)
            self.write_memory(sample)

    def close(self) -> None:
        """Write the ends, without which the files are no JSON, and name those in a folder.

        Raises OSError if something could not be written.
        """
        for sample in self._early:  # of devices that have had no work at all
            self.write_memory(sample)
        numbers = numbered(self._files)
        with self._noted_failure():
            if self._failed is None and self._one is not None:
                self._one.close(0 if len(self._one.events.processes) == 1 else None, 1)
            for process, file in self._files.items() if self._failed is None else ():
                number = numbers[process]
                file.close(number, len(numbers), self._path / f"rank_{number}.json")
        if self._failed is not None:
            parts = ", ".join(file.left() for file in self._all_files())
            reason = self._failed.strerror or self._failed
            raise OSError(f"{self._path} could not be written: {reason}. A beginning is in {parts}")

    def _all_files(self) -> list[_TraceFile]:
        return [*self._files.values()] if self._one is None else [self._one]

    def _file_of(self, process: str) -> _TraceFile:
        if self._one is not None:
            return self._one
        file = self._files.get(process)
        if file is None:
            path = self._path / f"rank_{len(self._files)}.json"
            file = self._files[process] = _TraceFile(path, self._clock)
        return file


class _TraceFile:
    """One file, open until it is closed."""

    def __init__(self, path: Path, clock: str) -> None:
        self.events = Events()
        self._output = OutputFile(path)
        self._below = self._output.emptied()
        self._file = _text_of(self._below, str(path))
        other = {"clock": clock, "written by": "d2lpar"}
        head = {"schemaVersion": 1, "displayTimeUnit": "ns", "otherData": other}
        self._file.write(json.dumps(head).removesuffix("}") + ', "traceEvents": [')
        self._separator = "\n"

    def left(self) -> str:
        """Close it as far as it is; where that is."""
        for file in (self._file, self._below):
            with suppress(OSError):
                file.close()
        return self._output.left()

    def drop(self) -> None:
        """Leave nothing of it."""
        self._output.close()

    def write(self, events: Iterable[str]) -> None:
        for event in events:
            self._file.write(self._separator + event)
            self._separator = ",\n"

    def close(self, rank: int | None, ranks: int, place: Path | None = None) -> None:
        """Write what is known at the end; `rank` is None if several are in the file."""
        devices = [{"id": number, "name": name} for name, number in self.events.devices.items()]
        self._file.write(f'\n], "deviceProperties": {json.dumps(devices)}')
        if rank is not None:
            info = {"backend": "nccl", "rank": rank, "world_size": ranks}
            self._file.write(f',\n"distributedInfo": {json.dumps(info)}')
        self._file.write("}\n")
        self._file.flush()
        if self._file.buffer is not self._below:
            self._file.close()  # the end of what is packed, and not the file below
        self._output.finish(place)


def save(
    path: str | os.PathLike[str],
    clock: str,
    spans: Iterable[Span],
    memory: Iterable[MemorySample],
) -> None:
    """Write a trace: see above. Raises OSError."""
    with TraceWriter(path, clock) as writer:
        for span in spans:
            writer.add(span)
        for sample in memory:
            writer.write_memory(sample)


Content = tuple[list[Span], list[MemorySample], list[Span]]  # with the annotations


def read(source: str | os.PathLike[str] | dict) -> tuple[str, *Content]:
    """Clock, spans, samples and annotations of a trace file, or of its content.

    Raises ValueError if the trace is neither one of `save` nor one of torch.profiler.
    """
    content = source
    if not isinstance(source, dict):
        with _open(source) as file:
            content = json.load(file)
    if not isinstance(content, dict) or "traceEvents" not in content:
        raise ValueError(f"{_short(source)} is no trace: it has no list named traceEvents")
    if "clock" in content.get("otherData", ()):
        return _read_own(content)
    if kineto.is_kineto(content):
        return ("measured", *kineto.read(content))
    raise ValueError(
        f"{_short(source)} was written neither by Timeline.save_trace nor by torch.profiler: "
        "write it with one of them"
    )


def _read_own(content: dict) -> tuple[str, *Content]:
    places: dict[int, tuple[str, int | str]] = {}
    spans: list[Span] = []
    annotations: list[Span] = []
    memory = []
    for event in content["traceEvents"]:
        args = event.get("args", {})
        if event["name"] == "thread_name" and event["ph"] == "M":
            places[event["tid"]] = args["device"], args["stream"]
        elif event["ph"] == "X" and "kind" in args:
            span = _span(event, args, *places[event["tid"]])
            (annotations if span.kind == ANNOTATION else spans).append(span)
        elif event["ph"] == "C":
            device, time_s = (
                event["name"].removeprefix(f"{COUNTER} "),
                round(event["ts"] * 1e3) / 1e9,
            )
            memory.append(MemorySample(device, time_s, args["bytes"]))
    return content["otherData"]["clock"], spans, memory, annotations


def _span(event: dict, args: dict, device: str, stream: int | str) -> Span:
    start, length = round(event["ts"] * 1e3), round(event["dur"] * 1e3)
    correlation = args.get("correlation", args.get("External id", 0))
    return Span(
        device, stream, args["kind"], args.get("name", event["name"]),
        start / 1e9, (start + length) / 1e9, args.get("bytes", 0),
        args.get("flops", 0), correlation, args.get("target", ""),
        tuple(json.loads(args.get("Process Group Ranks", "[]"))), tuple(args.get("after", ())),
    )  # fmt: skip


def _open(path: str | os.PathLike[str]) -> TextIO:
    if os.fspath(path).endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8")
    return open(path, encoding="utf-8")


def _text_of(file: BinaryIO, name: str) -> TextIO:
    if name.endswith(".gz"):
        return gzip.open(file, "wt", encoding="utf-8", compresslevel=5)
    return io.TextIOWrapper(file, encoding="utf-8")


def _make_folder(path: Path) -> None:
    """Make a folder where there is none, and try whether files can be written in it."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file: name a folder, or a file that ends in .json")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be made: there is no folder {path.parent}")
    path.mkdir(exist_ok=True)
    OutputFile(path / "rank_0.json").close()


def _short(source: str | os.PathLike[str] | dict) -> str:
    return "this dictionary" if isinstance(source, dict) else repr(os.fspath(source))
