"""What this machine reaches: kept in a file, and a machine to simulate."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...timeline.inputs import NotNegative, checked
from .. import json_dataclass
from ..hardware import Accelerator, Host, Link, Machine
from . import report
from .readings import Reading

if TYPE_CHECKING:
    from IPython.lib.pretty import RepresentationPrinter

KIND, VERSION = "d2lpar calibration", 1
NAME = "this machine"
NONE_YET = "this machine was not calibrated yet: call d2lpar.calibrate().save(), or in a shell "
NONE_YET += "`d2lpar calibrate`"

UNSTEADY = 0.25  # the spread from which on most readings are not worth much
NOT_ALONE = "Other programs kept cores busy meanwhile: calibrate again when it is quiet."


@dataclass(frozen=True)
class CalibratedGpu:
    """A real GPU that was calibrated: its properties, and how many there are like it."""

    device: str
    name: str
    memory_bytes: int
    multiprocessors: int | None
    count: int
    peer_access: bool


@dataclass(frozen=True, repr=False)
class Calibration:
    """Readings of the CPU of one machine, and of its first GPU if it has any.

    `when` is a UTC time in ISO 8601; `cores` are those that the process could use, `threads`
    those that torch computed with; `seconds` is how long measuring took.
    """

    when: str
    processor: str
    cores: int
    threads: int
    memory_bytes: int
    torch_version: str
    seconds: float
    readings: tuple[Reading, ...]
    gpu: CalibratedGpu | None = None

    def __post_init__(self) -> None:
        for probe, case in (("matmul", "float32"), ("memory", "copy"), ("dispatch", "view")):
            if not self.of(probe, case, device="cpu"):
                raise ValueError(
                    f"a calibration needs a reading of {probe}, {case} on the CPU: calibrate() "
                    "takes all"
                )

    def of(
        self, probe: str, case: str | None = None, *, device: str | None = None
    ) -> list[Reading]:
        """The readings of a probe ("matmul", "memory", "dispatch", "copy", "threads",
        "convolution") by size.

        `case` is a data type for "matmul" and "convolution", "read", "strided read", "copy" or
        "update" for "memory" and so on; None stands for all. `device` is "cpu" or "cuda:0";
        default: the GPU if there is one.
        """
        wanted = device or self.device
        return [
            r
            for r in self.readings
            if r.device == wanted and r.probe == probe and case in (None, r.case)
        ]

    @property
    def device(self) -> str:
        """The device that `machine()` stands for: the GPU if there is one, else the CPU."""
        return self.gpu.device if self.gpu else "cpu"

    def machine(self, n: int | None = None) -> Machine:
        """A machine to simulate, called "this machine", whose accelerators are like the device.

        Its rates are those reached, so the simulator takes them as they are: those of the fastest
        repeat, as in STREAM (McCalpin 1995), for what disturbs a measurement only slows it. `n` is
        the number of accelerators; default: one CPU, or the GPUs that there are. A CPU computes
        while its host waits: what an operation costs besides its work is in `kernel_latency_s`.
        """
        made = self._gpu_machine(self.gpu) if self.gpu else self._cpu_machine()
        return made if n is None else made.with_accelerators(n)

    def accelerator(self, device: str | None = None) -> Accelerator:
        """One device with its fastest repeats ("cpu", "cuda:0").

        Its rates are those of the best kernel of each data type, and so a roof; what products and
        convolutions reach of it is in `reached`.
        """
        device = device or self.device
        gpu = self.gpu if self.gpu and self.gpu.device == device else None
        roofs = self._roofs(device)
        reached = {
            kind: _best(self.of(probe, "float32", device=device), default=roofs["float32"])
            for kind, probe in (("product", "matmul"), ("convolution", "convolution"))
        }
        return Accelerator(
            gpu.name if gpu else self.processor,
            roofs,
            memory_bytes_per_s=self._largest("memory", "copy", device).best,
            memory_bytes=gpu.memory_bytes if gpu else self.memory_bytes,
            kernel_latency_s=self._least_s("dispatch", "kernel" if gpu else "operation", device),
            source=self.source,
            multiprocessors=gpu.multiprocessors if gpu else None,
            measured=True,
            reached={kind: rate / roofs["float32"] for kind, rate in reached.items()},
        )

    @checked
    def attainable(
        self,
        flops: NotNegative,
        nbytes: float,
        dtype: str = "float32",
        *,
        device: str | None = None,
    ) -> float:
        """FLOP/s under the roofline for so many FLOP on so many bytes (Williams et al. 2009).

        The roof is the best of all kernels that were measured. Its slope is that of kernels that
        move as much, from whichever cache they fit in: of reading, copying or updating in place the
        fastest. Raises ValueError for bytes that are not above zero.
        """
        if not nbytes > 0:
            raise ValueError(f"nbytes must be above zero, not {nbytes!r}: count what is moved")
        device = device or self.device
        readings = [r for r in self.of("memory", device=device) if r.case != "strided read"]
        below = max((_moved(r) for r in readings if _moved(r) <= nbytes), default=0)
        slope = max(r.best for r in readings if _moved(r) >= below)
        roofs = self._roofs(device)
        return min(roofs.get(dtype, roofs["float32"]), flops / nbytes * slope)

    def _roofs(self, device: str) -> dict[str, float]:
        """FLOP/s of the best kernel of each data type: a product, or a convolution."""
        rates = self.of("matmul", device=device) + self.of("convolution", device=device)
        return {case: _best([r for r in rates if r.case == case]) for case in _cases(rates)}

    @property
    def source(self) -> str:
        """Where the figures come from, as a machine of the catalogue says it."""
        return f"measured on {self.when[:10]} with torch {self.torch_version}"

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a JSON file, by default the one where "this machine" is looked up; its path."""
        file = Path(path).expanduser() if path is not None else default_path()
        json_dataclass.write(file, self.json)
        return file

    @property
    def json(self) -> str:
        """What a file of it holds."""
        return json_dataclass.text(KIND, VERSION, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Calibration:
        """Read what `save` wrote. Raises ValueError that names the file and what is wrong."""
        file = Path(path).expanduser() if path is not None else default_path()
        if path is None and not file.exists():
            raise ValueError(f"{NONE_YET} ({file} does not exist)")
        found = json_dataclass.read(file)
        if found.get("kind") != KIND:
            raise ValueError(
                f"{file}: the field 'kind' must be {KIND!r}, not {found.get('kind')!r}"
            )
        return json_dataclass.build(cls, found, file, VERSION)

    def __repr__(self) -> str:
        return f"<Calibration of {self.processor}, {self.when}, {len(self.readings)} readings>"

    def __str__(self) -> str:
        head = [
            f"{self.processor}, {self.cores} hardware threads, {self.threads} used, "
            f"{self.memory_bytes / 1e9:.1f} GB; torch {self.torch_version}; "
            f"measured {self.when} in {self.seconds:.1f} s"
        ]
        if self.gpu:
            head.append(
                f"{self.gpu.count} x {self.gpu.name}, {self.gpu.memory_bytes / 1e9:.1f} GB each"
            )
        head.append("median ± half the distance between the quartiles")
        if self._was_disturbed():
            head.append(NOT_ALONE)
        return "\n".join([*head, *report.lines(self.readings)])

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def _was_disturbed(self) -> bool:
        """Whether readings vary a lot, or more threads were slower, as where a core is taken."""
        by_threads = self.of("threads", device="cpu")
        slower = bool(by_threads) and by_threads[-1].best < by_threads[0].best
        return slower or statistics.median(r.spread for r in self.readings) > UNSTEADY

    # --- as a machine -----------------------------------------------------------------------

    def _cpu_machine(self) -> Machine:
        copy = self._link("memory copy", "pageable", "cpu")
        return Machine(
            NAME,
            (self.accelerator("cpu"),),
            self._host("cpu", dispatch_s=0.0),
            host_link=copy,
            peer=copy,
            source=self.source,
        )

    def _gpu_machine(self, gpu: CalibratedGpu) -> Machine:
        device = gpu.device
        links = [self._link("host link", f"pinned {way} device", device) for way in ("to", "from")]
        return Machine(
            NAME,
            (self.accelerator(),) * gpu.count,
            self._host(device, dispatch_s=self._least_s("dispatch", "operation", device)),
            host_link=min(links, key=lambda link: link.bytes_per_s),
            peer=self._link("peer link", "to peer", device) if gpu.peer_access else None,
            source=self.source,
        )

    def _host(self, device: str, *, dispatch_s: float) -> Host:
        return Host(
            self.processor,
            dispatch_s=dispatch_s,
            view_s=self._least_s("dispatch", "view", device),
            source=self.source,
            cores=self.cores,
            flops_per_s=self.accelerator("cpu").rate("float32"),
            memory_bytes_per_s=self.accelerator("cpu").memory_bytes_per_s,
        )

    def _link(self, name: str, case: str, device: str) -> Link:
        return Link(
            name,
            latency_s=self._least_s("copy", f"{case}, latency", device),
            bytes_per_s=self._largest("copy", case, device).best,
            source=self.source,
            measured=True,
        )

    def _least_s(self, probe: str, case: str, device: str) -> float:
        return self._largest(probe, case, device).best

    def _largest(self, probe: str, case: str, device: str) -> Reading:
        """The reading of the largest size, which no cache helps."""
        found = self.of(probe, case, device=device)
        if not found:
            raise ValueError(
                f"this calibration lacks a reading of {probe}, {case} on {device}: calibrate() "
                "takes all"
            )
        return max(found, key=lambda reading: reading.size)


def default_path() -> Path:
    """The file of the calibration of this machine, in the user's cache."""
    import platformdirs

    return platformdirs.user_cache_path("d2lpar", appauthor=False) / "calibration.json"


def _best(readings: list[Reading], default: float | None = None) -> float:
    """The highest rate of some readings; `default` if there are none."""
    found = [reading.best for reading in readings]
    return max(found) if found or default is None else default


def _moved(reading: Reading) -> int:
    """Bytes that a pass over a working set moves: what is written was read, too."""
    return reading.size if reading.case == "read" else 2 * reading.size


def _cases(readings: list[Reading]) -> list[str]:
    return list(dict.fromkeys(reading.case for reading in readings))
