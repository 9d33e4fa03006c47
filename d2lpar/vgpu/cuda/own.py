"""d2lpar's own functions inside the block: they take CUDA devices, and speak of them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from ...timeline import Timeline
from ...timeline.printing import say
from ..api import simulation, timing
from ..races import stream_sanitizer, sync_debug
from ..torch_backend import runtime, streams
from . import lazy_init
from .device_translation import cuda, inward, number, spoken
from .patches import Patches

Entry = TypeVar("Entry")

PACKAGE = __package__.partition(".")[0]


def install(patches: Patches) -> None:
    patches.replace(streams, "device_number", _translating(streams.device_number))
    patches.replace(timing, "_listed", _listing(timing._listed))
    patches.replace(sys.modules[f"{PACKAGE}.vgpu.api.device_choice"], "devices", _devices)
    for module, name in (
        (simulation, "record"),
        (stream_sanitizer, "hazards"),
        (sync_debug, "syncs"),
    ):
        patches.replace(module, name, _starting(getattr(module, name)))
    patches.set(runtime.Runtime, "recording", _recording(runtime.Runtime.recording))
    patches.set(
        stream_sanitizer.StreamSanitizer,
        "report",
        _reporting(stream_sanitizer.StreamSanitizer.report),
    )
    patches.set(sync_debug, "Wait", _waiting(sync_debug.Wait))


def namespaces() -> Iterator[dict]:
    """The modules of d2lpar that hold such functions under any name, but not those of this one."""
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith(f"{PACKAGE}.") and not name.startswith(__package__):
            yield vars(module)


def _translating(theirs: Callable) -> Callable:
    return lambda device: theirs(inward(device))


def _starting(theirs: Callable) -> Callable:
    """What watches the machine in use, which is chosen when CUDA starts."""

    def watch(*args: object, **options: object) -> object:
        lazy_init.start()
        return theirs(*args, **options)

    return watch


def _listing(theirs: Callable) -> Callable:
    return lambda devices: [inward(device) for device in theirs(devices)]


def _devices(n: int = 1, *, verbose: bool = True, **options: object) -> list[torch.device]:
    """`d2lpar.devices(n)`: the first `n` emulated devices."""
    chosen = [cuda(i) for i in range(number(n - 1) + 1)]
    if verbose:
        machine = runtime.current_runtime().machine.name
        say(f"{', '.join(map(str, chosen))}  ·  {n} emulated, time simulated on {machine}")
    return chosen


def _recording(theirs: Callable) -> Callable:
    """Timelines whose spans name CUDA devices."""

    @contextmanager
    def recording(self: runtime.Runtime, **options: object) -> Iterator[Timeline]:
        with theirs(self, **options) as timeline:
            add, add_memory = timeline.add, timeline.add_memory
            timeline.add = lambda span: add(_named(span))
            timeline.add_memory = lambda sample: add_memory(_named(sample))
            try:
                yield timeline
            finally:
                self.host_threads.flush()

    return recording


def _reporting(theirs: Callable) -> Callable:
    return lambda self, hazard: theirs(self, _named(hazard))


def _waiting(theirs: type) -> Callable:
    return lambda *args: _named(theirs(*args))


def _named(entry: Entry) -> Entry:
    """A dataclass whose texts call devices "cuda:0"."""
    texts = {
        field.name: spoken(value)
        for field in dataclasses.fields(entry)
        if isinstance(value := getattr(entry, field.name), str)
    }
    return dataclasses.replace(entry, **texts)
