"""Timelines as MLCommons' Chakra execution traces, which the network simulator ASTRA-sim replays.

A trace is a file a rank, `run.0.et`, `run.1.et` and so on: a graph whose nodes are what the rank's
host and its devices did, with the dependencies of `dependencies`.

* Computing, copies, and what the host does are COMP_NODE. Attributes: `is_cpu_op`; on devices
  `num_ops` (FLOP), `tensor_size` (bytes moved), `stream`.
* Collectives are COMM_COLL_NODE, with `comm_type`, `comm_size` (bytes that a rank puts in) and
  `pg_name`, the number of its group; the first node, of type METADATA_NODE, lists the ranks of the
  groups as PyTorch's own traces do. A collective whose ranks are not known (one process has all of
  its devices), or are one only, is a COMP_NODE.
* Sends and receives are COMM_SEND_NODE and COMM_RECV_NODE, with `comm_src`, `comm_dst`,
  `comm_size`, and as `comm_tag` the number of the message between these two.

Times are whole microseconds: those of the timeline, rounded, so that a chain of steps is as long as
it was, give or take one. All dependencies are `data_deps`, which is what Chakra's feeder looks at.
ASTRA-sim has all-reduce, all-gather, reduce-scatter, all-to-all and broadcast, and stops at others.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ..dependencies import Step, steps_of
from ..host_processes import numbered, rank_of
from ..spans import Span
from ..whole_file import OutputFile
from . import chakra_schema as schema

MICROS = 1e6
GROUPS_NODE = "## process_group:init ##"  # the name that PyTorch gives it
SHARED = ("all_gather", "gather")  # their bytes are those of all ranks together
Group = tuple[int, ...]


def save(path: str | os.PathLike[str], clock: str, spans: Sequence[Span]) -> list[Path]:
    """Write `path`.0.et and so on, for the ranks that did something on a device; returns them.

    What cannot be written leaves all of these files as they were.

    Raises ValueError if dependencies, or ranks of a group, are not in the timeline; ImportError
    without the library `protobuf`; OSError.
    """
    ranks = _ranks_of(steps_of(spans))
    groups = _groups_of(ranks)
    messages = _messages_of(ranks)
    targets = [Path(f"{os.fspath(path)}.{rank}.et") for rank in ranks]
    with ExitStack() as stack:
        files = [stack.enter_context(closing(OutputFile(each))) for each in targets]
        for steps, file in zip(ranks.values(), files, strict=True):
            with file.named_in_errors():
                stream = file.emptied()
                for message in _Rank(clock, groups, messages).messages(steps):
                    schema.write(stream, message)
                stream.flush()
        for file in files:
            with file.named_in_errors():
                file.finish()
    return targets


def _ranks_of(processes: dict[str, list[Step]]) -> dict[int, list[Step]]:
    """The steps of each rank: of those processes that are called so, or else that use devices."""
    working = {p: s for p, s in processes.items() if not all(step.on_host for step in s)}
    chosen = {p: s for p, s in working.items() if rank_of(p) is not None} or working
    numbers = numbered(chosen)
    return {
        numbers[process]: chosen[process] for process in sorted(numbers, key=numbers.__getitem__)
    }


def _group_of(step: Step) -> Group:
    """The ranks that a step is exchanged between; none if it is no communication."""
    span = step.span
    collective = span.kind == "collective" and span.name in schema.COLLECTIVES
    if not (collective or span.name in ("send", "recv")) or len(span.group) < 2:
        return ()
    return span.group


def _groups_of(ranks: dict[int, list[Step]]) -> dict[Group, int]:
    """A number for each group, from 1 on. Raises ValueError if a rank did less than the others."""
    counts: dict[Group, dict[int, int]] = {}
    for rank, steps in ranks.items():
        for step in steps:
            group = _group_of(step)
            if group and step.span.kind == "collective":
                of_ranks = counts.setdefault(group, dict.fromkeys(group, 0))
                of_ranks[rank] = of_ranks.get(rank, 0) + 1
    for group, of_ranks in counts.items():
        if len(set(of_ranks.values())) > 1:
            raise ValueError(
                f"the ranks {list(group)} are a group, but took part in {of_ranks} collectives of "
                "it: a Chakra trace needs all of a run, and all of its ranks"
            )
    return {group: number for number, group in enumerate(counts, 1)}


def _messages_of(ranks: dict[int, list[Step]]) -> dict[tuple[Group, str], list[Span]]:
    """What was sent, and received, between two ranks, in the order of time."""
    found: defaultdict[tuple[Group, str], list[Span]] = defaultdict(list)
    for steps in ranks.values():
        for step in steps:
            if step.span.name in ("send", "recv") and _group_of(step):
                found[step.span.group, step.span.name].append(step.span)
    for spans in found.values():
        spans.sort(key=lambda span: (span.start_s, span.end_s))
    for (way, _), spans in list(found.items()):
        if len(found[way, "send"]) != len(found[way, "recv"]):
            raise ValueError(
                f"of {len(spans)} messages from rank {way[0]} to rank {way[1]} some begin or end "
                "outside of the timeline: a Chakra trace needs all of a run, and all of its ranks"
            )
    return found


class _Rank:
    """Makes the messages of one rank's file."""

    def __init__(
        self, clock: str, groups: dict[Group, int], passed: dict[tuple[Group, str], list[Span]]
    ) -> None:
        self._clock, self._groups, self._made = clock, groups, schema.messages()
        self._tags = {
            id(span): tag for spans in passed.values() for tag, span in enumerate(spans, 1)
        }

    def messages(self, steps: Sequence[Step]) -> list[Any]:
        """The head, and the nodes."""
        head = self._made["GlobalMetadata"](version=schema.VERSION)
        self._attributes(
            head, {"schema": ("string", schema.VERSION), "clock": ("string", self._clock)}
        )
        first_s = min((step.start_s for step in steps), default=0.0)
        nodes = [self._node(number, step, first_s) for number, step in enumerate(steps, 1)]
        return [head, self._groups_node(), *nodes]

    def _groups_node(self) -> Any:
        listed = [{"pg_name": str(n), "ranks": list(group)} for group, n in self._groups.items()]
        node = self._made["Node"](id=0, name=GROUPS_NODE, type=schema.METADATA_NODE)
        node.inputs.values = f"['{json.dumps(listed)}']"
        return node

    def _node(self, number: int, step: Step, first_s: float) -> Any:
        span, group = step.span, _group_of(step)
        start, end = _micros(step.start_s), _micros(step.end_s)
        node = self._made["Node"](
            id=number, name=span.name, type=_type_of(span, group),
            data_deps=[before + 1 for before in step.before] or [0],
            start_time_micros=start - _micros(first_s), duration_micros=end - start,
        )  # fmt: skip
        self._attributes(node, self._values(step, group))
        return node

    def _values(self, step: Step, group: Group) -> dict[str, tuple[str, object]]:
        """The attributes of a node, each with the type of its value."""
        span = step.span
        values: dict[str, tuple[str, object]] = {"is_cpu_op": ("bool", step.on_host)}
        if isinstance(span.stream, int):
            values["stream"] = "int64", span.stream
        if not group:
            if not step.on_host:
                values |= {"num_ops": ("int64", span.flops), "tensor_size": ("uint64", span.bytes)}
            return values
        values["comm_size"] = "int64", _given_bytes(span)
        if span.kind == "collective":
            values["comm_type"] = "int64", schema.COLLECTIVES[span.name]
            values["pg_name"] = "string", str(self._groups[group])
        else:
            ends = {"comm_src": group[0], "comm_dst": group[1], "comm_tag": self._tags[id(span)]}
            values |= {name: ("int32", value) for name, value in ends.items()}
        return values

    def _attributes(self, message: Any, values: dict[str, tuple[str, object]]) -> None:
        for name, (kind, value) in values.items():
            message.attr.add(name=name, **{f"{kind}_val": value})


def _type_of(span: Span, group: Group) -> int:
    if not group:
        return schema.COMP_NODE
    types = {"send": schema.COMM_SEND_NODE, "recv": schema.COMM_RECV_NODE}
    return types.get(span.name, schema.COMM_COLL_NODE)


def _given_bytes(span: Span) -> int:
    """What one rank gives to a collective, or sends."""
    return span.bytes // len(span.group) if span.name in SHARED else span.bytes


def _micros(seconds: float) -> int:
    return round(seconds * MICROS)
