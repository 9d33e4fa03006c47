"""A file of tests for GPUs, read as if its author had written it for processors.

Most tests of ranks name CUDA without need: they would say as much on gloo and "cpu". So they are
read, where it is to be seen what they do on torch's own devices. What processors have no word for,
as streams and memory, is left: a test that uses it ends there in other words, and proves nothing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

_GPU = re.compile(r"(rank:\d+/)?cuda(:\d+)?")
_BACKENDS = ("nccl", "cpu:gloo,cuda:nccl")
_NUMBERS = ("self.rank", "rank")  # a rank's device, as tests name it
_NOTHING = "None"
# What calls become that a program for processors would make otherwise, or not at all.
_CALLS = {
    "torch.cuda.is_available": "True",
    "torch.cuda.current_device": "torch.device('cpu')",
    "torch.cuda.set_device": _NOTHING,
    "torch.cuda.synchronize": _NOTHING,
    "torch.cuda.empty_cache": _NOTHING,
    "torch.cuda.manual_seed": _NOTHING,
    "torch.cuda.manual_seed_all": _NOTHING,
}


class Loader(SourceFileLoader):
    """Loads a file so, for a machine with so many `gpus`."""

    gpus = 4

    def get_code(self, fullname: str) -> CodeType:
        """Its code, whose lines keep their numbers; never that of a cache, nor for one."""
        path = self.get_filename(fullname)
        tree = _Reader(self.gpus).visit(ast.parse(self.get_data(path)))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Reader(ast.NodeTransformer):
    def __init__(self, gpus: int) -> None:
        self._calls = {**_CALLS, "torch.cuda.device_count": str(gpus)}

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str):
            if gpu := _GPU.fullmatch(node.value):
                return ast.copy_location(ast.Constant(f"{gpu[1] or ''}cpu"), node)
            if node.value in _BACKENDS:
                return ast.copy_location(ast.Constant("gloo"), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = node.values
        word = parts[-2].value if len(parts) > 1 and isinstance(parts[-2], ast.Constant) else ""
        if word in ("cuda:", "/cuda:"):  # and a number
            cpu = ast.copy_location(ast.Constant(word.replace("cuda:", "cpu")), node)
            node.values = [*parts[:-2], cpu]
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        if node.arg == "device" and _dotted(node.value) in _NUMBERS:
            node.value = ast.copy_location(ast.Constant("cpu"), node.value)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = _dotted(node.func)
        if name in self._calls:
            return ast.copy_location(ast.parse(self._calls[name], mode="eval").body, node)
        self.generic_visit(node)
        if name == "torch.device" and isinstance(node.args[0], ast.Constant):
            node.args = node.args[: 2 if node.args[0].value != "cpu" else 1]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            node.func.attr, node.args, node.keywords = "cpu", [], []
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            on_rank = _dotted(node.args[0]) in _NUMBERS if node.args else False
            node.args = [ast.Constant("cpu"), *node.args[1:]] if on_rank else node.args
        elif name == "CPUOffloadPolicy" and not (node.args or node.keywords):
            node.keywords = [ast.keyword("pin_memory", ast.Constant(False))]  # as it tells to
        return node


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def let_tests_run(gpus: int) -> None:
    """Let torch's test bases skip nothing for want of so many GPUs, and have as many ranks."""
    import torch
    from torch.testing._internal import common_cuda, common_distributed, common_fsdp, common_utils
    from torch.testing._internal.distributed._tensor import common_dtensor

    theirs = common_distributed.skip_if_lt_x_gpu

    def needs(count: int, **_: Any) -> Callable:
        return (lambda test: test) if count <= gpus else theirs(count)

    for module in (common_utils, common_cuda):
        module.TEST_CUDA = module.TEST_MULTIGPU = True  # type: ignore[attr-defined]
    for module in (common_distributed, common_dtensor):
        module.skip_if_lt_x_gpu = needs  # type: ignore[attr-defined]
    for name in ("requires_nccl", "requires_nccl_version"):
        setattr(common_distributed, name, lambda *_: lambda test: test)
    common_distributed.at_least_x_gpu = lambda count: count <= gpus
    common_fsdp.DEVICE_COUNT = gpus
    _use_gloo()
    _let_fsdp_take_processors()
    torch.accelerator.device_count = lambda: gpus
    torch.cuda.set_device = lambda *_: None


def _use_gloo() -> None:
    """Whatever group of GPUs a base of torch's asks for by itself."""
    import torch.distributed as dist

    theirs = dist.init_process_group

    @functools.wraps(theirs)
    def init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        theirs("gloo" if backend in _BACKENDS else backend, *args, **kwargs)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init


def _let_fsdp_take_processors() -> None:
    """FSDP1 does so only if it is told a device, which tests for GPUs seldom do."""
    import torch
    from torch.distributed.fsdp import _init_utils, fully_sharded_data_parallel

    theirs = _init_utils._init_device_handle

    @functools.wraps(theirs)
    def init(state: object, module: object, ignored: object, device: object) -> object:
        return theirs(state, module, ignored, torch.device("cpu") if device is None else device)

    _init_utils._init_device_handle = fully_sharded_data_parallel._init_device_handle = init
