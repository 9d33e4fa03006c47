"""Which devices a lesson runs on: real GPUs if the machine has enough, virtual ones otherwise."""

from __future__ import annotations

import os

import torch

from ... import machines
from ...timeline.printing import say
from ..device_naming import device, naming
from .visible_devices import Variable

VIRTUAL, REAL = "virtual", "real"

# Which of a simulated machine's accelerators are virtual devices of this process.
VISIBLE = Variable("D2LPAR_VISIBLE_DEVICES")


def devices(
    n: int = 1,
    *,
    machine: machines.Named = None,
    kind: str | None = None,
    verbose: bool = True,
) -> list[torch.device]:
    """The first `n` accelerators: real ones if there are `n`, virtual ones otherwise.

    `kind` ("real" or "virtual") insists on one of the two; the environment variable
    D2LPAR_DEVICES does so for calls that leave it out. `machine` is what virtual devices simulate
    (a name, a file or a `Machine`, see `machines.machine`; D2LPAR_MACHINE, then the textbook's two
    V100): it is extended by accelerators like its first if `n` asks for more. Asking again for
    the same machine, also for more of it, goes on with its clock, memories and tensors. Another
    machine starts with its clock at zero; what tensors hold by then is in its memories too. In a
    `simulate` block the devices are those of the block.

    D2LPAR_VISIBLE_DEVICES is to virtual devices what CUDA_VISIBLE_DEVICES is to real ones: "2,3"
    leaves two of the machine, numbered from 0, with what links them; it is read when the first
    virtual device is asked for. Nothing is extended then, and `simulate` blocks, which name their
    own machine, do not heed it. The rules are those of `d2lpar.vgpu.api.visible_devices`.

    Prints what it found unless `verbose` is False. Raises ValueError for a wrong number, kind or
    machine, RuntimeError if real devices are demanded and missing or virtual ones are hidden.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"devices(n) takes a whole number from 1 on, not {n!r}")
    chosen = naming().choose(n)
    if chosen is None:
        chosen, text = _choose(n, machine, kind)
    else:
        text = _describe_emulated(n)
    if verbose:
        say(f"{', '.join(map(str, chosen))}  ·  {text}")
    return chosen


def _choose(n: int, machine: machines.Named, kind: str | None) -> tuple[list[torch.device], str]:
    """Real or virtual devices, and what they are in words."""
    named = "" if kind else f" (D2LPAR_DEVICES is {os.environ.get('D2LPAR_DEVICES')!r})"
    kind = kind or os.environ.get("D2LPAR_DEVICES") or None
    if kind not in (None, VIRTUAL, REAL):
        raise ValueError(f"devices are {VIRTUAL!r} or {REAL!r}, not {kind!r}{named}")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == REAL and found < n:
        raise RuntimeError(
            f"{n} real GPUs were asked for and this machine has {found}; "
            f"ask for kind={VIRTUAL!r}, or for none in particular"
        )
    if found >= n and kind != VIRTUAL:
        real = [torch.device("cuda", i) for i in range(n)]
        return real, f"{n} real: {', '.join(torch.cuda.get_device_name(d) for d in real)}"
    return _virtual(n, machine, found), _describe_virtual(n)


def backing_device(found: int) -> torch.device:
    """Where virtual devices do their arithmetic: D2LPAR_BACKING, else a real GPU, else the CPU.

    Raises ValueError if the variable names neither.
    """
    text = os.environ.get("D2LPAR_BACKING") or ("cuda:0" if found else "cpu")
    choices = ["cpu", *(f"cuda:{i}" for i in range(found))]
    if text not in (*choices, *(["cuda"] if found else [])):
        raise ValueError(
            f"D2LPAR_BACKING={text!r} is no device that can do the arithmetic of virtual GPUs: "
            f"set it to {' or '.join(choices)}, or unset it"
        )
    return torch.device(text)


def _virtual(n: int, which: machines.Named, found: int) -> list[torch.device]:
    from ..torch_backend import register
    from ..torch_backend.machine import runtime

    if runtime.is_simulated():
        _check_simulated(n, which, runtime.current_runtime().machine)
    else:
        machine = _default_machine() if which is None else machines.machine(which)
        register.start(_visible_part(machine, n), n, backing_device(found))
        VISIBLE.start()
    return [device(i) for i in range(n)]


def _default_machine() -> machines.Machine:
    name = os.environ.get("D2LPAR_MACHINE") or None
    try:
        return machines.machine(name)
    except ValueError as error:
        raise ValueError(f"D2LPAR_MACHINE is {name!r}, but {error}") from None


def _visible_part(machine: machines.Machine, n: int) -> machines.Machine:
    """What the variable shows of a machine; RuntimeError if that is less than `n` accelerators."""
    if VISIBLE.text is None:
        return machine
    count = len(machine.accelerators)
    numbers = VISIBLE.visible(count)
    if n > len(numbers):
        again = " and start Python anew" if VISIBLE.is_started else ""
        raise RuntimeError(
            f"{n} virtual GPUs were asked for, and {VISIBLE} shows {len(numbers)} of the {count} "
            f"of {machine.name}: ask for fewer, or change or unset the variable{again}"
        )
    return machine.only(numbers)


def _check_simulated(n: int, which: machines.Named, simulated: machines.Machine) -> None:
    """ValueError if a `simulate` block is asked for devices that it does not have."""
    wanted = simulated if which is None else machines.machine(which)
    count = len(simulated.accelerators)
    if n > count or not wanted.is_like(simulated):
        raise ValueError(
            f"this block simulates {count} devices of {simulated.name}, and was asked for {n} of "
            f"{wanted.name}: ask simulate() for them"
        )


def _describe_emulated(n: int) -> str:
    from ..torch_backend.machine.runtime import current_runtime

    return f"{n} emulated, time simulated on {current_runtime().machine.name}"


def _describe_virtual(n: int) -> str:
    from ..torch_backend.machine.runtime import current_runtime, is_simulated

    rt = current_runtime()
    shown = "" if VISIBLE.text is None or is_simulated() else f" with {VISIBLE}"
    where = "this CPU" if rt.backing.type == "cpu" else f"one real GPU ({rt.backing})"
    return (
        f"{n} virtual {rt.machine.accelerators[0].name}: arithmetic on {where}, "
        f"time simulated on {rt.machine.name}{shown}"
    )
