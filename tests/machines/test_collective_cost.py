"""NCCL's model of its collectives, against what follows from its tables by hand, and against
published curves of nccl-tests that its few fitted figures were taken from."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from d2lpar import machines
from d2lpar.machines import Link
from d2lpar.machines import collective_cost as cost

MICRO, GIGA, MIB = 1e-6, 1e9, 2**20
NODE = cost.Fabric(8, 1, 120 * GIGA)  # eight V100 with six NVLinks
AMPERE = cost.Fabric(8, 1, 235 * GIGA, generation="ampere", amd=True)
HOPPER = cost.Fabric(8, 1, 370.8 * GIGA, generation="hopper", switch_adds=True)
CLUSTER = cost.Fabric(32, 4, 120 * GIGA, 12 * GIGA)
BUS = cost.Fabric(4, 1, 24 * GIGA, medium="pcie")
ONES = {
    "reduce_scatter": cost.reduce_scatter_s,
    "all_gather": cost.all_gather_s,
    "broadcast": cost.broadcast_s,
    "reduce": cost.reduce_s,
    "all_to_all": cost.all_to_all_s,
    "gather": cost.gather_s,
    "send": cost.send_s,
}


def bus_bandwidth(nbytes: float, ranks: int, seconds: float) -> float:
    """nccl-tests' measure of an all-reduce, bytes a second: as if a ring had sent it."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks


def fastest(nbytes: float, fabric: cost.Fabric) -> tuple[str, str]:
    """The algorithm and the protocol that take least, each asked for by its name."""
    return min(
        cost.offered(fabric),
        key=lambda way: cost.all_reduce_s(nbytes, fabric, algorithm=way[0], protocol=way[1]),
    )


# --- all-reduce -----------------------------------------------------------------------------------


def test_a_ring_sends_twice_almost_everything():
    # 14 steps of 3.4 us and 8.4 us once, 1.9 times as long for so much; 14/8 of the bytes through
    # 120 GB/s.
    expected_s = (8.4 + 14 * 3.4) * 1.9 * MICRO + 1e9 * 14 / 8 / (120 * GIGA)
    found = cost.all_reduce_s(10**9, NODE, algorithm="ring", protocol="Simple")
    assert found == pytest.approx(expected_s)
    assert bus_bandwidth(10**9, 8, 1e9 * 14 / 8 / (120 * GIGA)) == pytest.approx(120 * GIGA)


def test_a_message_that_never_fills_the_pipeline_counts_twice():
    expected_s = (14 + 14 * 1.9) * MICRO + 2 * 1e6 * 14 / 8 / (0.92 * 120 * GIGA)
    found = cost.all_reduce_s(10**6, NODE, algorithm="ring", protocol="LL128")
    assert found == pytest.approx(expected_s)
    # Slow links hide what a block does with a chunk.
    expected_s = (8.4 + 6 * 5.7) * MICRO + 1e6 * 6 / 4 / (24 * GIGA)
    found = cost.all_reduce_s(10**6, BUS, algorithm="ring", protocol="Simple")
    assert found == pytest.approx(expected_s)


def test_ll_is_quick_and_slow():
    # A quarter of the bus, 30 GB/s, is below the 39 GB/s that LL reaches on Volta.
    expected_s = (6.6 + 14 * 0.6) * MICRO + 1e6 * 14 / 8 / (30 * GIGA)
    assert cost.all_reduce_s(10**6, NODE, algorithm="ring", protocol="LL") == pytest.approx(
        expected_s
    )
    wide = replace(NODE, bus_bytes_per_s=400 * GIGA)
    assert cost.bandwidth("ring", "LL", 10**6, wide) == pytest.approx(39 * GIGA * 8 / 14)
    # 64 KiB fill two channels of 512 threads, 8 ranks and 8 bytes.
    assert cost.bandwidth("ring", "LL", 2**16, HOPPER) == pytest.approx(2 * 10 * GIGA * 8 / 14)
    # Over PCIe half of what is sent are data.
    assert cost.bandwidth("ring", "LL", 10**6, BUS) == pytest.approx(12 * GIGA * 4 / 6)


def test_a_tree_goes_up_and_down_once():
    # 7 steps up a chain of eight and down: 14 of 4 us; half of 92 % of the bus.
    big = 2**30
    expected_s = (8.4 + 14 * 4) * MICRO + big / (120 * GIGA * 0.92 / 2)
    assert cost.all_reduce_s(big, NODE, algorithm="tree", protocol="Simple") == pytest.approx(
        expected_s
    )
    # 1 MiB is 2**14 times 64 B: NCCL's factor there is 0.5.
    halved = cost.bandwidth("tree", "Simple", 2**20, NODE)
    assert halved == pytest.approx(0.5 * cost.bandwidth("tree", "Simple", 2**40, NODE))


def test_what_the_network_carries():
    ring = cost.bandwidth("ring", "Simple", 0, CLUSTER)
    assert ring == pytest.approx(12 * GIGA * 32 / 62)
    # In a double tree of four nodes a node sends everything twice, of two nodes once.
    assert cost.bandwidth("tree", "Simple", 2**40, CLUSTER) == pytest.approx(6 * GIGA)
    two = replace(CLUSTER, ranks=16, nodes=2)
    assert cost.bandwidth("tree", "Simple", 2**40, two) == pytest.approx(12 * GIGA)


def test_latency_of_a_ring_over_nodes():
    # 62 steps, 2 x 3 of them over the network; three posts of 1 us, below the 3.4 us of a step.
    expected_us = (8.4 + 56 * 3.4 + 6 * 14.0) * 1.9
    found = cost.latency_s("ring", "Simple", 2**30, CLUSTER)
    assert found == pytest.approx(expected_us * MICRO)
    amd = replace(CLUSTER, amd=True)  # two us a post: 6 us a step
    expected_us = (8.4 + 56 * 6 + 6 * 14.0) * 1.9
    assert cost.latency_s("ring", "Simple", 2**30, amd) == pytest.approx(expected_us * MICRO)
    far = replace(CLUSTER, network_latency_s=75 * MICRO)
    expected_us = (8.4 + 56 * 3.4 + 6 * 14.0) * 1.9 + 6 * 75
    assert cost.latency_s("ring", "Simple", 2**30, far) == pytest.approx(expected_us * MICRO)


def test_chunks_of_rings_by_protocol():
    # 8 A100 of one node hand on as much as NVLS does; on two nodes, and elsewhere, rings do less.
    # Within a node of others Simple has its plateau instead.
    def filling(fabric: cost.Fabric, protocol: str) -> float:
        whole = replace(fabric, network_bytes_per_s=math.inf)
        carried = cost.fill_s("ring", protocol, 2**34, fabric) * cost.bandwidth(
            "ring", protocol, 2**34, whole
        )
        return carried / (fabric.channels * fabric.ranks) / 1024

    two = replace(AMPERE, ranks=16, nodes=2, network_bytes_per_s=200 * GIGA)
    found = {(f, p): filling(f, p) for f in (AMPERE, two, HOPPER) for p in ("LL128", "Simple")}
    assert [round(kibibytes) for kibibytes in found.values()] == [128, 128, 64, 32, 64, 0]


def test_blackwell_takes_longer_to_begin():
    blackwell = replace(HOPPER, generation="blackwell")
    for algorithm, protocol in cost.offered(blackwell):
        later = cost.latency_s(algorithm, protocol, 8, blackwell)
        assert later - cost.latency_s(algorithm, protocol, 8, HOPPER) == pytest.approx(9 * MICRO)


def test_two_without_peers_share_one_way_to_and_fro():
    two = cost.Fabric(2, 1, 15 * GIGA, medium="host")
    nbytes = 2**34
    for name, halved in (("all_gather", True), ("broadcast", False), ("all_to_all", True)):
        seconds = cost.collective_s(name, nbytes, two)
        carried = nbytes / (1 if name == "broadcast" else 2)
        rate = 15 * GIGA * (0.58 if halved else 1.0)
        assert seconds == pytest.approx(carried / rate, rel=1e-4), name
    together = cost.all_reduce_s(nbytes, two, algorithm="ring", protocol="Simple")
    assert together == pytest.approx(nbytes / (0.58 * 15 * GIGA), rel=1e-4)
    assert replace(two, ranks=4).to_and_fro == replace(two, ranks=4)


def test_a_switch_that_adds_spares_the_links():
    # 16 channels of 17.5 GB/s; a GPU sends all of its own for the sums and an eighth as a result.
    assert cost.bandwidth("nvls", "Simple", 0, HOPPER) == pytest.approx(16 * 17.5 * GIGA)
    slow = replace(HOPPER, bus_bytes_per_s=90 * GIGA)
    assert cost.bandwidth("nvls", "Simple", 0, slow) == pytest.approx(90 * GIGA * 8 / 9)
    assert fastest(2**34, HOPPER) == ("nvls", "Simple")
    assert ("nvls", "Simple") not in cost.offered(NODE)


def test_a_network_that_adds_carries_everything_once():
    fabric = replace(HOPPER, ranks=64, nodes=8, network_bytes_per_s=384 * GIGA, network_adds=True)
    within = 370.8 * GIGA * 8 / 14
    assert cost.bandwidth("collnet", "Simple", 0, fabric) == pytest.approx(0.92 * within)
    slow = replace(fabric, network_bytes_per_s=100 * GIGA)
    assert cost.bandwidth("collnet", "Simple", 0, slow) == pytest.approx(92 * GIGA)
    steps_us = 2 * (3.7 + 7 * 0.4) + 31
    assert cost.latency_s("collnet", "Simple", 0, fabric) == pytest.approx(steps_us * MICRO)


def test_small_messages_go_by_latency_and_large_ones_by_bandwidth():
    small, large = (fastest(nbytes, NODE) for nbytes in (1024, 2**30))
    assert small[1] == "LL"
    assert large == ("ring", "Simple")


@pytest.mark.parametrize("fabric", [NODE, AMPERE, HOPPER, CLUSTER, BUS])
def test_more_bytes_take_longer_up_to_steps_of_nccls_tables(fabric):
    times = [cost.all_reduce_s(2**power, fabric) for power in range(3, 34)]
    assert all(later > 0.95 * earlier for earlier, later in pairwise(times))
    assert times[-1] > 100 * times[0]


@pytest.mark.parametrize(
    ("name", "algorithm", "one_process", "curve"),
    [
        # Azure, AI-benchmarking-guide, ND A100 v4 and ND H100 v5 (2024); MiB to GB/s.
        (
            "8x-a100-80gb-nvswitch", None, True,
            {0.25: 10.11, 1: 36.22, 2: 53.54, 4: 71.43, 8: 89.99, 16: 109.22, 32: 132.77,
             64: 166.63, 128: 174.18, 256: 213.87, 512: 221.58, 1024: 228.10, 8192: 231.58},
        ),
        (
            "8x-h100-nvswitch", "nvls", True,
            {1: 43.70, 2: 81.93, 4: 128.73, 8: 172.13, 16: 234.45, 32: 295.53, 64: 361.78,
             128: 400.61, 256: 423.38, 512: 438.46, 1024: 466.35, 8192: 478.87},
        ),
        # AWS, awsome-distributed-training, NCCL tests on AWS Batch (2024).
        (
            "8x-h100-nvswitch", None, False,
            {0.25: 22.64, 1: 64.24, 16: 236.82, 128: 396.19, 16384: 483.05},
        ),
    ],
)  # fmt: skip
def test_published_curves_within_a_sixth(name, algorithm, one_process, curve):
    fabric = cost.fabric_of(machines.machine(name))
    for mebibytes, published in curve.items():
        nbytes = int(mebibytes * MIB)
        seconds = cost.all_reduce_s(nbytes, fabric, algorithm=algorithm)
        if one_process:
            seconds = cost.launched_by_one_thread_s(seconds, 8)
        found = bus_bandwidth(nbytes, 8, seconds) / GIGA
        assert found == pytest.approx(published, rel=1 / 6), mebibytes


def test_nccl_does_not_know_that_a_tree_halves_what_two_nodes_send():
    two = replace(AMPERE, ranks=16, nodes=2, network_bytes_per_s=96 * GIGA)
    ring_s = cost.all_reduce_s(2**33, two, algorithm="ring")
    tree_s = cost.all_reduce_s(2**33, two, algorithm="tree")
    assert tree_s < 0.6 * ring_s
    assert cost.all_reduce_s(2**33, two) == ring_s  # 91 GB/s of 100 (NVIDIA/nccl-tests issue 100)
    assert cost.all_reduce_s(2**33, replace(two, tuned=True)) == tree_s


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        # NVIDIA/nccl-tests issue 309: H100 and NDR InfiniBand; MiB to GB/s.
        (
            "2x8x-h100-nvswitch-8xib-ndr",
            {0.0625: 3.63, 1: 27.33, 8: 118.57, 64: 269.98, 512: 426.97, 16384: 469.21},
        ),
        (
            "4x8x-h100-nvswitch-8xib-ndr",
            {0.0625: 2.50, 1: 24.73, 16: 125.23, 128: 262.48, 16384: 365.84},
        ),
    ],
)
def test_published_curves_over_networks_within_a_sixth(name, curve):
    fabric = cost.fabric_of(machines.machine(name))
    for mebibytes, published in curve.items():
        nbytes = int(mebibytes * MIB)
        seconds = cost.all_reduce_s(nbytes, fabric)
        found = bus_bandwidth(nbytes, fabric.ranks, seconds) / GIGA
        assert found == pytest.approx(published, rel=1 / 6), mebibytes


def test_through_the_hosts_memory_as_published():
    # Eight RTX 4090 on two EPYC 7542, without peers, by one process (blog.chlc.cc, 2024).
    fabric = cost.fabric_of(machines.machine("8x-rtx-4090-epyc"))
    for mebibytes, published in {1: 8.24, 16: 14.88, 128: 14.45}.items():
        seconds = cost.launched_by_one_thread_s(cost.all_reduce_s(mebibytes * MIB, fabric), 8)
        found = bus_bandwidth(mebibytes * MIB, 8, seconds) / GIGA
        assert found == pytest.approx(published, rel=0.1), mebibytes


def test_one_thread_needs_longer_to_launch_than_a_small_sum_takes():
    seconds = cost.all_reduce_s(1024, AMPERE)
    assert 10 * MICRO < seconds < 20 * MICRO
    assert cost.launched_by_one_thread_s(seconds, 8) == pytest.approx(40 * MICRO)
    assert cost.launched_by_one_thread_s(1.0, 8) == 1.0


def test_the_blocks_of_a_kernel_are_its_channels():
    assert cost.blocks_of(2**30, AMPERE) == 24  # of 108 multiprocessors
    assert cost.blocks_of(2**30, HOPPER) == 16
    assert cost.blocks_of(2**30, BUS) == 4
    assert cost.blocks_of(100, AMPERE) == 1
    assert cost.taken_share(2**30, AMPERE, 108) == pytest.approx(24 / 108)
    assert cost.taken_share(2**30, AMPERE, 10) == 0.5
    assert cost.taken_share(2**30, AMPERE, None) == 0


# --- the others -----------------------------------------------------------------------------------


def test_halves_of_a_ring():
    nbytes, others = 10**8, 7 / 8
    expected_s = (8.4 + 7 * 3.4) * 1.9 * MICRO + nbytes * others / (120 * GIGA)
    for half in (cost.reduce_scatter_s, cost.all_gather_s):
        assert half(nbytes, NODE, protocol="Simple") == pytest.approx(expected_s)
    both = cost.reduce_scatter_s(nbytes, NODE) + cost.all_gather_s(nbytes, NODE)
    begun_twice_s = 8.4 * 1.9 * MICRO
    whole_s = cost.all_reduce_s(nbytes, NODE, algorithm="ring")
    assert both == pytest.approx(whole_s + begun_twice_s)


def test_steps_of_a_ring_take_longer_when_there_is_something_to_hand_on():
    # Panlichen, nccl-tests (2023-2024): all-gathers in Simple of 8 V100, KiB to microseconds.
    for kibibytes, published_us in {1: 34.97, 256: 55.81, 1024: 66.73}.items():
        found = cost.all_gather_s(kibibytes * 1024, NODE, protocol="Simple")
        assert found == pytest.approx(published_us * MICRO, rel=1 / 6), kibibytes
    # A chain has no rounds.
    chain_s = cost.broadcast_s(2**20, NODE, protocol="Simple")
    assert chain_s == pytest.approx((8.4 + 7 * 3.4) * MICRO + 2**20 / (120 * GIGA))


def test_a_chain_sends_everything_over_each_link():
    expected_s = (8.4 + 3 * 5.7) * MICRO + 1e8 / (24 * GIGA)
    assert cost.broadcast_s(10**8, BUS, protocol="Simple") == pytest.approx(expected_s)
    assert cost.reduce_s(10**8, BUS, protocol="Simple") == pytest.approx(expected_s)


def test_sends_side_by_side():
    # Three quarters leave each GPU; of a node's 8, 24 of 32 parts each share its port.
    expected_s = (8.4 + 5.7) * MICRO + 3 / 4 * 1e8 / (24 * GIGA)
    assert cost.all_to_all_s(10**8, BUS, protocol="Simple") == pytest.approx(expected_s)
    expected_s = 8 * 24 / 32 * 1e9 / (12 * GIGA)
    assert cost.all_to_all_s(10**9, CLUSTER) == pytest.approx(expected_s, rel=1e-3)
    assert cost.gather_s(10**9, CLUSTER) == pytest.approx(expected_s / 8, rel=2e-3)
    pair = cost.Fabric(2, 1, 24 * GIGA, medium="pcie")
    expected_s = (8.4 + 5.7) * MICRO + 1e8 / (24 * GIGA)
    assert cost.send_s(10**8, pair) == pytest.approx(expected_s)


@pytest.mark.parametrize("fabric", [NODE, HOPPER, CLUSTER, BUS])
@pytest.mark.parametrize("name", ONES)
def test_no_collective_beats_its_bytes_on_a_link(name, fabric):
    seconds = cost.collective_s(name, 10**9, fabric)
    assert seconds == ONES[name](10**9, fabric)
    slowest = min(fabric.bus_bytes_per_s, fabric.network_bytes_per_s)
    share = (fabric.ranks - 1) / fabric.ranks
    assert seconds > share * 10**9 / max(fabric.bus_bytes_per_s, slowest)
    assert cost.collective_s(name, 10**9, fabric) > cost.collective_s(name, 1, fabric) > 0


def test_a_name_that_no_collective_has():
    with pytest.raises(ValueError, match="no collective is called 'reduce_all': take all_reduce"):
        cost.collective_s("reduce_all", 1, NODE)


# --- machines -------------------------------------------------------------------------------------


def test_a_machine_of_the_catalogue_as_a_fabric():
    cluster = cost.fabric_of(machines.machine("4x8x-v100-dgx1-4xib-edr"))
    assert (cluster.ranks, cluster.nodes, cluster.local) == (32, 4, 8)
    assert cluster.bus_bytes_per_s == pytest.approx(6 * 22.4 * GIGA)  # as measured
    assert cluster.network_bytes_per_s == pytest.approx(4 * 12 * GIGA)  # NET_BW
    assert cluster.channels == 2  # the network feeds no more
    assert cost.fabric_of(machines.machine("8x-v100-dgx1")).channels == 12  # two a link
    hopper = cost.fabric_of(machines.machine("8x-h100-nvswitch"), 4)
    assert (hopper.ranks, hopper.nodes, hopper.switch_adds) == (4, 1, True)
    ampere = cost.fabric_of(machines.machine("8x-a100-nvswitch"))
    assert (ampere.bus_bytes_per_s, ampere.amd, ampere.channels) == (235 * GIGA, True, 24)


def test_without_peers_all_goes_through_the_hosts_memory():
    box = machines.machine("8x-rtx-4090-epyc").with_accelerators(4)
    alone = cost.fabric_of(box)
    assert (alone.medium, alone.bus_bytes_per_s) == ("host", pytest.approx(0.65 * 24 * GIGA))
    assert alone.channels == 2
    shared = replace(box, uplink_shared_by=2)
    assert cost.fabric_of(shared).bus_bytes_per_s == pytest.approx(alone.bus_bytes_per_s / 2)
    # What each of four sends is written once and read once.
    slow = replace(box, host=replace(box.host, memory_bytes_per_s=40 * GIGA))
    assert cost.fabric_of(slow).bus_bytes_per_s == pytest.approx(5 * GIGA)
    desktop = cost.fabric_of(machines.machine("4x-rtx-4090"))  # of two channels of memory
    assert desktop.bus_bytes_per_s == pytest.approx(27 / 8 * GIGA)
    peers = cost.fabric_of(box.with_peer(box.host_link))
    assert cost.all_reduce_s(MIB, peers) < cost.all_reduce_s(MIB, alone)


def test_a_ring_crosses_between_sockets():
    qpi = Link("QPI", 1 * MICRO, 6 * GIGA)
    box = replace(machines.machine("8x-v100-pcie"), socket_size=4, socket_link=qpi)
    assert [box.socket_of(i) for i in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert cost.fabric_of(box).bus_bytes_per_s == 6 * GIGA
    # A Xeon's host bridge cuts what passes between GPUs into small packets: 12 / 1.2.
    assert cost.fabric_of(box, 4).bus_bytes_per_s == pytest.approx(10 * GIGA)
    switched = replace(box, uplink_shared_by=4)
    assert cost.fabric_of(switched, 4).bus_bytes_per_s == pytest.approx(12 * GIGA)
    with pytest.raises(ValueError, match="give both, or neither"):
        replace(box, socket_link=None)


def test_a_network_without_gpudirect_goes_through_the_hosts_memory():
    cluster = machines.machine("2x8x-v100-pcie-8xib-edr")
    assert cost.fabric_of(cluster).network_bytes_per_s == pytest.approx(8 * 12 * GIGA)
    staged = replace(cluster, gpu_direct=False)
    assert cost.fabric_of(staged).network_bytes_per_s == pytest.approx(8 * 0.65 * 12 * GIGA)


def test_what_networks_reach_under_load():
    rates = {"ib-ndr": 0.96 * 50 * GIGA, "400gbe": 0.87 * 50 * GIGA}
    for network, rate in rates.items():
        cluster = machines.machine(f"2x8x-h100-nvswitch-8x{network}")
        assert cost.fabric_of(cluster).network_bytes_per_s == pytest.approx(8 * rate)
        assert cost.node_network_bytes_per_s(cluster) == pytest.approx(8 * rate)
    adapter = Link("efa-v2", 9.6 * MICRO, 50 * GIGA, payload_share=0.96)
    slow = Link("efa-v1", 19.6 * MICRO, 12.5 * GIGA, payload_share=0.8)
    assert cost.network_latency_s(adapter) == pytest.approx(35 * MICRO)
    assert cost.network_latency_s(slow) == pytest.approx((75 + 10) * MICRO)
    assert cost.network_bytes_per_s(slow) == pytest.approx(0.8 * 12.5 * GIGA)
    assert cost.network_latency_s(Link("wire", 1 * MICRO, GIGA)) == 0
    reported = {"gib": 14, "tcpx": 750, "tcpxo": 65, "25gbe": 48, "100gbe": 0, "ib-ndr": 0}
    for network, us in reported.items():
        assert cost.network_latency_s(machines.NETWORKS[network]) == pytest.approx(us * MICRO)


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda f: cost.all_reduce_s(1, f, algorithm="nvls"), r"it takes NVSwitches that sum"),
        (lambda f: cost.all_reduce_s(1, f, algorithm="collnet"), r"it takes several nodes"),
        (lambda f: cost.all_reduce_s(1, f, algorithm="star"), r"by 'star': take ring, tree, nvls"),
        (lambda f: cost.all_reduce_s(1, f, protocol="LL64"), r"'LL64': take LL, LL128, Si"),
        (lambda f: cost.all_gather_s(1, f, algorithm="tree"), r"by 'tree': take ring"),
        (lambda f: cost.all_to_all_s(1, f, algorithm="ring"), r"by 'ring': take sends"),
        (lambda f: cost.all_to_all_s(1, f, protocol="LL128"), r"take LL or Simple"),
    ],
)
def test_what_a_machine_cannot_do(ask, error):
    with pytest.raises(ValueError, match=error):
        ask(cost.fabric_of(machines.machine("8x-a100-nvswitch"), 8))


@pytest.mark.parametrize("ranks", [1, 9])
def test_ranks_that_a_machine_does_not_have(ranks):
    with pytest.raises(ValueError, match=rf"takes 2 to 8 ranks, .* not {ranks}"):
        cost.fabric_of(machines.machine("8x-a100-nvswitch"), ranks)


def test_a_send_goes_over_the_links_between_two_gpus():
    cluster = machines.machine("2x8x-a100-nvswitch-4xib-hdr")
    within, between = (cost.send_s(2**30, cost.fabric_among(cluster, [0, to])) for to in (1, 8))
    assert between == pytest.approx(2**30 / (24 * GIGA), rel=0.01)
    assert within < between / 8


def test_no_ll128_without_nvlink():
    assert {protocol for _, protocol in cost.offered(BUS)} == {"LL", "Simple"}
    error = "no all-reduce by ring, LL128 over pcie .* it takes NVLink throughout; there is ring"
    with pytest.raises(ValueError, match=error):
        cost.all_reduce_s(1, BUS, algorithm="ring", protocol="LL128")


def test_ranks_must_be_spread_evenly():
    cluster = machines.machine("2x8x-a100-nvswitch-4xib-hdr")
    with pytest.raises(ValueError, match=r"10 ranks do not fill nodes .* a multiple of 8"):
        cost.fabric_of(cluster, 10)
    for ranks, nodes in ((1, 1), (8, 0), (10, 4)):
        with pytest.raises(ValueError, match="two ranks or more, evenly"):
            cost.Fabric(ranks, nodes, GIGA)


# --- what steps and networks cost besides ---------------------------------------------------------


def test_a_ring_between_nodes_copies_its_first_chunks_before_it_sends_them():
    # Two channels, 32 ranks: as fast as within a node by LL128, and twice around.
    within = 0.92 * 120 * GIGA
    copying_s = CLUSTER.channels * 32 * 64 * 1024 * 62 / 32 / within
    found = cost.all_reduce_s(10**9, CLUSTER, algorithm="ring", protocol="LL128")
    unfilled = cost.latency_s("ring", "LL128", 10**9, CLUSTER) + 1e9 / cost.bandwidth(
        "ring", "LL128", 10**9, CLUSTER
    )
    assert found == pytest.approx(unfilled + copying_s)
    small = cost.all_reduce_s(10**5, CLUSTER, algorithm="ring", protocol="LL128")
    once = cost.latency_s("ring", "LL128", 10**5, CLUSTER) + 1e5 / cost.bandwidth(
        "ring", "LL128", 10**5, CLUSTER
    )
    assert small == pytest.approx(once + 1e5 * 62 / 32 / within)


def test_a_long_ring_fills_as_its_published_time_says():
    # 1024 H100 over RoCE, ring, LL128: 1 GiB at 110.84 GB/s (NVIDIA/nccl-tests issue 322).
    machine = machines.machine("128x8x-h100-nvswitch-8x400gbe")
    fabric = cost.fabric_of(machine, 1024)
    seconds = cost.all_reduce_s(2**30, fabric, algorithm="ring", protocol="LL128")
    assert bus_bandwidth(2**30, 1024, seconds) == pytest.approx(110.84 * GIGA, rel=0.2)


def test_blocks_of_a_tree_store_what_they_handle_at_once_at_each_step_of_ll():
    # 512 threads of 8 bytes at 10 GB/s, seven GPUs up and seven down; the table has one word's way.
    def besides_s(nbytes: int, protocol: str) -> float:
        found = cost.all_reduce_s(nbytes, AMPERE, algorithm="tree", protocol=protocol)
        rate = cost.bandwidth("tree", protocol, nbytes, AMPERE)
        return found - cost.latency_s("tree", protocol, nbytes, AMPERE) - nbytes / rate

    assert besides_s(16384, "LL") == pytest.approx(14 * 512 * 8 / (10 * GIGA))
    assert besides_s(1024, "LL") == pytest.approx(14 * 1024 / (10 * GIGA))
    assert besides_s(16384, "LL128") == pytest.approx(0.0, abs=1e-12)


def test_hosts_post_what_a_tree_sends_between_nodes():
    # Tree, LL, four nodes of eight: 14 steps within, 2 x 2 between of 5 us, each posted in 1 us by
    # an Intel and in 2 us by an AMD.
    for amd, post_us in ((False, 1.0), (True, 2.0)):
        fabric = replace(CLUSTER, amd=amd)
        expected_us = 6.8 + 14 * 0.6 + 4 * (5.0 + post_us)
        assert cost.latency_s("tree", "LL", 8, fabric) == pytest.approx(expected_us * MICRO)
    # 4 KiB on four nodes of H100: 42.18 us (NVIDIA/nccl-tests issue 309).
    fabric = cost.fabric_of(machines.machine("4x8x-h100-nvswitch-8xib-ndr"), 32)
    assert cost.all_reduce_s(4096, fabric) == pytest.approx(42.18 * MICRO, rel=0.12)
