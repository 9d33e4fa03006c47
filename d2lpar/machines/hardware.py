"""The parts of a machine: accelerators, links, hosts, in units that the names say.

Rates are those of a source, usually peaks; what a program reaches of them is the business of
`d2lpar.vgpu`. Where they were measured, they are what a program reaches, and say so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..timeline.inputs import (
    Count,
    Fraction,
    Index,
    NotNegative,
    Positive,
    check_fields,
    checked,
    require,
)

TERA = 1e12
GIGA = 1e9
MICRO = 1e-6
FLOAT8 = "float8"  # how the names of its two types begin: all have one rate
FLOAT64 = "float64"
MOST_ACCELERATORS = 2**16  # of a machine; they are objects, each
# Of torch's data types those that are computed in fp32 where a card's source gives no rate.
_AS_FLOAT32 = {
    *("float32", "tfloat32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}


def _are_slots(numbers: tuple[int, ...], count: int) -> bool:
    """Whether these are `count` different places."""
    return len(numbers) == len(set(numbers)) == count and min(numbers) >= 0


def _shortened(slots: tuple[int, ...]) -> tuple[int, ...] | None:
    """None if these are the first places, in order."""
    return None if slots == tuple(range(len(slots))) else slots


@dataclass(frozen=True)
class Accelerator:
    """One GPU: peak dense arithmetic by data type, and its own memory.

    "float16" and "bfloat16" are the rates of tensor cores where the card has them, "tfloat32" is
    that of fp32 matrices which may be rounded to TF32. `measured` says that the rates are what
    programs reached and no peaks. `architecture` ("hopper", "" if unknown) says how its maker's
    kernels are built, `l2_bytes` is the cache that all multiprocessors share, `power_w` the watts
    that the board may draw (None: as the board that its architecture's figures were measured on).
    Where the rates were measured, `reached` is the share of that of "float32" that a "product"
    and a "convolution" reach: all, if it is not said. Where they are peaks, it may hold the share
    of its bandwidth that streaming through "memory" was measured to reach.
    """

    name: str
    flops_per_s: dict[str, float] = field(hash=False)
    memory_bytes_per_s: Positive
    memory_bytes: Count
    kernel_latency_s: NotNegative = 3 * MICRO
    source: str = ""
    multiprocessors: Count | None = None
    measured: bool = False
    architecture: str = ""
    l2_bytes: Count | None = None
    power_w: Positive | None = None
    reached: dict[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if "float32" not in self.flops_per_s:
            raise ValueError(f"flops_per_s of {self.name} must hold a rate for 'float32'")
        for dtype, rate in self.flops_per_s.items():
            require(f"{self.name} in {dtype}", Positive, flops_per_s=rate)
        for kind, share in self.reached.items():
            require(f"{self.name} for a {kind}", Fraction, reached=share)

    @property
    def context_bytes(self) -> int:
        """What CUDA itself takes of the memory for a process, 3.8 MiB a multiprocessor, and of a
        device that somebody has made up a twentieth at most; none is known of other makers'.

        From nine messages of out-of-memory, which tell what the process has and what PyTorch does:
        128 to 137 MiB on T4 (40 multiprocessors; of two messages Colab's GPU, not named), 210 on
        RTX A4000 (48), 501 on A100 (108), 473 and 504 on RTX 4090 (128), 429 on RTX 6000 Ada (142),
        595 on RTX 5090 (170); a tenth, of 2.1 GiB on an RTX 4090, was left out. None is of an H100.
        github.com: CatVTON issue 133, tribev2 28, SA-ConvLSTM-Pytorch 22, VGGT-Long 6, CoSeR 10,
        Phidias-Diffusion 8, flux-webui 11, MTVCrafter 21, Wan2.1 465 (left out: VGen 104).
        """
        if self.architecture.startswith("cdna"):
            return 0
        return min(round(3.8 * 2**20 * (self.multiprocessors or 0)), self.memory_bytes // 20)

    def rate(self, dtype: str) -> float:
        """FLOP/s for a data type ("float32"); others than its source has run as fp32.

        Raises ValueError for a name that no data type has.
        """
        return self.flops_per_s[self.rated_as(dtype)]

    def rated_as(self, dtype: str) -> str:
        """The data type whose rate one has: itself, any of fp8 for one of fp8, or "float32".

        Raises ValueError for a type that there is not.
        """
        if not isinstance(dtype, str):  # asked for each kernel: cheaper than `checked`
            require(self.name, str, dtype=dtype)
        if dtype in self.flops_per_s:
            return dtype
        if dtype.startswith(FLOAT8):
            return next((name for name in self.flops_per_s if name.startswith(FLOAT8)), "float32")
        if dtype not in (*_AS_FLOAT32, FLOAT64):
            raise ValueError(
                f"no data type is called {dtype!r}: take one of {', '.join(self.flops_per_s)}"
            )
        return "float32"

    def lacks(self, dtype: str) -> bool:
        """Whether it has no rate for fp64 or fp8, for which that of no other type can stand.

        Rates that were measured stand for all types.
        """
        rated_as = self.rated_as(dtype)
        own = dtype == FLOAT64 or dtype.startswith(FLOAT8)
        return own and not self.measured and rated_as == "float32"

    @checked
    def ridge_point(self, dtype: str = "float32") -> float:
        """FLOP a byte from which on arithmetic, not memory, limits (Williams et al. 2009).

        Raises ValueError for fp8 or fp64 on an accelerator that has no rate for it.
        """
        self._check_rate(dtype)
        return self.rate(dtype) / self.memory_bytes_per_s

    @checked
    def attainable(self, intensity: NotNegative, dtype: str = "float32") -> float:
        """FLOP/s under the roofline for `intensity` FLOP a byte (Williams et al. 2009).

        Raises ValueError for fp8 or fp64 on an accelerator that has no rate for it.
        """
        self._check_rate(dtype)
        return min(self.rate(dtype), intensity * self.memory_bytes_per_s)

    def _check_rate(self, dtype: str) -> None:
        if self.lacks(dtype):
            which = "Ada and Hopper" if dtype.startswith(FLOAT8) else "Kepler"
            raise ValueError(
                f"{self.name} has no rate for {dtype}: take one of {', '.join(self.flops_per_s)}, "
                f"or a GPU from {which} on, such as that of 8x-h100-nvswitch"
            )


@dataclass(frozen=True)
class Link:
    """One direction of a connection: a copy takes `latency_s + bytes / payload_bytes_per_s`.

    `bytes_per_s` is the rate of the wire; the data of a copy are a share of what goes over it, the
    rest are headers and acknowledgements. `measured` says that the rate is what copies reached.
    """

    name: str
    latency_s: NotNegative
    bytes_per_s: Positive
    source: str = ""
    measured: bool = False
    payload_share: Fraction = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def payload_bytes_per_s(self) -> float:
        """Bytes of data a second that a long copy reaches."""
        return self.bytes_per_s * self.payload_share

    @checked
    def seconds(self, nbytes: NotNegative) -> float:
        """How long a copy of so many bytes takes."""
        return self.latency_s + nbytes / self.payload_bytes_per_s


@dataclass(frozen=True)
class Host:
    """The processor: what it needs to queue work, and where they are known, its own rates.

    Eager programs. `dispatch_s` is for a kernel that Python asks for, as a loop over one operation
    shows it, `view_s` for a view. `layer_s` comes to a kernel that the forward pass of a module
    asks for: the code of a network is another at each line, and waits for the caches. `autograd_s`
    comes to one for which forward makes a node of autograd's graph, and `node_s` to one of the
    backward pass, whose engine finds the node, accumulates and frees (in C++, yet a node costs it
    as much as Python a call). An operation of several kernels launches each further one in
    `launch_s`. `backward_s` is a backward pass itself: hand-over to the engine's thread and back.
    cuDNN takes `convolution_s` more for each call, a collective or send `collective_s`, one that
    DTensor asks for as a function, with what waits for it, `functional_s`. A call of
    an `nn.Module` takes `module_s`, and `attribute_s` for each parameter and buffer that it looks
    up; `nn.DataParallel` copies each module for each replica in `replica_s`; an optimizer takes
    `parameter_s` a parameter; a checkpoint, whose block is computed again, `checkpoint_s`.

    Programs that `torch.compile` has made: `compiled_s` for a kernel of Triton, `compiled_call_s`
    for a call, and `guard_s` for each module in it; a whole CUDA graph takes `graph_s`. To ask the
    driver whether something is done takes `query_s`.

    `flops_per_s` is in fp32 on all cores; `copy_bytes_per_s` is what one core copies from memory
    to memory (None: not known). Sources of the defaults are in `HOST_SOURCES`.
    """

    name: str
    dispatch_s: NotNegative = 8 * MICRO
    view_s: NotNegative = 2 * MICRO
    source: str = "dispatch assumed: the order of magnitude of eager PyTorch"
    cores: Count | None = None
    flops_per_s: Positive | None = None
    memory_bytes_per_s: Positive | None = None
    copy_bytes_per_s: Positive | None = None
    layer_s: NotNegative = 0.0
    autograd_s: NotNegative = 0.8 * MICRO
    node_s: NotNegative = 0.8 * MICRO
    launch_s: NotNegative = 2.7 * MICRO
    backward_s: NotNegative = 40 * MICRO
    convolution_s: NotNegative = 29 * MICRO
    module_s: NotNegative = 1.2 * MICRO
    attribute_s: NotNegative = 0.8 * MICRO
    replica_s: NotNegative = 45 * MICRO
    collective_s: NotNegative = 0.0
    functional_s: NotNegative = 100 * MICRO
    checkpoint_s: NotNegative = 96 * MICRO
    parameter_s: NotNegative = 1.0 * MICRO
    compiled_s: NotNegative = 6 * MICRO
    compiled_call_s: NotNegative = 12 * MICRO
    guard_s: NotNegative = 0.9 * MICRO
    graph_s: NotNegative = 15 * MICRO
    query_s: NotNegative = 1.0 * MICRO

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def at_speed(self, factor: Positive) -> Host:
        """The same with cores `factor` times as fast: each of its costs takes so much less."""
        costs: dict[str, Any] = {name: cost / factor for name, cost in self.costs_s.items()}
        return replace(self, **costs)

    @property
    def costs_s(self) -> dict[str, float]:
        """Its costs, by name, in seconds."""
        names = [f.name for f in fields(self) if f.name.endswith("_s") and "_per_" not in f.name]
        return {name: getattr(self, name) for name in names}


# What the defaults of a Host come from. "Measured by us" is on one AMD EPYC core, Python 3.11 and
# PyTorch 2.15, with tensors of one element on the CPU: what is the framework's own.
HOST_SOURCES = {
    "dispatch_s": "8 µs an addition on A100 (flagos-ai/Torch-FL pull request 27); 4.3 to 10.4 µs "
    "an operation on a desktop (mli/transformers-benchmarks)",
    "layer_s": "none: the textbook's host; for those of servers see `catalogue.hosts`",
    "autograd_s": "measured by us: 1.8 against 1.0 µs",
    "node_s": "measured by us: a node takes 2.9 µs, its operation with it, in a graph of additions",
    "launch_s": "the driver alone: 2.7 µs (ahrefs/ocannl issue 488)",
    "backward_s": "measured by us: 17 µs where no other thread takes part; handing over to a "
    "thread and back takes 41 µs in Python, which has a lock, taken as about half that in C++",
    "convolution_s": "of the order of what is fitted for servers: see `catalogue.hosts`",
    "replica_s": "measured by us: torch.nn.parallel.replicate without its broadcasts, ResNet-18 of "
    "62 modules for 2 and 4 devices",
    "collective_s": "none: the textbook's host; for those of servers see `catalogue.hosts`",
    "functional_s": "measured by us: all_reduce and wait_tensor of _functional_collectives on a "
    "group that sends nothing, beside dist.all_reduce: 132 to 140 against 5 µs, on a core on which "
    "an addition takes 1.33 to 1.36 µs",
    "checkpoint_s": "measured by us: torch.utils.checkpoint with use_reentrant, which keeps the "
    "states of random numbers and begins a backward pass within the other",
    "module_s": "measured by us: 0.75 µs for nn.Identity, 1.3 µs for nn.ReLU above torch.relu",
    "attribute_s": "measured by us: 1.5 µs for the two of nn.Linear, 5.4 µs for nn.BatchNorm2d",
    "parameter_s": "measured by us: _init_group and grouping take 0.6 µs with SGD, 1.3 with Adam",
    "compiled_s": "the driver, and four calls of Python of 0.8 µs in Inductor's launcher",
    "compiled_call_s": "measured by us: 9 µs for guards and frame, 12 with AOTAutograd's wrappers",
    "guard_s": "measured by us: 39 µs for 32 linear layers, 14 for 4",
    "graph_s": "15 µs, whatever the number of kernels (ahrefs/ocannl issue 488)",
    "query_s": "1.0 µs a cudaEventQuery, V100 and Ryzen 7 3700 (harrism/cuda_event_benchmark)",
}


@dataclass(frozen=True)
class Machine:
    """Accelerators on one host, or on as many as there are nodes.

    `peer` joins any two accelerators of a node directly, each with a port of its own; None sends
    through the host. `host_link` is the way to the host, which `uplink_shared_by` neighbours
    share, as behind a PCIe switch. `network` is one port to the other nodes, which
    `network_shared_by` neighbours share (None: all of a node). `node_size` accelerators make a
    node (None: all are in one). Links are full duplex. `slots` are the places of the accelerators
    in the machine that these are part of (None: the first ones): neighbours are so by their slots.
    `socket_size` neighbours are on one processor's bus (None: all of a node), and `socket_links`
    of `socket_link` join the processors; `gpu_direct` says that the network reads and writes
    GPUs' memory itself.
    """

    name: str
    accelerators: tuple[Accelerator, ...]
    host: Host
    host_link: Link
    peer: Link | None = None
    source: str = ""
    notes: str = field(default="", compare=False)
    uplink_shared_by: Count = 1
    network: Link | None = None
    node_size: Count | None = None
    network_shared_by: Count | None = None
    slots: tuple[int, ...] | None = None
    socket_size: Count | None = None
    socket_link: Link | None = None
    gpu_direct: bool = True
    socket_links: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.accelerators:
            raise ValueError(f"{self.name} must have at least one accelerator")
        if (self.socket_size is None) != (self.socket_link is None):
            raise ValueError(
                f"{self.name} has a socket_size of {self.socket_size} and a socket_link of "
                f"{self.socket_link}: give both, or neither"
            )
        if self.slots is not None and not _are_slots(self.slots, len(self.accelerators)):
            raise ValueError(
                f"slots of {self.name} must be {len(self.accelerators)} whole numbers from 0 on, "
                f"one for each accelerator, not {[*self.slots]}"
            )
        if self.nodes > 1 and self.network is None:
            raise ValueError(
                f"{self.name} has {self.nodes} nodes and no network between them: give it a "
                "network, a Link"
            )

    @property
    def nodes(self) -> int:
        """How many hosts there are."""
        return math.ceil(len(self.accelerators) / self._per_node)

    def node_of(self, accelerator: int) -> int:
        """The number of the node that an accelerator is in."""
        return self._slot(accelerator) // self._per_node

    def uplink_of(self, accelerator: int) -> int:
        """The number of the way to the host that an accelerator uses, counted over all nodes."""
        return self._shared_port(accelerator, self.uplink_shared_by)

    def socket_of(self, accelerator: int) -> int:
        """The number of the processor whose bus an accelerator is on, counted over all nodes."""
        return self._shared_port(accelerator, self.socket_size or self._per_node)

    def network_port_of(self, accelerator: int) -> int:
        """The number of the network port that an accelerator uses, counted over all nodes."""
        return self._shared_port(accelerator, self.network_shared_by or self._per_node)

    @property
    def _per_node(self) -> int:
        return self.node_size or max(len(self.accelerators), 1 + max(self.slots or (0,)))

    def _slot(self, accelerator: int) -> int:
        if not (type(accelerator) is int and accelerator >= 0):  # asked for each rank of thousands
            require(self.name, Index, accelerator=accelerator)
        return accelerator if self.slots is None else self.slots[accelerator]

    def _shared_port(self, accelerator: int, shared_by: int) -> int:
        ports = math.ceil(self._per_node / shared_by)
        node, place = divmod(self._slot(accelerator), self._per_node)
        return node * ports + place // shared_by

    @checked
    def with_accelerators(self, count: int) -> Machine:
        """The same machine with `count` accelerators: its own, then more like its first.

        Raises ValueError for fewer than one.
        """
        if not 1 <= count <= MOST_ACCELERATORS:
            raise ValueError(f"a machine has 1 to {MOST_ACCELERATORS} accelerators, not {count}")
        if count == len(self.accelerators):
            return self
        more = (self.accelerators[0],) * (count - len(self.accelerators))
        slots = None
        if self.slots is not None:
            free = itertools.count(1 + max(self.slots))
            slots = _shortened((*self.slots, *itertools.islice(free, len(more)))[:count])
        return replace(self, accelerators=(self.accelerators + more)[:count], slots=slots)

    @checked
    def only(self, numbers: Sequence[int]) -> Machine:
        """The same machine with these of its accelerators alone, numbered anew in this order.

        They keep their links, and share them with one another as before: see `slots`. Raises
        ValueError for no number, one twice, one that no accelerator has, and for a cluster.
        """
        count = len(self.accelerators)
        if self.nodes > 1:
            raise ValueError(f"{self.name} is a cluster: choose accelerators of one of its nodes")
        chosen = {*itertools.islice(numbers, count + 1)}
        if not chosen or numbers[len(chosen) :] or not chosen <= {*range(count)}:
            shown = numbers if isinstance(numbers, range) else [*numbers]
            raise ValueError(
                f"{self.name} has accelerators 0 to {count - 1}; choose some of them, each once, "
                f"not {shown}"
            )
        return replace(
            self,
            accelerators=tuple(self.accelerators[number] for number in numbers),
            slots=_shortened(tuple(map(self._slot, numbers))),
        )

    @checked
    def of_each_node(self, count: Count) -> Machine:
        """The same cluster with the first `count` accelerators of each node.

        Raises ValueError for more than a node has, and for a part of a machine.
        """
        if self.slots is not None or count > self._per_node:
            raise ValueError(
                f"a node of {self.name} has {self._per_node} accelerators of its own, not {count}"
            )
        accelerators = tuple(a for i, a in enumerate(self.accelerators) if self._place(i) < count)
        return replace(self, accelerators=accelerators, node_size=count)

    def _place(self, accelerator: int) -> int:
        return self._slot(accelerator) % self._per_node

    @checked
    def is_like(self, other: Machine) -> bool:
        """Whether the two differ in the number of their accelerators at most."""
        count = max(len(self.accelerators), len(other.accelerators))
        return self.with_accelerators(count) == other.with_accelerators(count)

    @checked
    def with_peer(self, peer: Link | None) -> Machine:
        """The same machine with another link between its accelerators."""
        return replace(self, peer=peer)

    @checked
    def cluster(
        self,
        nodes: int,
        network: Link,
        *,
        network_shared_by: Count | None = None,
        name: str | None = None,
    ) -> Machine:
        """As many of this machine as `nodes` says, joined by `network`.

        `network` is one port, which `network_shared_by` accelerators share (None: all of a node).
        Raises ValueError for less than one node and for a cluster or a part of a machine.
        """
        require(self.name, Count, nodes=nodes)
        if self.nodes > 1:
            raise ValueError(
                f"{self.name} is a cluster already, of {self.nodes} nodes: make one of a single "
                "machine"
            )
        if self.slots is not None:
            raise ValueError(f"this is a part of {self.name}: make a cluster of the whole")
        if (count := nodes * len(self.accelerators)) > MOST_ACCELERATORS:
            raise ValueError(f"a machine has 1 to {MOST_ACCELERATORS} accelerators, not {count}")
        return replace(
            self,
            name=name or f"{nodes}x{self.name}-{network.name}",
            accelerators=self.accelerators * nodes,
            node_size=len(self.accelerators),
            network=network,
            network_shared_by=network_shared_by,
        )
