"""The machines that can be simulated: their parts, in units that the names say.

Every figure of the catalogue is the one that its source prints; what a program reaches of it is
the business of the efficiencies in `d2lpar.vgpu.cost`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace

TERA = 1e12
GIGA = 1e9
MICRO = 1e-6


@dataclass(frozen=True)
class Accelerator:
    """One GPU: peak arithmetic by data type, and its own memory."""

    name: str
    flops_per_s: dict[str, float]
    memory_bytes_per_s: float
    memory_bytes: int
    kernel_latency_s: float = 3 * MICRO
    source: str = ""

    def rate(self, dtype: str) -> float:
        """Peak FLOP/s for a data type ("float32"); others than its source has run as fp32."""
        return self.flops_per_s.get(dtype, self.flops_per_s["float32"])


@dataclass(frozen=True)
class Link:
    """One direction of a connection: a copy takes `latency_s + bytes / bytes_per_s`."""

    name: str
    latency_s: float
    bytes_per_s: float
    source: str = ""

    def seconds(self, nbytes: int) -> float:
        return self.latency_s + nbytes / self.bytes_per_s


@dataclass(frozen=True)
class Host:
    """What the processor needs to queue work: `dispatch_s` for a kernel, `view_s` for a view."""

    name: str
    dispatch_s: float = 7 * MICRO
    view_s: float = 2 * MICRO
    source: str = "assumed, not measured: the order of magnitude of eager PyTorch on a server"


@dataclass(frozen=True)
class Machine:
    """Accelerators on a host. `peer` joins any two of them directly; None sends through the host.

    Every accelerator has a link of its own to the host (`host_link`) and, with `peer`, a port of
    its own; both are full duplex.
    """

    name: str
    accelerators: tuple[Accelerator, ...]
    host: Host
    host_link: Link
    peer: Link | None = None
    source: str = ""
    notes: str = field(default="", compare=False)

    def with_accelerators(self, count: int) -> Machine:
        """The same machine with `count` accelerators: its own, then more like its first."""
        if count < 1:
            raise ValueError(f"a machine needs at least one accelerator, not {count}")
        if count == len(self.accelerators):
            return self
        more = (self.accelerators[0],) * (count - len(self.accelerators))
        return replace(self, accelerators=(self.accelerators + more)[:count])

    def is_like(self, other: Machine) -> bool:
        """Whether the two differ in the number of their accelerators at most."""
        count = max(len(self.accelerators), len(other.accelerators))
        return self.with_accelerators(count) == other.with_accelerators(count)

    def with_peer(self, peer: Link | None) -> Machine:
        """The same machine with another link between its accelerators."""
        return replace(self, peer=peer)


V100 = Accelerator(
    "V100-SXM2-16GB",
    {"float32": 15.7 * TERA, "float16": 125 * TERA, "float64": 7.8 * TERA},
    memory_bytes_per_s=900 * GIGA,
    memory_bytes=16 * 10**9,
    source="NVIDIA Tesla V100 datasheet (2018)",
)
A100 = Accelerator(
    "A100-SXM4-40GB",
    {
        "float32": 19.5 * TERA,
        "float16": 312 * TERA,
        "bfloat16": 312 * TERA,
        "float64": 9.7 * TERA,
    },
    memory_bytes_per_s=1555 * GIGA,
    memory_bytes=40 * 10**9,
    source="NVIDIA A100 Tensor Core GPU datasheet (2021)",
)

PCIE3_X16 = Link("PCIe 3.0 x16", 5 * MICRO, 15.75 * GIGA, "PCI Express base specification 3.0")
PCIE4_X16 = Link("PCIe 4.0 x16", 5 * MICRO, 31.5 * GIGA, "PCI Express base specification 4.0")
NVLINK2_PAIR = Link("NVLink 2, one link", 5 * MICRO, 25 * GIGA, "NVIDIA V100 white paper (2017)")
NVSWITCH_V100 = Link(
    "NVLink 2 on NVSwitch", 5 * MICRO, 150 * GIGA, "NVIDIA V100 white paper (2017)"
)
NVSWITCH_A100 = Link(
    "NVLink 3 on NVSwitch", 5 * MICRO, 300 * GIGA, "NVIDIA A100 white paper (2020)"
)

XEON = Host("Xeon server")

CATALOGUE = {
    machine.name: machine
    for machine in (
        Machine(
            "2x-v100-textbook",
            (V100,) * 2,
            XEON,
            PCIE3_X16,
            NVLINK2_PAIR,
            source="d2l.ai does not name its box; 13.9 TFLOP/s in fp32 is 89 % of this card's peak",
            notes="SXM2 is assumed: the cloud that the textbook is built on has no other",
        ),
        Machine("8x-v100-pcie", (V100,) * 8, XEON, PCIE3_X16, PCIE3_X16, source="assumed"),
        Machine("16x-v100-nvswitch", (V100,) * 16, XEON, PCIE3_X16, NVSWITCH_V100, source="DGX-2"),
        Machine("8x-a100-nvswitch", (A100,) * 8, XEON, PCIE4_X16, NVSWITCH_A100, source="DGX A100"),
    )
}
DEFAULT = "2x-v100-textbook"


def machine(which: str | Machine | None = None) -> Machine:
    """A machine by its catalogue name, or as it is; None means the textbook's.

    Raises ValueError for an unknown name, with the names that are close.
    """
    if isinstance(which, Machine):
        return which
    name = DEFAULT if which is None else which
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=3, cutoff=0.3) or list(CATALOGUE)
        raise ValueError(f"no machine is called {name!r}; there is {', '.join(map(repr, close))}")
    return CATALOGUE[name]
