"""Chakra execution traces: valid by the schema, and as long as the run that they are of.

The oracle replays the files alone: it gives each node its duration, lets it begin when all that it
depends on is over, and a collective, or a message, when it can on all its ranks.
"""

import importlib.util
import json
from collections import Counter, defaultdict

import pytest
import torch
import torch.distributed as dist
from torch import nn

import d2lpar as par
from d2lpar.timeline import Span, Timeline
from d2lpar.timeline.traces import chakra_schema as schema
from d2lpar.timeline.traces.chakra import GROUPS_NODE

needs_protobuf = pytest.mark.skipif(
    importlib.util.find_spec("google") is None
    or importlib.util.find_spec("google.protobuf") is None,
    reason='needs protobuf: pip install ".[traces]"',
)
COMMUNICATION = (schema.COMM_COLL_NODE, schema.COMM_SEND_NODE, schema.COMM_RECV_NODE)

EXPECTED = (
    "080312016b18052a020102300538ac0242030a017652060a0161d8010152050a0162380452050a01"
    "63480552050a0164680652070a0165ea010137"
)


# Reading


def read(path) -> tuple[object, list]:
    """The head and the nodes of a file; each message comes after its length."""
    content, at, messages = path.read_bytes(), 0, []
    while at < len(content):
        length = shift = 0
        while True:
            byte, at = content[at], at + 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        name = "Node" if messages else "GlobalMetadata"
        messages.append(schema.messages()[name].FromString(content[at : at + length]))
        at += length
    return messages[0], messages[1:]


def values(node) -> dict[str, object]:
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


def replayed_us(files: list[list]) -> int:
    """How long all ranks need, in µs, if nothing but their dependencies makes them wait."""
    meetings = defaultdict(list)
    counts: Counter = Counter()
    for rank, nodes in enumerate(files):
        for node in nodes:
            if node.type in COMMUNICATION:
                meetings[meeting_of(node, rank, counts)].append((rank, node.id))
    partners = {end: ends for ends in meetings.values() for end in ends}
    nodes = {(rank, node.id): node for rank, nodes in enumerate(files) for node in nodes}
    ended: dict[tuple[int, int], int] = {}
    waiting = list(nodes)
    while waiting:
        later = []
        for key in waiting:
            ends = partners.get(key, [key])
            before = [(rank, dep) for rank, number in ends for dep in nodes[rank, number].data_deps]
            if all(dep in ended for dep in before):
                begin = max((ended[dep] for dep in before), default=0)
                ended[key] = begin + nodes[key].duration_micros
            else:
                later.append(key)
        assert len(later) < len(waiting), "the ranks wait for one another"
        waiting = later
    return max(ended.values())


def meeting_of(node, rank: int, counts: Counter) -> tuple:
    found = values(node)
    if node.type == schema.COMM_COLL_NODE:
        counts[rank, found["pg_name"]] += 1
        return found["pg_name"], counts[rank, found["pg_name"]]
    return found["comm_src"], found["comm_dst"], found["comm_tag"]


# Runs


def recorded(program, n: int, machine: str = "8x-a100-nvswitch") -> Timeline:
    with par.simulate(machine, n) as gpus, par.record() as timeline:
        par.run_ranks(program, gpus)
    return timeline


def data_parallel() -> None:
    device = torch.device("vgpu", dist.get_rank())
    layers = [nn.Linear(700, 700) for _ in range(6)]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        net(torch.ones(4096, 700).to(device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.vgpu.synchronize(device)


def in_groups() -> None:
    """Ranks of unlike speed, pairs, and a ring of messages."""
    rank = dist.get_rank()
    device = torch.device("vgpu", rank)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.ones(1000 * (rank + 1), 1000, device=device)
    for _ in range(3):
        y = x @ x[:1000]
        dist.all_reduce(y[:1000], group=pairs[rank // 2])
        if rank:
            dist.recv(y[:1000], rank - 1)
        if rank < 3:
            dist.send(y[:1000], rank + 1)
        gathered = torch.empty(4 * 1000, 1000, device=device)
        dist.all_gather_into_tensor(gathered, y[:1000])
    side = torch.vgpu.Stream(device)
    side.wait_stream(torch.vgpu.current_stream(device))
    with torch.vgpu.stream(side):
        z = gathered[:1] * 2  # too small to be in the way of what runs beside it
    event = side.record_event()
    gathered.sin()
    torch.vgpu.current_stream(device).wait_event(event)
    dist.barrier()
    z.sum().item()


@needs_protobuf
@pytest.mark.parametrize(("program", "n"), [(data_parallel, 2), (data_parallel, 4), (in_groups, 4)])
def test_a_replay_of_the_dependencies_takes_as_long_as_the_run(program, n, tmp_path):
    timeline = recorded(program, n)
    files = [read(path)[1] for path in timeline.save_chakra(tmp_path / "run")]
    assert len(files) == n
    # Rounding keeps the order of all moments, so only the last one is off.
    assert replayed_us(files) == pytest.approx(timeline.duration_s * 1e6, abs=1)
    for nodes in files:
        check_nodes(nodes)


def check_nodes(nodes: list) -> None:
    """Numbers are unique, and dependencies lead back to nodes that were there before."""
    known = set()
    for node in nodes:
        assert node.id not in known
        assert set(node.data_deps) <= known
        known.add(node.id)
        if node.type in COMMUNICATION:
            assert values(node)["comm_size"] > 0
            assert not values(node)["is_cpu_op"]


@needs_protobuf
def test_events_are_dependencies_and_what_fills_the_device_is_none(tmp_path):
    with par.simulate("2x-v100-textbook", 1) as (device,), par.record() as timeline:
        x = torch.empty(3000, 3000, device=device)
        side = torch.vgpu.Stream(device)
        side.wait_stream(torch.vgpu.current_stream(device))
        with torch.vgpu.stream(side):
            y = x.sin()
        z = x.cos()  # fills the device as well: one comes after the other
        torch.vgpu.current_stream(device).wait_stream(side)
        y.mul(z)
        torch.vgpu.synchronize(device)
    _, nodes = read(*timeline.save_chakra(tmp_path / "run"))
    on_device = {node.name: node for node in nodes if "num_ops" in values(node)}
    sin, cos, mul = (on_device[name] for name in ("sin", "cos", "mul"))
    assert {sin.id, cos.id} <= set(mul.data_deps)
    assert not {sin.id, cos.id} & {*sin.data_deps, *cos.data_deps}
    apart = timeline.duration_s * 1e6 - replayed_us([nodes])
    assert apart == pytest.approx(min(sin.duration_micros, cos.duration_micros), rel=0.2)


@needs_protobuf
def test_nodes_say_what_was_computed_and_sent(tmp_path):
    timeline = recorded(in_groups, 4)
    paths = timeline.save_chakra(tmp_path / "run")
    assert [path.name for path in paths] == [f"run.{rank}.et" for rank in range(4)]
    head, nodes = read(paths[1])
    assert head.version == "1.0.0"
    assert values(head) == {"schema": "1.0.0", "clock": timeline.clock}
    assert (nodes[0].name, nodes[0].type) == (GROUPS_NODE, schema.METADATA_NODE)
    listed = json.loads(nodes[0].inputs.values[2:-2])
    groups = {group["pg_name"]: group["ranks"] for group in listed}
    assert sorted(groups.values()) == [[0, 1], [0, 1, 2, 3], [2, 3]]
    found = defaultdict(list)
    for node in nodes:
        found[node.name].append(values(node))
    product = next(v for v in found["mm"] if not v["is_cpu_op"])
    assert product["num_ops"] == 2 * 2000 * 1000 * 1000
    sizes = {}
    for node in nodes:
        if node.type in COMMUNICATION:
            sizes.setdefault(node.name, values(node))
    million = 4 * 1000 * 1000
    reduced, gathered = sizes["all_reduce"], sizes["all_gather"]
    assert (reduced["comm_type"], reduced["comm_size"]) == (0, million)
    assert groups[reduced["pg_name"]] == [0, 1]
    assert (gathered["comm_type"], gathered["comm_size"]) == (2, million)
    assert groups[gathered["pg_name"]] == [0, 1, 2, 3]
    ways = [
        [sizes[name][f"comm_{what}"] for what in ("src", "dst", "size")]
        for name in ("recv", "send")
    ]
    assert ways == [[0, 1, million], [1, 2, million]]
    assert Counter(node.type for node in nodes)[schema.COMM_SEND_NODE] == 3
    work = timeline.on("vgpu:1", "compute")
    written_us = sum(n.duration_micros for n in nodes if "num_ops" in values(n))
    assert written_us == pytest.approx(sum(s.duration_s for s in work) * 1e6, abs=len(work))


@needs_protobuf
def test_one_process_is_one_rank_and_its_copies_are_work(gpus, tmp_path):
    with par.simulate("2x-v100-textbook") as devices, par.record() as timeline:
        layers = [torch.empty(800, 800, device=d, requires_grad=True) for d in devices]
        for _ in range(3):
            x = torch.empty(64, 800).to(devices[0])
            ((x @ layers[0]).to(devices[1]) @ layers[1]).sum().backward()
        par.timing.synchronize(devices)
    (path,) = timeline.save_chakra(tmp_path / "run")
    _, nodes = read(path)
    assert {node.type for node in nodes} == {schema.METADATA_NODE, schema.COMP_NODE}
    assert replayed_us([nodes]) == pytest.approx(timeline.duration_s * 1e6, abs=1)


@needs_protobuf
def test_a_node_has_the_bytes_that_the_schema_gives_it():
    """The bytes are those that protoc's code for et_def.proto makes of the same node."""
    node = schema.messages()["Node"](
        id=3, name="k", type=schema.COMM_SEND_NODE, data_deps=[1, 2], start_time_micros=5,
        duration_micros=300,
    )  # fmt: skip
    node.attr.add(name="a", bool_val=True)
    node.attr.add(name="b", int32_val=4)
    node.attr.add(name="c", int64_val=5)
    node.attr.add(name="d", uint64_val=6)
    node.attr.add(name="e", string_val="7")
    node.inputs.values = "v"
    assert node.SerializeToString().hex() == EXPECTED


@pytest.mark.parametrize(("number", "expected"), [(0, "00"), (127, "7f"), (300, "ac02")])
def test_lengths_are_varints(number, expected):
    assert schema.varint(number).hex() == expected


# What cannot be written


def test_work_that_no_host_queued_has_no_dependencies(tmp_path):
    timeline = Timeline("toy", [Span("gpu:0", 0, "compute", "mm", 1.0, 2.0)])
    with pytest.raises(ValueError, match=r"no dispatch queued 'mm' on gpu:0 at 1\.0 s"):
        timeline.save_chakra(tmp_path / "run")


def test_a_part_of_the_ranks_is_no_run(tmp_path):
    timeline = recorded(data_parallel, 2)
    part = timeline.where(lambda s: s.device != "vgpu:1" and "rank 1" not in str(s.stream))
    with pytest.raises(ValueError, match=r"the ranks \[0, 1\] are a group, but took part in"):
        part.save_chakra(tmp_path / "run")


def test_without_the_library_the_error_names_it(tmp_path, monkeypatch):
    schema.messages.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf", None)
    timeline = recorded(data_parallel, 2)
    with pytest.raises(ImportError, match=r"protobuf: pip install"):
        timeline.save_chakra(tmp_path / "run")
