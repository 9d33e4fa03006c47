"""PyTorch's own operator database as the judge of virtual GPUs: `make opinfo`.

For every operator of `op_db` that supports float32 on the CPU and is not random, all sample inputs
must give on `vgpu:0` what they give on the CPU: values, data type, shape and device, with inputs
left as the CPU leaves them; and where the operator is differentiable, the same gradients. Operators
run in child processes, so that one that aborts counts as failed and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

FORWARD_GOAL, GRADIENT_GOAL = 0.997, 0.99
FAST_SUBSET = 40  # one operator in so many
# Memory that was only allocated has no values to compare.
UNINITIALISED = ("empty", "new_empty")
DEVICE = "vgpu:0"
OK, RANDOM, NO_CPU, NOTHING = "ok", "random", "does not run on the CPU", "nothing to compare"
NOT_JUDGED = {RANDOM, NO_CPU, NOTHING}


def operators() -> list[Any]:
    """The operators that are judged: those that support float32 on the CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


# --- one operator ---------------------------------------------------------------------------------


def judge(op: Any) -> dict[str, Any]:
    """Verdicts {"forward": …, "gradient": …}: "ok", why it failed, or why it is not judged."""
    excluded = why_not_judged(op)
    if excluded:
        return {"forward": excluded, "gradient": excluded}
    forward = _attempt(lambda: compare_forward(op))
    gradient = _attempt(lambda: compare_gradients(op)) if op.supports_autograd else NOTHING
    return {"forward": forward, "gradient": gradient}


def _attempt(check: Callable[[], str]) -> str:
    try:
        return check()
    except BaseException as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def why_not_judged(op: Any) -> str | None:
    """RANDOM if the CPU, asked twice with other seeds, gives two answers; NO_CPU if it cannot."""
    if op.name.startswith(UNINITIALISED):
        return None
    answers = []
    for seed in (1, 2):
        samples = list(_samples(op, "cpu", requires_grad=False))[:8]
        torch.manual_seed(seed)
        try:
            answers.append([_tensors(_outcome(op, sample)) for sample in samples])
        except (AssertionError, NotImplementedError, RuntimeError):
            return NO_CPU
    same = all(
        _same(a, b)
        for first, second in zip(*answers, strict=True)
        for a, b in zip(first, second, strict=True)
    )
    return None if same else RANDOM


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(a, b, equal_nan=True)
    except AssertionError:
        return False
    return True


def compare_forward(op: Any) -> str:
    for real, virtual in _pairs(op, requires_grad=False):
        expected, found = _outcome(op, real), _outcome(op, virtual)
        device = str(virtual.kwargs.get("device") or DEVICE)
        _check_equal(expected, found, device, values=not op.name.startswith(UNINITIALISED))
        _check_equal(_arguments(real), _arguments(virtual), None)
    return OK


def compare_gradients(op: Any) -> str:
    compared = 0
    for real, virtual in _pairs(op, requires_grad=True):
        expected = _gradients(op, real)
        if expected is not None:
            _check_equal(expected, _gradients(op, virtual))
            compared += 1
    return OK if compared else NOTHING


def _pairs(op: Any, *, requires_grad: bool) -> Iterator[tuple[Any, Any]]:
    """Each sample twice: as torch makes it for the CPU and for a virtual device.

    Both draw the same random numbers. Should the values differ all the same (a sample that draws on
    the CPU for either), the virtual device gets copies of the CPU's.
    """
    ours = list(_samples(op, DEVICE, requires_grad=requires_grad))
    theirs = list(_samples(op, "cpu", requires_grad=requires_grad))
    for i, real in enumerate(theirs):
        try:
            virtual = ours[i]
            _check_equal(_arguments(real), _arguments(virtual), None)
        except (AssertionError, IndexError):
            virtual = _to_virtual(real)
        yield real, virtual


def _samples(op: Any, device: str, *, requires_grad: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    for sample in op.sample_inputs(device, torch.float32, requires_grad=requires_grad):
        if getattr(op, "is_factory_function", False):
            sample.kwargs.setdefault("device", torch.device(device))
        yield sample


def _outcome(op: Any, sample: Any) -> Any:
    return op(sample.input, *sample.args, **sample.kwargs)


def _gradients(op: Any, sample: Any) -> list[torch.Tensor | None] | None:
    """Gradients of all inputs that want one, for weights that differ from entry to entry."""
    result = sample.output_process_fn_grad(_outcome(op, sample))
    outputs = [t for t in _tensors(result) if t.requires_grad]
    inputs = [t for t in _tensors(_arguments(sample)) if t.requires_grad and t.is_leaf]
    if not outputs or not inputs:
        return None
    weights = [_ramp(t) for t in outputs]
    return list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))


def _ramp(like: torch.Tensor) -> torch.Tensor:
    count = like.numel()
    ramp = torch.linspace(0.5, 1.5, count) if count else torch.empty(0)
    return ramp.reshape(like.shape).to(like.device, like.dtype)


def _arguments(sample: Any) -> list[Any]:
    return [sample.input, sample.args, sample.kwargs]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _to_virtual(sample: Any) -> Any:
    """The same sample with tensors (still leaves) and device arguments on `vgpu:0`."""
    twins: dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in twins:
                twin = value.detach().to(DEVICE)
                twins[id(value)] = twin.requires_grad_(value.requires_grad)
            return twins[id(value)]
        if value == "cpu" or value == torch.device("cpu"):
            return torch.device(DEVICE)
        return value

    moved = pytree.tree_map(move, (sample.input, tuple(sample.args), dict(sample.kwargs)))
    twin = type(sample)(moved[0], args=moved[1], kwargs=moved[2])
    twin.output_process_fn_grad = sample.output_process_fn_grad
    return twin


def _check_equal(
    expected: Any,
    found: Any,
    device: str | None = DEVICE,
    *,
    values: bool = True,
) -> None:
    """AssertionError unless both are the same, `found` on `device` (None: wherever)."""
    wanted, shape_wanted = pytree.tree_flatten(expected)
    got, shape_got = pytree.tree_flatten(found)
    assert len(wanted) == len(got), f"structure: {shape_wanted} expected, {shape_got} found"
    for a, b in zip(wanted, got, strict=True):
        if not isinstance(a, torch.Tensor):
            same = a == b or str(b).startswith("vgpu") or (a != a and b != b)
            assert same, f"{a!r} expected, {b!r} found"
            continue
        assert device in (None, str(b.device)), f"on {b.device}, not on {device}"
        assert a.shape == b.shape, f"shape {tuple(a.shape)} expected, {tuple(b.shape)} found"
        assert a.dtype == b.dtype, f"type {a.dtype} expected, {b.dtype} found"
        assert a.layout == b.layout, f"layout {a.layout} expected, {b.layout} found"
        if device is None:
            assert a.requires_grad == b.requires_grad, "only one of them wants a gradient"
        if values:
            torch.testing.assert_close(b.detach().cpu(), a.detach(), equal_nan=True)


# --- many operators, in child processes -----------------------------------------------------------


def child(numbers: list[int]) -> None:
    """Judge some operators; a line before each and a line after each."""
    import d2lpar as par

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    par.devices(2, kind="virtual", verbose=False)
    ops = operators()
    for number in numbers:
        print(json.dumps({"begin": number}), flush=True)
        print(json.dumps({"end": number, **judge(ops[number])}), flush=True)


def judge_in_children(numbers: list[int]) -> Iterator[tuple[int, dict[str, str]]]:
    """Verdicts by number. After an abort a new child goes on with the next operator."""
    todo = list(numbers)
    while todo:
        command = [sys.executable, __file__, "--child", ",".join(map(str, todo))]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        current = None
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        ) as process:
            for line in process.stdout:
                if not line.startswith('{"'):
                    continue
                record = json.loads(line)
                if "begin" in record:
                    current = record["begin"]
                    continue
                todo.remove(record.pop("end"))
                yield current, record
                current = None
        code = process.wait()
        if current is None and todo:
            raise RuntimeError(f"the child process ended with {code} before its first operator")
        if current is not None:
            todo.remove(current)
            died = f"the process aborted (exit status {code})"
            yield current, {"forward": died, "gradient": died}


def run(numbers: list[int], jobs: int) -> dict[int, dict[str, str]]:
    shares = [numbers[i::jobs] for i in range(jobs) if numbers[i::jobs]]
    with ThreadPoolExecutor(len(shares)) as pool:
        parts = pool.map(lambda share: dict(judge_in_children(share)), shares)
        return {number: verdict for part in parts for number, verdict in part.items()}


def report(verdicts: dict[int, dict[str, str]]) -> bool:
    """Print rates, and failing names with reasons; whether both goals are met."""
    ops = operators()
    met = True
    for what, goal in (("forward", FORWARD_GOAL), ("gradient", GRADIENT_GOAL)):
        judged = {n: v[what] for n, v in sorted(verdicts.items()) if v[what] not in NOT_JUDGED}
        failed = {n: why for n, why in judged.items() if why != OK}
        passed = len(judged) - len(failed)
        rate = passed / len(judged)
        met &= rate >= goal
        print(f"{what}: {passed} of {len(judged)} operators, {rate:.2%} (goal {goal:.1%})")
        for number, why in failed.items():
            print(f"  {ops[number].full_name}: {why}")
    for reason in (RANDOM, NO_CPU):
        names = [ops[n].full_name for n, v in verdicts.items() if v["forward"] == reason]
        print(f"not judged, {reason}: {len(names)} ({', '.join(sorted(names))})")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only operators with these names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fast", action="store_true", help=f"one operator in {FAST_SUBSET}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child([int(number) for number in options.child.split(",")])
        return 0
    numbers = [
        i for i, op in enumerate(operators()) if not options.names or op.name in options.names
    ]
    verdicts = run(numbers[::FAST_SUBSET] if options.fast else numbers, options.jobs)
    return 0 if report(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
