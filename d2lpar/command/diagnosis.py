"""What this machine has, what it lacks, and which lessons will be measured or simulated on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .. import machines
from ..lesson import download
from ..locale import label, translated
from ..machines.measuring import calibration, system
from ..timeline.formatting import table
from ..vgpu import VISIBLE
from ..vgpu.bounds import OLDEST_TORCH

if TYPE_CHECKING:
    from IPython.lib.pretty import PrettyPrinter

LEAST_DISK_BYTES = 10**9
INSTALL = "run `make lab`, which installs all that the course needs, or `pip install {}`"


@dataclass(frozen=True)
class Fact:
    """Something that was found, or found missing; then `remedy` says what to do."""

    topic: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Lesson:
    """What a lesson needs: GPUs, ranks (processes that talk to each other), packages.

    One that needs no GPUs is about this machine: it measures. Of others, `times_here` names what
    they time on this machine whatever their GPUs are. The deeper half is not meant.
    """

    number: str
    title: str
    gpus: int = 0
    ranks: bool = False
    times_here: str = ""
    packages: tuple[str, ...] = ()


TEXTBOOK = ("d2l", "torchvision")  # d2l imports the other
LESSONS = (
    Lesson("00", "Start here", gpus=2),
    Lesson("01", "Hardware"),
    Lesson("02", "GPUs and links", gpus=2, times_here="a data loader"),
    Lesson(
        "03",
        "Automatic parallelism",
        gpus=2,
        times_here="the first call of a function",
        packages=TEXTBOOK,
    ),
    Lesson("04", "Multi-GPU training from scratch", gpus=2, packages=TEXTBOOK),
    Lesson("05", "Multi-GPU training, concisely", gpus=2, packages=TEXTBOOK),
    Lesson(
        "06",
        "Distributed SGD",
        gpus=2,
        ranks=True,
        times_here="training on them",
        packages=("ipyparallel",),
    ),
    Lesson("07", "Pipelining", gpus=2, ranks=True, packages=("ipyparallel", "torchvision")),
    Lesson("08", "Channel parallelism", gpus=2),
    Lesson("09", "Memory and mixes", gpus=2),
)
TEXT_MACHINE, TEXT_LESSONS = "This machine", "Lessons"
TEXT_WHY, TEXT_NOTHING = "for {why}", "nothing"
TEXT_PLAN = "  {number} {title}: {how}, {why}"
PACKAGES = ("jupyterlab", "ipywidgets", "matplotlib", "nbval", "torchvision", "d2l", "ipyparallel")


@dataclass(frozen=True)
class LessonPlan:
    """How a lesson will run here: "measured", "simulated", both, or not; and why."""

    lesson: Lesson
    how: str
    why: str


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """All that `doctor` found; prints as a report."""

    facts: tuple[Fact, ...]
    plans: tuple[LessonPlan, ...]

    @property
    def remedies(self) -> list[str]:
        """What to do about that which is missing."""
        return [f"{label(fact.topic)}: {fact.remedy}" for fact in self.facts if fact.remedy]

    def __repr__(self) -> str:
        return f"<Diagnosis: {len(self.facts)} facts, {len(self.remedies)} remedies>"

    def __str__(self) -> str:
        facts = table([(fact.topic, fact.text) for fact in self.facts], others=str.ljust)
        lines = [TEXT_MACHINE, *[f"  {line}" for line in facts], "", TEXT_LESSONS]
        for plan in self.plans:
            title, how = label(plan.lesson.title), label(plan.how)
            number, why = plan.lesson.number, translated(plan.why)
            lines.append(translated(TEXT_PLAN).format(number=number, title=title, how=how, why=why))
        if not self.plans:
            lines.append(
                f"  no notebooks in {notebooks_folder()}: call this in the course's folder"
            )
        lines += ["", "What to do" if self.remedies else "Nothing is missing."]
        lines += [f"  {remedy}" for remedy in self.remedies]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: PrettyPrinter, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))


def doctor() -> Diagnosis:
    """Look at this machine; print the result to read it. Changes nothing and needs no network."""
    facts = (
        *_computer(),
        *_gpus(),
        *_software(),
        *_distributed(),
        _calibration(),
        _data(),
        _devices(),
        *_visible(),
    )
    folder = notebooks_folder()
    present = [lesson for lesson in LESSONS if any(folder.glob(f"{lesson.number}_*.ipynb"))]
    return Diagnosis(facts, tuple(lesson_plan(lesson) for lesson in present))


def notebooks_folder() -> Path:
    """Where the lessons are: beside the package in a clone, else where one works."""
    beside = Path(__file__).parents[2] / "notebooks"
    return beside if beside.is_dir() else Path.cwd()


def lesson_plan(lesson: Lesson) -> LessonPlan:
    """How a lesson will run on this machine."""
    missing = [name for name in lesson.packages if _version(name) is None]
    if missing:
        return LessonPlan(
            lesson, "cannot run", TEXT_WHY.format(why=f"{' and '.join(missing)} is missing here")
        )
    if not lesson.gpus:
        return LessonPlan(lesson, "measured", TEXT_WHY.format(why="it is about this machine"))
    how, why = _clock(lesson.gpus)
    here = []
    if lesson.ranks and torch.distributed.is_available():
        here.append(f"its processes run here over {_backend(lesson.gpus)}")
    if lesson.times_here:
        here.append(f"{lesson.times_here} is timed here")
        how = "measured and simulated" if how == "simulated" else how
    if here:
        why = f"{why}; {', and '.join(here)}"
    return LessonPlan(lesson, how, TEXT_WHY.format(why=why))


def _clock(gpus: int) -> tuple[str, str]:
    """Whether work on so many GPUs is measured or simulated here, and why."""
    found, demanded = _gpu_count(), os.environ.get("D2LPAR_DEVICES")
    if demanded == "virtual":
        return "simulated", "D2LPAR_DEVICES asks for virtual GPUs"
    if found >= gpus:
        return "measured", f"{found} real GPUs are enough"
    if demanded == "real":
        return "cannot run", f"D2LPAR_DEVICES asks for {gpus} real GPUs and there are {found}"
    if found:
        return "simulated", f"it takes {gpus} GPUs and this machine has {found}"
    return "simulated", f"it takes {gpus} GPUs and this machine has none"


def _backend(ranks: int) -> str:
    nccl = torch.distributed.is_nccl_available() and _gpu_count() >= ranks
    return "nccl" if nccl else "gloo"


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


# --- Facts ----------------------------------------------------------------------------------------


def _computer() -> list[Fact]:
    folder = next(
        f for f in (download.cache_folder(), *download.cache_folder().parents) if f.is_dir()
    )
    free_bytes = shutil.disk_usage(folder).free
    return [
        Fact("system", system.operating_system()),
        Fact("processor", f"{system.processor()}, {system.cores()} cores"),
        Fact("memory", f"{system.memory_bytes() / 1e9:.1f} GB"),
        Fact(
            "disk",
            f"{free_bytes / 1e9:.1f} GB free for data",
            "" if free_bytes >= LEAST_DISK_BYTES else f"make room in {folder}",
        ),
    ]


def _gpus() -> list[Fact]:
    """The GPUs that torch can use, and those that it cannot."""
    count = _gpu_count()
    if not count:
        return [_no_gpu()]
    facts = [Fact(f"GPU {i}", _described(i)) for i in range(count)]
    driver = _nvidia_smi("driver_version")
    if driver:
        facts.append(Fact("GPU driver", driver[0]))
    if count > 1:
        pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
        able = sum(torch.cuda.can_device_access_peer(i, j) for i, j in pairs)
        text = f"{able} of {len(pairs)} pairs copy directly, the others through the host"
        facts.append(Fact("peer-to-peer", text))
    return facts


def _described(device: int) -> str:
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{properties.name}, {properties.total_memory / 1e9:.1f} GB, "
        f"{properties.multi_processor_count} multiprocessors"
    )


def _no_gpu() -> Fact:
    seen = _nvidia_smi("name")
    if seen:
        return Fact(
            "GPU",
            f"{', '.join(seen)}, which torch {torch.__version__} cannot use",
            "install a CUDA build of torch that fits the driver, or go on with virtual GPUs",
        )
    if torch.backends.mps.is_available():
        return Fact("GPU", "Apple's, which the course does not use; virtual ones serve")
    return Fact("GPU", "none; virtual ones serve")


def _nvidia_smi(what: str) -> list[str]:
    """What NVIDIA's driver says of each GPU; nothing without a driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        found = subprocess.run(
            [command, f"--query-gpu={what}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def _software() -> list[Fact]:
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    threads = torch.get_num_threads()
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    old = release < OLDEST_TORCH
    facts = [
        Fact("Python", platform.python_version()),
        Fact(
            "torch",
            f"{torch.__version__}, {build}, {threads} thread{'s' * (threads != 1)}",
            f"virtual GPUs need torch {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer" if old else "",
        ),
    ]
    found = {name: _version(name) for name in PACKAGES}
    missing = [name for name, version in found.items() if version is None]
    text = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if missing:
        text += f"{'; ' if text else ''}missing: {', '.join(missing)}"
    return [*facts, Fact("packages", text, INSTALL.format(" ".join(missing)) if missing else "")]


def _version(package: str) -> str | None:
    """The installed version; asking for it imports nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _distributed() -> list[Fact]:
    if not torch.distributed.is_available():
        return [Fact("ranks", "this torch has no torch.distributed", "install another build")]
    able = {
        "gloo": torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_nccl_available() and _gpu_count() > 0,
        "mpi": torch.distributed.is_mpi_available(),
    }
    launchers = {
        "mpirun": shutil.which("mpirun"),
        "Slurm": shutil.which("srun"),
    }
    facts = [Fact("ranks", f"processes can talk over {_listed(able)}")]
    text = f"beside torchrun and ipyparallel: {_listed(launchers)}"
    if "SLURM_JOB_ID" in os.environ:
        text += f"; in Slurm job {os.environ['SLURM_JOB_ID']}"
    return [*facts, Fact("launchers", text)]


def _listed(found: Mapping[str, object]) -> str:
    return ", ".join(name for name, there in found.items() if there) or TEXT_NOTHING


def _calibration() -> Fact:
    remedy = "call `par.calibrate().save()`, which takes less than 20 s"
    try:
        known = calibration.Calibration.load()
    except ValueError as error:
        exists = calibration.default_path().exists()
        return Fact("calibration", str(error) if exists else "none yet", remedy)
    text = f"{known.source}, {len(known.readings)} readings"
    return Fact("calibration", text, "" if known.torch_version == torch.__version__ else remedy)


def _data() -> Fact:
    root = os.environ.get("D2LPAR_DATA")
    if root:
        there = root == "synthetic" or Path(root).expanduser().is_dir()
        text = f"D2LPAR_DATA names {root}" + ("" if there else ", which does not exist")
        return Fact("data", text, "" if there else "put Fashion-MNIST there or unset D2LPAR_DATA")
    if download.is_complete(download.cache_folder()):
        return Fact("data", "Fashion-MNIST is in the cache")
    return Fact(
        "data", "Fashion-MNIST is fetched at first use; offline, pictures are drawn instead"
    )


def _devices() -> Fact:
    """What virtual GPUs would simulate."""
    try:
        machine = machines.machine(os.environ.get("D2LPAR_MACHINE") or None)
    except ValueError as error:
        return Fact("simulated", str(error), "correct D2LPAR_MACHINE or unset it")
    kind = os.environ.get("D2LPAR_DEVICES")
    if kind and kind not in ("virtual", "real"):
        remedy = "set it to 'virtual' or 'real', or unset it"
        return Fact("simulated", f"D2LPAR_DEVICES is {kind!r}", remedy)
    return Fact(
        "simulated", f"virtual GPUs are those of {machine.name} unless a lesson names others"
    )


def _visible() -> list[Fact]:
    """What D2LPAR_VISIBLE_DEVICES shows, if it is set, and whether it was set too late."""
    facts = [Fact("visible", f"{VISIBLE} for virtual GPUs")] if VISIBLE.text is not None else []
    if VISIBLE.is_ignored:
        text = f"{VISIBLE.name} was changed after the first virtual GPU, and is ignored"
        facts.append(Fact("visible", text, "set it before, and start Python anew"))
    return facts
