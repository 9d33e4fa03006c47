"""What a run took: a summary to read, and a report for other programs.

The report is one JSON object. Its keys, in version 1 (times are simulated seconds unless the name
says otherwise, sizes are bytes):

- `version`: 1
- `program`: what was started, as a text; `arguments`: a list of texts
- `machine`: the simulated machine's name, and `machine_gpus`, `machine_nodes`: how many it has
- `ranks`, `nodes`, `gpus`: how many the program was given
- `status`: the exit status (see `limits`); `error`: null, or the message of what failed
- `restarts`: how often all ranks have started again (torchrun's `--max-restarts`)
- `simulated_s`: until the last work of hosts and devices; `wall_s`: what it took really, and
  `values_s`: how much of that went into computing values (next to nothing with `--shapes-only`)
- `loader_s`: what data loaders took of this machine's processors, which is not in simulated times;
  `loader_workers`: the most workers that one of them had
- `uncertainty`: null, or the share by which simulated times of such runs are typically off (0.2 is
  20 %)
- `steps`: updates of the optimizer that makes most; `ms_per_step`: null, or simulated milliseconds
  (the median between two of its updates)
- `devices`: a list; each has `device` ("cuda:0"), `busy_s` (computing), `communicating_s`,
  `exposed_communication_s` (of that, while nothing was computed), `waiting_for_host_s`,
  `waiting_for_others_s` (for other ranks, streams, links), `idle_s` (after its last work),
  `peak_memory_bytes` (without those of ranks that a failure has ended), `twice_the_batch_bytes`
  (null, or what its tensors would occupy at most with twice the batch), and `memory_bytes` (what it
  has)
- `hazards`: null if they were not looked for, else a list of texts
- `syncs`: a list of what made hosts wait for devices; each has `call`, `place`, `count`, `seconds`,
  those of all ranks together
- `unknown_reads`: how often the program has read what `--shapes-only` does not compute: NaN, or 0
- `advice`: what would make steps quicker, simulated by a replay of the second half of them, or of
  the last of these; each has `words`, `times` (as fast, for as much work), `bound`: "", "at least"
  or "at most", and `again`: "", or what `--try` has to be told that runs the program with that
  change
- `tried`: what `--try` has run, the run itself first; each has `change`, as it was asked for (""
  for the run itself), `machine`, `status`, `error`, `seconds` (simulated, of a step, or of a run
  without steps), `times` (as fast as the run itself), `peak_bytes` (of the fullest GPU) and
  `usd_per_1000` (null, or what its GPUs cost on demand for 1,000 such steps, or runs)
- `broken_limits`: a list of texts, empty if none was broken
- `unwritten`: a list of texts, empty if every file could be written
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, field

from ...timeline import Timeline
from ...timeline.formatting import bytes_text, seconds_text, table
from .left_out import left_out
from .shapes_advice import advice

VERSION = 1
PICTURES = ("blocks", "blocks_of", "blocks_s", "no_advice", "timeline")  # not for other programs
SHOWN = 3  # places that made the host wait
_DEVICE = re.compile(r"(\w+):\d+")  # "cuda:1" in the name of a call
GIVES = "Simulated: {gains}"
NOTHING = "Simulated: no change that was tried gives 5 %"
TOO_LARGE = "twice the batch does not fit: up to {needed} of {there}"
NO_GPU = "no GPU was used: what the CPU computes, and sends over gloo, takes no simulated time"


@dataclass(frozen=True)
class DeviceReport:
    """What one device did: see the schema above."""

    device: str
    busy_s: float
    communicating_s: float
    exposed_communication_s: float
    waiting_for_host_s: float
    waiting_for_others_s: float
    idle_s: float
    peak_memory_bytes: int
    twice_the_batch_bytes: int | None
    memory_bytes: int

    @property
    def was_used(self) -> bool:
        """Whether it had anything to do, or to hold."""
        return bool(self.peak_memory_bytes or self.busy_s or self.communicating_s)

    @property
    def holds_twice_the_batch(self) -> bool:
        """Whether twice the batch fits, as far as is known."""
        return (self.twice_the_batch_bytes or 0) <= self.memory_bytes


@dataclass(frozen=True)
class SyncReport:
    """What made hosts wait at one place."""

    call: str
    place: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Gain:
    """What a change would give: `times` as fast a run, for as much work; `bound` is "at least", or
    "at most", or empty. With `--try` and `again` the program is run with it."""

    words: str
    times: float
    bound: str = ""
    again: str = ""

    def __str__(self) -> str:
        how = f" (--try {self.again})" if self.again else ""
        return f"{self.times:.2f}x {self.bound}".strip() + f" by {self.words}{how}"


@dataclass(frozen=True)
class Trial:
    """A run with a change: see the schema above."""

    change: str
    machine: str
    status: int
    error: str | None
    seconds: float
    times: float
    peak_bytes: int
    usd_per_1000: float | None


@dataclass
class RunReport:
    """A run: see the schema above."""

    program: str
    arguments: list[str]
    machine: str
    machine_gpus: int
    machine_nodes: int
    ranks: int
    nodes: int
    gpus: int
    status: int = 0
    error: str | None = None
    simulated_s: float = 0.0
    wall_s: float = 0.0
    values_s: float = 0.0
    loader_s: float = 0.0
    loader_workers: int = 0
    uncertainty: float | None = None
    steps: int = 0
    ms_per_step: float | None = None
    devices: list[DeviceReport] = field(default_factory=list)
    hazards: list[str] | None = None
    syncs: list[SyncReport] = field(default_factory=list)
    unknown_reads: int = 0
    broken_limits: list[str] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)
    restarts: int = 0
    advice: list[Gain] = field(default_factory=list)
    tried: list[Trial] = field(default_factory=list)
    blocks: dict[str, str] = field(default_factory=dict)
    blocks_of: str = ""  # what they show, which takes `blocks_s`
    blocks_s: float = 0.0
    no_advice: str = ""  # why there is none, where that needs words
    timeline: Timeline | None = None  # of a run that is to be shared
    version: int = VERSION

    @property
    def json(self) -> str:
        """What a file of it holds."""
        content = {name: value for name, value in vars(self).items() if name not in PICTURES}
        return json.dumps(content, indent=1, default=asdict) + "\n"

    def __str__(self) -> str:
        lines = [
            f"simulated on {self.machine}: {self.took}, in {self.wall_s:.1f} s of this machine's "
            "time"
        ]
        advised = advice(self.values_s, self.wall_s)
        if advised:
            lines[0] += f", {advised}"
        lines += self._assumptions()
        if self.ms_per_step is not None:
            lines.append(f"{self.steps} steps, {self.ms_per_step:.3f} ms per step (simulated)")
        if self.restarts:
            lines.append(f"all ranks started again {self.restarts} times after a failure")
        used = any(d.was_used for d in self.devices)
        lines += self._table() if used else [NO_GPU]
        if used:
            spent = (self.loader_s, self.loader_workers, self.ranks, self.simulated_s)
            lines.append(left_out(*spent))
        lines += self._findings()
        lines += self._blocks()
        return "\n".join(lines)

    @property
    def of_one_s(self) -> float:
        """Simulated seconds of a step; of all, if there are no steps."""
        return self.simulated_s if self.ms_per_step is None else self.ms_per_step / 1e3

    @property
    def took(self) -> str:
        """Simulated time, with how far it may be off, where that was asked for."""
        off = "" if self.uncertainty is None else f" (± {self.uncertainty:.0%})"
        return f"{seconds_text(self.simulated_s)}{off}"

    def _assumptions(self) -> list[str]:
        """What is simulated otherwise than the program has asked for."""
        lines = []
        if self.nodes > self.machine_nodes:
            lines.append(
                f"no network: all {self.gpus} GPUs are in {self.machine}, as if it had so many; "
                f"name a cluster, as --machine {self.nodes}x8x-a100-nvswitch-200gbe"
            )
        elif self.gpus > self.machine_gpus:
            lines.append(f"{self.machine} has {self.machine_gpus} GPUs: simulated with {self.gpus}")
        if self.unknown_reads:
            lines.append(
                f"--shapes-only: no values, so what the program read {self.unknown_reads} times is "
                "NaN (0 in integers)"
            )
        return lines

    def _table(self) -> list[str]:
        rows: list[tuple[str, ...]] = [
            ("GPU", "busy", "communicating", "waits for host", "for others", "peak memory")
        ]
        for device in self.devices:
            times = (
                device.busy_s,
                device.communicating_s,
                device.waiting_for_host_s,
                device.waiting_for_others_s,
            )
            shares = [f"{seconds / (self.simulated_s or 1.0):.1%}" for seconds in times]
            rows.append((self._place(device), *shares, self.peak_of(device)))
        return table(rows, first=str.rjust)

    def peak_of(self, device: DeviceReport) -> str:
        """What tensors on a device took at most. Ranks that a failure has ended say nothing of it:
        where no other has used the device, nothing is known."""
        peak_bytes = device.peak_memory_bytes
        return "" if self.status and not peak_bytes else bytes_text(peak_bytes)

    def _place(self, device: DeviceReport) -> str:
        """What the ranks of a node call a device, and which node that is."""
        if self.nodes == 1:
            return device.device
        kind, _, number = device.device.partition(":")
        node, local = divmod(int(number), self.gpus // self.nodes)
        return f"node {node} {kind}:{local}"

    def _blocks(self) -> list[str]:
        if not self.blocks:
            return [self.no_advice] if self.no_advice else []
        width = max(map(len, self.blocks))
        rows = [f"{name:>{width}}  {row}" for name, row in self.blocks.items()]
        return [
            f"computing in {self.blocks_of}, {seconds_text(self.blocks_s)}:",
            *rows,
            self.advised,
        ]

    @property
    def advised(self) -> str:
        """What the GPUs do most of the time, and what would help, in a line."""
        part, words = _most_of(self.devices, self.simulated_s)
        replayed = [gain for gain in self.advice if not gain.again]
        gains = "; ".join(map(str, [*replayed[:SHOWN], *(g for g in self.advice if g.again)]))
        said = [
            f"{part:.0%} of the time {words}. {GIVES.format(gains=gains) if gains else NOTHING}"
        ]
        for device in self.devices:
            if not device.holds_twice_the_batch:
                needed = bytes_text(device.twice_the_batch_bytes or 0)
                said.append(TOO_LARGE.format(needed=needed, there=bytes_text(device.memory_bytes)))
                break
        return "; ".join(said)

    def _findings(self) -> list[str]:
        lines = []
        if self.hazards is not None:
            lines.append(f"hazards: {len(self.hazards) or 'none'}")
            lines += [f"  {hazard}" for hazard in self.hazards]
        if self.syncs:
            count = sum(sync.count for sync in self.syncs)
            of_all = f" (on all {self.ranks} ranks)" if self.ranks > 1 else ""
            lines.append(f"calls that made a host wait for a device{of_all}: {count}, most at")
            lines += [
                f"  {sync.place}: {sync.call}, {sync.count} times, {seconds_text(sync.seconds)}"
                for sync in _by_kind_of_device(self.syncs)[:SHOWN]
            ]
        return lines


def _most_of(devices: list[DeviceReport], simulated_s: float) -> tuple[float, str]:
    """What the GPUs do most of the time, in words, and for which part of it."""
    used = [device for device in devices if device.was_used]
    sums = {
        "the GPUs compute": sum(d.busy_s for d in used),
        "the GPUs wait for the host": sum(d.waiting_for_host_s for d in used),
        "the GPUs only communicate": sum(d.exposed_communication_s for d in used),
        "the GPUs wait for one another": sum(d.waiting_for_others_s for d in used),
    }
    words = max(sums, key=lambda each: sums[each])
    return sums[words] / (len(used) * simulated_s or 1.0), words


def _by_kind_of_device(syncs: list[SyncReport]) -> list[SyncReport]:
    """The same for several devices is one entry: each rank does it for its own."""
    groups: dict[tuple[str, str], list[SyncReport]] = defaultdict(list)
    for sync in syncs:
        groups[sync.place, _DEVICE.sub(r"\1", sync.call)].append(sync)
    found = [
        SyncReport(
            call if len(each) > 1 else each[0].call,
            place,
            sum(sync.count for sync in each),
            sum(sync.seconds for sync in each),
        )
        for (place, call), each in groups.items()
    ]
    return sorted(found, key=lambda sync: -sync.seconds)
