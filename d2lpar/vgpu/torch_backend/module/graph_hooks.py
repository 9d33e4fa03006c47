"""What a program lets a CUDA graph call when it is captured, replayed or ends, and keep alive."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.utils.hooks import RemovableHandle

from ..private import torch_devices

Hook = Callable[[Any], object]  # of a graph
REMEDY = "to see what a replay does, call it within `with d2lpar.record() as timeline:`"


class _Retained:
    """What one capture keeps, and calls at its end; it does not know the graph, which could not be
    collected then."""

    def __init__(self) -> None:
        self.callbacks: OrderedDict[int, Callable[[], object]] = OrderedDict()
        self.objects: OrderedDict[int, object] = OrderedDict()

    def end(self) -> None:
        callbacks = list(self.callbacks.values())
        self.callbacks.clear()
        for call in callbacks:
            with suppress(Exception):  # as torch: the others are called, too
                call()
        self.objects.clear()


class GraphHooks:
    """The part of `torch.cuda.CUDAGraph` that has hooks, each for one moment of its life."""

    def __init__(self) -> None:
        self._hooks: dict[str, OrderedDict[int, Hook]] = {
            moment: OrderedDict() for moment in torch_devices.MOMENTS_OF_GRAPHS
        }
        self._retain()

    def _retain(self) -> None:
        self._retained = _Retained()
        self._at_its_end = weakref.finalize(self, self._retained.end)

    def register_capture_start_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(graph)` when a capture has begun; work of the hook becomes part of it."""
        return _added(self._hooks["capture_start"], hook)

    def register_capture_end_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(graph)` when a capture has ended."""
        return _added(self._hooks["capture_end"], hook)

    def register_post_instantiate_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(graph)` when it can be replayed."""
        return _added(self._hooks["instantiate"], hook)

    def register_replay_start_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(graph)` before each replay."""
        return _added(self._hooks["replay_start"], hook)

    def register_replay_end_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(graph)` when a replay is queued, or has failed."""
        return _added(self._hooks["replay_end"], hook)

    def register_destroy_callback(
        self, cb: Callable[[], object], *, synchronize_before_release: bool = False
    ) -> RemovableHandle:
        """Call `cb()` when what was captured is reset, or deleted with the graph. Values of replays
        are there by then, so that nothing need be waited for."""
        return _added(self._retained.callbacks, cb)

    def retain_object(
        self, obj: object, *, synchronize_before_release: bool = False
    ) -> RemovableHandle:
        """Keep a thing alive as long as what was captured."""
        return _added(self._retained.objects, obj)

    def run_hooks(self, moment: str) -> None:
        """Call those of all graphs, which may fail, and those of this one."""
        for hook in list(torch_devices.hooks_of_graphs(moment).values()):
            with suppress(Exception):
                hook(self)
        for hook in list(self._hooks[moment].values()):
            hook(self)

    def release(self) -> None:
        """Let go of what the capture kept, and call what waits for that."""
        self._at_its_end()
        self._retain()

    def enable_debug_mode(self) -> None:
        """Nothing: see `debug_dump`."""

    def debug_dump(self, debug_path: str, *, verbose: bool = True) -> None:
        """Refused: there is no graph of CUDA's."""
        raise _no_graph("debug_dump()", "writes")

    def raw_cuda_graph(self) -> int:
        """Refused, as `debug_dump`."""
        raise _no_graph("raw_cuda_graph()", "gives")

    def raw_cuda_graph_exec(self) -> int:
        """Refused, as `debug_dump`."""
        raise _no_graph("raw_cuda_graph_exec()", "gives")

    def get_graph_data(self) -> dict:
        """Refused, as `debug_dump`."""
        raise _no_graph("get_graph_data()", "reads")


def _no_graph(name: str, does: str) -> NotImplementedError:
    return NotImplementedError(f"{name} {does} a graph of CUDA's, and there is none here: {REMEDY}")


def _added(kept: OrderedDict[int, Any], thing: object) -> RemovableHandle:
    handle = RemovableHandle(kept)
    kept[handle.id] = thing
    return handle
