"""Machines: their parts, the catalogue, the names of parts and clusters of it, and files."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from d2lpar import machines, simulate
from d2lpar.machines.catalogue.sources import KERNEL_LATENCY
from d2lpar.machines.hardware import Accelerator, Host, Link, Machine
from d2lpar.vgpu.sim.constants import MATMUL_EFFICIENCY, MEMORY_EFFICIENCY
from d2lpar.vgpu.sim.pricing.kernel_cost import Cost, Kernel

GPU = Accelerator("toy", {"float32": 100.0, "float16": 800.0}, 10.0, 1000, kernel_latency_s=0.0)
BUS, WIRE = Link("bus", 1.0, 10.0), Link("wire", 2.0, 5.0)
BOX = Machine("8x-toy", (GPU,) * 8, Host("toy"), BUS, uplink_shared_by=2)

# --- Parts ----------------------------------------------------------------------------------------


def test_roofline():
    assert GPU.ridge_point() == 10  # 100 FLOP/s over 10 B/s
    assert GPU.ridge_point("float16") == 80
    assert GPU.attainable(4) == 40
    assert GPU.attainable(10) == GPU.attainable(1e9) == 100
    assert GPU.attainable(40, "float16") == 400
    for ask in (GPU.ridge_point, partial(GPU.attainable, 40)):
        with pytest.raises(ValueError, match=r"no rate for float8_e4m3fn: take one of float32"):
            ask("float8_e4m3fn")
    assert GPU.rate("bfloat16") == GPU.rate("tfloat32") == 100  # what it cannot do otherwise


def test_measured_rates_are_not_reduced_again():
    compute, memory = Cost(Kernel(1000, 1)), Cost(Kernel(1, 1000))
    assert compute.seconds(GPU) == pytest.approx(10 / MATMUL_EFFICIENCY)
    assert memory.seconds(GPU) == pytest.approx(100 / MEMORY_EFFICIENCY)
    here = replace(GPU, measured=True)
    assert (compute.seconds(here), memory.seconds(here)) == (10, 100)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        (GPU, "flops_per_s", {"float32": 0.0}),
        (GPU, "flops_per_s", {"float32": 1.0, "float16": float("nan")}),
        (GPU, "memory_bytes_per_s", -1.0),
        (GPU, "memory_bytes", 1.5),
        (GPU, "memory_bytes", 0),
        (GPU, "kernel_latency_s", -1e-9),
        (GPU, "kernel_latency_s", float("inf")),
        (GPU, "multiprocessors", 0),
        (BUS, "latency_s", -1.0),
        (BUS, "bytes_per_s", 0),
        (BUS, "bytes_per_s", "fast"),
        (BUS, "payload_share", 1.5),
        (Host("toy"), "dispatch_s", -1.0),
        (Host("toy"), "view_s", float("nan")),
        (Host("toy"), "module_s", -1e-6),
        (Host("toy"), "cores", True),
        (Host("toy"), "flops_per_s", 0.0),
        (Host("toy"), "memory_bytes_per_s", -2.0),
        (BOX, "uplink_shared_by", 0),
        (BOX, "node_size", 2.5),
        (BOX, "network_shared_by", -1),
    ],
)
def test_wrong_values_are_named(part, field, value):
    wrong = list(value.values())[-1] if isinstance(value, dict) else value
    message = rf"{field} of .*{re.escape(part.name)}.* must be .*, not {re.escape(repr(wrong))}"
    with pytest.raises(ValueError, match=message):
        replace(part, **{field: value})


def test_a_machine_has_accelerators_with_a_rate_and_a_network_between_nodes():
    with pytest.raises(ValueError, match="at least one accelerator"):
        replace(BOX, accelerators=())
    with pytest.raises(ValueError, match="a rate for 'float32'"):
        replace(GPU, flops_per_s={"float64": 1.0})
    with pytest.raises(ValueError, match="has 4 nodes and no network"):
        replace(BOX, node_size=2)


def test_who_shares_what():
    assert (BOX.nodes, BOX.node_of(7)) == (1, 0)
    assert [BOX.uplink_of(i) for i in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {BOX.network_port_of(i) for i in range(8)} == {0}
    three = BOX.with_accelerators(3).cluster(2, WIRE, network_shared_by=2)
    assert (three.name, len(three.accelerators), three.nodes) == ("2x8x-toy-wire", 6, 2)
    assert [three.node_of(i) for i in range(6)] == [0, 0, 0, 1, 1, 1]
    # Three with two a port: a node has two ports, and none is shared between nodes.
    assert [three.uplink_of(i) for i in range(6)] == [0, 0, 1, 2, 2, 3]
    assert [three.network_port_of(i) for i in range(6)] == [0, 0, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="a cluster already, of 2 nodes"):
        three.cluster(2, WIRE)
    with pytest.raises(ValueError, match="nodes of 8x-toy must be a whole number"):
        BOX.cluster(0, WIRE)


# --- The catalogue --------------------------------------------------------------------------------

SOURCED = r"https?://|www\.|\.(com|de|cz)/|Python package \w+ \d"


@pytest.mark.parametrize("accelerator", machines.ACCELERATORS.values(), ids=lambda a: a.name)
def test_accelerators_have_sources(accelerator):
    own = accelerator.source.replace(KERNEL_LATENCY, "")  # which all cards have
    assert re.search(SOURCED, own)
    assert KERNEL_LATENCY in accelerator.source  # no datasheet gives the latency of a kernel
    assert not accelerator.measured
    # What any GPU is: some FLOP a byte, and tensor cores no slower than the other units.
    assert 5 < accelerator.ridge_point() < 110
    rates = accelerator.flops_per_s
    with_tensor_cores = [
        rates[dtype]
        for dtype in ("float8_e4m3", "float16", "tfloat32", "float32")
        if dtype in rates
    ]
    assert with_tensor_cores == sorted(with_tensor_cores, reverse=True)
    assert rates.get("bfloat16", accelerator.rate("float16")) == accelerator.rate("float16")
    assert rates.get("float64", 0) <= accelerator.rate("float32")


# What NVIDIA's kernels multiply on tensor cores from each generation on.
TENSOR_TYPES = {
    "volta": {"float16"},
    "turing": {"float16"},
    "ampere": {"float16", "bfloat16", "tfloat32"},
    "ada": {"float16", "bfloat16", "tfloat32", "float8_e4m3"},
    "hopper": {"float16", "bfloat16", "tfloat32", "float8_e4m3"},
    "blackwell": {"float16", "bfloat16", "tfloat32", "float8_e4m3"},
    "cdna3": {"float16", "bfloat16", "tfloat32", "float8_e4m3"},
}


@pytest.mark.parametrize(
    "accelerator",
    [a for a in machines.ACCELERATORS.values() if "Core" not in a.name],
    ids=lambda a: a.name,
)
def test_gpus_have_an_architecture_its_data_types_and_a_cache(accelerator):
    types = set(accelerator.flops_per_s) - {"float32", "float64"}
    if accelerator.name != "GeForce GTX 1660 Ti":  # the Turing without tensor cores
        assert types == TENSOR_TYPES.get(accelerator.architecture, set())
    assert accelerator.architecture
    assert 2**20 <= accelerator.l2_bytes <= 2**28


@pytest.mark.parametrize(
    ("name", "dtype", "clock_hz", "flops_a_cycle"),
    [
        # FLOP that a multiprocessor's tensor cores do in a cycle, as its white paper has them.
        ("V100-SXM2-16GB", "float16", 1.53e9, 1024),
        ("T4-PCIE-16GB", "float16", 1.59e9, 1024),
        ("A100-SXM4-40GB", "bfloat16", 1.41e9, 2048),
        ("RTX A6000", "float16", 1.8e9, 1024),
        ("GeForce RTX 3090", "float16", 1.695e9, 512),
        ("A10G-PCIE-24GB", "float16", 1.71e9, 512),
        ("GeForce RTX 4090", "float16", 2.52e9, 512),
        ("GeForce RTX 4090", "float8_e4m3", 2.52e9, 1024),
        ("L40S-PCIE-48GB", "float16", 2.52e9, 1024),
        ("H100-SXM5-80GB", "bfloat16", 1.83e9, 4096),
        ("H100-SXM5-80GB", "float8_e4m3", 1.83e9, 8192),
        ("B200-SXM-180GB", "bfloat16", 1.86e9, 8192),
        ("GeForce RTX 5090", "float16", 2.407e9, 512),
        ("MI300X-192GB", "float16", 2.1e9, 2048),
        ("MI325X-256GB", "float8_e4m3", 2.1e9, 4096),
    ],
)
def test_peaks_are_dense_and_follow_from_clocks(name, dtype, clock_hz, flops_a_cycle):
    accelerator = machines.ACCELERATORS[name]
    computed = accelerator.multiprocessors * clock_hz * flops_a_cycle
    assert accelerator.rate(dtype) == pytest.approx(computed, rel=0.015)


@pytest.mark.parametrize("machine", machines.CATALOGUE.values(), ids=lambda m: m.name)
def test_machines_say_what_they_are(machine):
    assert int(machine.name.split("x-")[0]) == len(machine.accelerators)
    assert machines.machine(machine.name) is machine
    for accelerator in machine.accelerators:
        assert machines.ACCELERATORS[accelerator.name] == accelerator
    assert machine.source
    links = [link for link in (machine.host_link, machine.peer) if link]
    assert all(re.search(SOURCED, link.source) for link in links)
    assert "assumed" in machine.host.source or "fitted" in machine.host.source


def test_kinds_of_machines_differ():
    # "1x-h100-nvswitch" is part of the one machine of its kind.
    kinds = [name.partition("x-")[2] for name in machines.CATALOGUE]
    assert len(set(kinds)) == len(kinds)


def test_what_joins_gpus_in_new_machines():
    def peer(name):
        return machines.machine(name).peer

    # NVLink 5 doubles NVLink 4, on as many links; a rack of 72 is one node.
    assert peer("8x-b200-nvswitch").bytes_per_s == 2 * peer("8x-h100-nvswitch").bytes_per_s
    rack = machines.machine("72x-gb200-nvl72")
    assert (rack.nodes, rack.peer) == (1, peer("8x-b200-nvswitch"))
    assert peer("8x-mi300x-infinity-fabric").bytes_per_s == 7 * 64e9
    for name in ("4x-rtx-4090", "4x-rtx-5090", "4x-rtx-3090", "8x-a10g-g5", "2x-t4-kaggle"):
        assert peer(name) is None
        assert machines.machine(name).host_link.name.startswith("PCIe")
    for name in ("4x-rtx-4090-p2p", "4x-rtx-5090-p2p", "4x-rtx-3090-p2p"):
        assert peer(name) == machines.machine(name).host_link
    # Amazon gives each GPU of its newer machines 400 Gbit/s, whatever adapters carry them.
    for name in ("h100-p5-8xefa-v2", "h200-p5en-8xefa-v3", "b200-p6-8xefa-v4"):
        cluster = machines.machine(f"2x8x-{name}")
        assert cluster.network.bytes_per_s * 8 == 400e9
        assert cluster.network_port_of(15) == 15


def test_links_agree_with_the_arithmetic_of_their_standards():
    # PCI Express 3.0: 8 GT/s on 16 lanes, 128 of 130 bits are data; the next ones double it.
    pcie = [machines.machine(n).host_link for n in ("1x-k80", "1x-a100-nvswitch", "1x-h100-pcie")]
    for link, doubled in zip(pcie, (1, 2, 4), strict=True):
        assert link.bytes_per_s == pytest.approx(doubled * 8e9 * 16 * 128 / 130 / 8, rel=1e-3)
    for name, link in machines.NETWORKS.items():
        digits = re.match(r"\d+", name)
        if digits:
            assert link.bytes_per_s * 8 == int(digits[0]) * 1e9


def test_a_part_of_each_node_is_a_cluster_of_smaller_nodes():
    whole = machines.machine("2x8x-p100-dgx1-4xib-edr")
    part = whole.of_each_node(4)
    assert (part.nodes, part.node_size, len(part.accelerators)) == (2, 4, 8)
    places = (*range(4), *range(8, 12))
    assert [*map(part.node_of, range(8))] == [*map(whole.node_of, places)]
    assert part.network_port_of(3) == whole.network_port_of(3)
    with pytest.raises(ValueError, match="has 8 accelerators of its own, not 9"):
        whole.of_each_node(9)
    with pytest.raises(ValueError, match="of its own"):
        machines.machine("8x-p100-dgx1").only([1, 2]).of_each_node(1)


def test_fewer_accelerators_and_clusters_by_name():
    one = machines.machine("1x-p100-dgx1")
    assert (one.name, len(one.accelerators)) == ("1x-p100-dgx1", 1)
    assert one.is_like(replace(machines.machine("8x-p100-dgx1"), name=one.name))
    plain = machines.machine("128x4x-p100-pcie-25gbe")
    assert (plain.nodes, plain.node_size, len(plain.accelerators)) == (128, 4, 512)
    assert plain.network.bytes_per_s == 25e9 / 8
    assert plain.network_port_of(3) == 0
    assert plain.network_port_of(4) == 1
    four = machines.machine("64x8x-p100-dgx1-4xib-edr")
    assert [four.network_port_of(i) for i in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert four.name == "64x8x-p100-dgx1-4xib-edr"
    cards = machines.machine("2x8x-a100-80gb-nvswitch-100gbe").accelerators
    assert {card.name for card in cards} == {"A100-SXM4-80GB"}


# The totals of nvidia-smi, in MiB.
@pytest.mark.parametrize(
    ("name", "total_mib"),
    [
        ("V100-SXM2-16GB", 16160),
        ("T4-PCIE-16GB", 15360),
        ("A100-SXM4-80GB", 81920),
        ("H100-SXM5-80GB", 81559),
        ("L40S-PCIE-48GB", 46068),
        ("GeForce RTX 4090", 24564),
        ("GeForce RTX 5090", 32607),
        ("RTX PRO 6000 Blackwell", 97887),
    ],
)
def test_of_a_gpus_memory_cuda_reports_what_the_driver_leaves(name, total_mib):
    left = machines.ACCELERATORS[name].memory_bytes / 2**20 / total_mib
    assert 0.96 < left <= 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("8xa100", "no machine is called '8xa100'; there is '8x-a100-nvswitch'"),
        ("8x-a100-nvswich", "there is '8x-a100-nvswitch'"),
        ("this-machine", "there is 'this machine'"),
        ("zzz", r"called 'zzz'; .print\(\*par.machines.CATALOGUE\). lists the names"),
        ("", "no machine is called ''"),
        ("9x-a100-nvswitch", "8x-a100-nvswitch has 1 to 8 accelerators, not 9"),
        ("0x-k80", "16x-k80 has 1 to 16 accelerators, not 0"),
        ("2x8x-a100-nvswitch", "no cluster is called .* networks are 10gbe, 25gbe"),
        ("2x8x-a100-nvswitch-26gbe", "no cluster is called"),
        ("2x8x-b100-dgx-25gbe", "no machine is called '8x-b100-dgx'"),
        ("0x8x-p100-dgx1-25gbe", "must have 1 to 65536 accelerators, not 0"),
        ("99999x8x-p100-dgx1-25gbe", "must have 1 to 65536 accelerators, not 799992"),
        ("2x8x-p100-dgx1-9x25gbe", "has 1 to 8 network ports, not 9"),
        ("2x8x-p100-dgx1-0x25gbe", "has 1 to 8 network ports, not 0"),
        (3, "a machine is a name, a file or a Machine, not 3"),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(ValueError, match=message):
        machines.machine(name)


# --- Files ----------------------------------------------------------------------------------------

positive = st.floats(1e-12, 1e18)
not_negative = st.just(0.0) | positive
whole = st.integers(1, 10**15)
accelerators = st.builds(
    Accelerator,
    st.text(),
    st.dictionaries(st.sampled_from(["float16", "bfloat16", "tfloat32", "float64"]), positive).map(
        lambda rates: {"float32": 1e12, **rates}
    ),
    positive,
    whole,
    not_negative,
    st.text(),
    st.none() | whole,
    st.booleans(),
)
links = st.builds(Link, st.text(), not_negative, positive, st.text(), st.booleans())
hosts = st.builds(
    Host,
    st.text(),
    not_negative,
    not_negative,
    st.text(),
    st.none() | whole,
    st.none() | positive,
    st.none() | positive,
)
boxes = st.builds(
    Machine,
    st.text(),
    st.lists(accelerators, min_size=1, max_size=3).map(tuple),
    hosts,
    links,
    st.none() | links,
    st.text(),
    st.text(),
    st.integers(1, 9),
    links,
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
)


@given(box=boxes)
def test_files_give_back_what_was_saved(box, tmp_path_factory):
    file = machines.save(box, tmp_path_factory.mktemp("machine") / "mine.json")
    found = machines.load(file)
    assert found == box
    assert found.notes == box.notes  # which does not count for equality
    assert machines.machine(file) == machines.machine(str(file)) == box
    assert [path.name for path in file.parent.iterdir()] == ["mine.json"]  # nothing is left beside


@pytest.fixture
def file(tmp_path):
    return machines.save(BOX.cluster(2, WIRE), tmp_path / "folder" / "mine.json")


def change(file: Path, *path, to=None, drop=False):
    """Change one place in a JSON file."""
    whole = json.loads(file.read_text())
    place = whole
    for step in path[:-1]:
        place = place[step]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    file.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (("version",), 99, "schema version 99 is unknown, this d2lpar reads 1"),
        (("version",), True, "schema version true is unknown"),
        (("kind",), "toaster", "'kind' must be 'd2lpar machine' or .*, not 'toaster'"),
        (("colour",), "red", "there is no field 'colour'$"),
        (("host", "dispatch_sec"), 1, "no field 'dispatch_sec' in host; is 'dispatch_s' meant"),
        (("name",), 7, "name must be a text, not 7"),
        (("accelerators",), {}, "accelerators must be a list, not {}"),
        (("accelerators",), [], "must have at least one accelerator"),
        (("accelerators", 3), 5, r"accelerators\[3\] must be an object, not 5"),
        (
            ("accelerators", 1, "memory_bytes"),
            "16 GB",
            r'accelerators\[1\].memory_bytes must be a whole number, not "16 GB"',
        ),
        (("accelerators", 1, "memory_bytes"), 1e9, "must be a whole number, not 10"),
        (("accelerators", 0, "measured"), 1, "measured must be true or false, not 1"),
        (
            ("accelerators", 0, "flops_per_s", "float16"),
            None,
            r"accelerators\[0\].flops_per_s\['float16'\] must be a number, not null",
        ),
        (("accelerators", 0, "flops_per_s"), 3, "flops_per_s must be an object, not 3"),
        (("host_link", "bytes_per_s"), -1.0, "bytes_per_s of bus must be a number above zero"),
        (("host_link", "bytes_per_s"), False, "host_link.bytes_per_s must be a number, not false"),
        (("host_link", "bytes_per_s"), 10**400, "too large"),
        (("host_link",), None, "host_link must be an object, not null"),
        (("network",), None, "has 2 nodes and no network"),
        (("uplink_shared_by",), 0, "uplink_shared_by of .* must be a whole number from 1 on"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(file, path, to, message):
    change(file, *path, to=to)
    with pytest.raises(ValueError, match=message) as raised:
        machines.machine(file)
    assert str(raised.value).startswith(f"{file}: ")


def test_a_missing_field_is_named(file):
    change(file, "accelerators", 2, "memory_bytes", drop=True)
    message = r"mine.json: the field 'memory_bytes' is missing in accelerators\[2\]"
    with pytest.raises(ValueError, match=message):
        machines.machine(str(file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "this is not JSON"),
        (b"{'name': 1}", "this is not JSON"),
        (b"\xff\xfe\x00", "not JSON, for it is no UTF-8 text"),
        (b"[1, 2]", r"must hold one JSON object, not \[1, 2\]"),
        (b"{}", "the field 'kind' must be"),
        (b'{"kind": "d2lpar machine", "version": NaN}', "NaN is no number in JSON"),
        (b'{"kind": "d2lpar machine"}', "schema version null is unknown"),
    ],
)
def test_what_is_no_machine_is_named(tmp_path, content, message):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        machines.load(file)
    assert str(raised.value).startswith(f"{file}: ")


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no\.json: there is no such file"):
        machines.machine(tmp_path / "no.json")
    with pytest.raises(ValueError, match=r"no\.json: there is no such file"):
        machines.machine("no.json")
    with pytest.raises(ValueError, match="this is a folder"):
        machines.machine(tmp_path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    file = machines.save(BOX, tmp_path / "mine.json")
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        machines.save(replace(BOX, name="other"), file)
    assert machines.load(file) == BOX
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("dtype", ["float3", "fp32", "double", ""])
def test_what_is_no_data_type_has_no_rate(dtype):
    for ask in (GPU.rate, GPU.ridge_point, GPU.rated_as, lambda name: GPU.attainable(1.0, name)):
        with pytest.raises(ValueError, match=rf"no data type is called '{dtype}': take one of fl"):
            ask(dtype)


def test_double_precision_is_never_that_of_single():
    single = replace(GPU, flops_per_s={"float32": 1e12})
    with pytest.raises(ValueError, match="has no rate for float64: take one of float32, or a GPU"):
        single.ridge_point("float64")
    assert replace(single, measured=True).rate("float64") == 1e12  # what a program reached
    lacking = [name for name, card in machines.ACCELERATORS.items() if card.lacks("float64")]
    assert lacking == []


def test_a_host_at_another_speed_takes_so_much_less_for_each_cost():
    host = Host("server", memory_bytes_per_s=1e11)
    faster = host.at_speed(2)

    for cost in ("dispatch_s", "module_s", "node_s", "graph_s"):
        assert getattr(faster, cost) == getattr(host, cost) / 2
    assert faster.memory_bytes_per_s == host.memory_bytes_per_s


@pytest.mark.parametrize("factor", [0, -1, "2"])
def test_a_speed_that_no_host_has_is_refused(factor):
    with pytest.raises((TypeError, ValueError), match="factor"):
        Host("server").at_speed(factor)


def test_hosts_are_as_fast_as_their_processors():
    """Geekbench 6, Clang: 1048 on p3, 1434 on g5, 2110 on a3 (SpareCores/sc-inspector-data)."""
    p3, g5, a3 = (
        machines.machine(name).host.dispatch_s
        for name in ("8x-v100-p3", "8x-a10g-g5", "8x-h100-a3")
    )

    assert p3 / g5 == pytest.approx(1434 / 1048)
    assert g5 / a3 == pytest.approx(2110 / 1434)


# --- One's own ------------------------------------------------------------------------------------


def test_a_machine_has_the_parts_that_it_is_given():
    link = Link("ours", 2e-6, 1e10)
    of_a100 = machines.machine("8x-a100-nvswitch")
    whole = machines.machine("8x-h100-nvswitch")
    found = machines.machine(
        "8x-h100-nvswitch",
        gpu="A100-SXM4-80GB",
        memory_bytes=10**10,
        peer=link,
        host="8x-a100-nvswitch",
        name="ours",
    )
    card = machines.ACCELERATORS["A100-SXM4-80GB"]
    expected = replace(
        whole,
        name="ours",
        accelerators=(replace(card, memory_bytes=10**10),) * 8,
        peer=link,
        host=of_a100.host,
    )
    assert found == expected
    with simulate(found) as gpus:
        assert torch.vgpu.get_device_properties(gpus[7]).total_memory == 10**10


def test_a_cluster_has_the_network_that_it_is_given():
    found = machines.machine("2x8x-h100-nvswitch-ib-ndr", network="25gbe")
    assert found.network == machines.NETWORKS["25gbe"]
    assert found.nodes == 2
    assert "25gbe" in found.name


def test_a_part_may_be_that_of_a_machine_with_fewer_accelerators():
    found = machines.machine("1x-rtx-3090", host="1x-rtx-4090")
    assert found.host == machines.machine("1x-rtx-4090").host


def test_a_machine_without_changes_is_itself():
    whole = machines.machine("8x-h100-nvswitch")
    assert machines.machine(whole) is whole
    assert machines.machine(whole, name="ours") == replace(whole, name="ours")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"gpu": "a100-sxm4"}, "no gpu is called 'a100-sxm4'; there is 'A100-SXM4-40GB'"),
        ({"gpu": "?"}, r"print\(\*par.machines.ACCELERATORS\)"),
        ({"host": "8x-a100-nvswtch"}, "there is '8x-a100-nvswitch'"),
        ({"host": "foox-rtx-4090"}, "no host is called 'foox-rtx-4090'"),
        ({"host": "99x-rtx-4090"}, "no host is called '99x-rtx-4090'"),
        ({"peer": "k80"}, "no peer is called 'k80'"),
        ({"host": 3}, "host is a name or a par.machines.Host, not 3"),
        ({"peer": [1]}, "peer is a name or a par.machines.Link"),
        ({"memory_bytes": 0}, "memory_bytes .* not 0"),
        ({"network": "ib-ndr"}, "is one node, and a network joins several"),
    ],
)
def test_parts_that_are_not_there_are_named(parts, message):
    with pytest.raises(ValueError, match=message):
        machines.machine("8x-h100-nvswitch", **parts)


# --- What CUDA itself takes -----------------------------------------------------------------------

# MiB of a process beside PyTorch's, by messages of out-of-memory (`Accelerator.context_bytes`).
CONTEXTS = [
    ("T4-PCIE-16GB", 133),
    ("RTX A4000", 210),
    ("A100-SXM4-40GB", 501),
    ("GeForce RTX 4090", 490),
    ("RTX 6000 Ada", 429),
    ("GeForce RTX 5090", 595),
]


@pytest.mark.parametrize(("gpu", "mib"), CONTEXTS)
def test_cuda_takes_a_part_of_the_memory(gpu, mib):
    found = machines.ACCELERATORS[gpu]
    assert found.context_bytes / 2**20 == pytest.approx(mib, rel=0.27)


def test_of_a_device_that_is_made_up_cuda_takes_a_twentieth_at_most():
    assert replace(GPU, multiprocessors=10**6).context_bytes == 50
    assert GPU.context_bytes == machines.ACCELERATORS["MI300X-192GB"].context_bytes == 0
