"""NCCL's model of an all-reduce, against what follows from its tables by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from d2lpar import machines
from d2lpar.machines import collective_cost as cost

MICRO, GIGA = 1e-6, 1e9
NODE = cost.Fabric(8, 1, 120 * GIGA)  # eight V100 with six NVLinks
HOPPER = cost.Fabric(8, 1, 370.8 * GIGA, generation="hopper", switch_adds=True)
CLUSTER = cost.Fabric(32, 4, 120 * GIGA, 12 * GIGA)


def test_a_ring_sends_twice_almost_everything():
    # 14 steps of 3.4 us and 8.4 us once; 14/8 of the bytes through 120 GB/s.
    expected_s = (8.4 + 14 * 3.4) * MICRO + 1e9 * 14 / 8 / (120 * GIGA)
    found = cost.all_reduce_s(10**9, NODE, algorithm="ring", protocol="Simple")
    assert found == pytest.approx(expected_s)
    assert cost.bus_bandwidth(10**9, 8, 1e9 * 14 / 8 / (120 * GIGA)) == pytest.approx(120 * GIGA)


def test_ll_is_quick_and_slow():
    # A quarter of the bus, 30 GB/s, is below the 39 GB/s that LL reaches on Volta.
    expected_s = (6.6 + 14 * 0.6) * MICRO + 1e6 * 14 / 8 / (30 * GIGA)
    assert cost.all_reduce_s(10**6, NODE, algorithm="ring", protocol="LL") == pytest.approx(
        expected_s
    )
    wide = replace(NODE, bus_bytes_per_s=400 * GIGA)
    assert cost.bandwidth("ring", "LL", 0, wide) == pytest.approx(39 * GIGA * 8 / 14)


def test_a_tree_goes_up_and_down_once():
    # Six steps up a chain of seven links, and down: 14 steps of 28 us; half of 92 % of the bus.
    big = 2**30
    expected_s = 14 * 28 * MICRO + big / (120 * GIGA * 0.92 / 2)
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
    # 62 steps, 2 x 4 of them over the network; three posts of 1 us, below the 3.4 us of a step.
    expected_us = (8.4 + 54 * 3.4 + 8 * 14.0) * 1.9
    found = cost.latency_s("ring", "Simple", 2**30, CLUSTER)
    assert found == pytest.approx(expected_us * MICRO)
    amd = replace(CLUSTER, amd=True)  # two us a post: 6 us a step
    expected_us = (8.4 + 54 * 6 + 8 * 14.0) * 1.9
    assert cost.latency_s("ring", "Simple", 2**30, amd) == pytest.approx(expected_us * MICRO)


def test_a_switch_that_adds_spares_the_links():
    # A GPU sends all of its own for the sums and an eighth as a result: 9/8 through 85 % of a link.
    expected = 370.8 * GIGA * 0.85 / (9 / 8)
    assert cost.bandwidth("nvls", "Simple", 0, HOPPER) == pytest.approx(expected)
    chosen = min(cost.choices(2**34, HOPPER).items(), key=lambda item: item[1])
    assert chosen[0] == ("nvls", "Simple")
    assert ("nvls", "Simple") not in cost.choices(2**34, NODE)


def test_a_network_that_adds_carries_everything_once():
    fabric = replace(HOPPER, ranks=64, nodes=8, network_bytes_per_s=384 * GIGA, network_adds=True)
    within = 370.8 * GIGA * 8 / 14
    assert cost.bandwidth("collnet", "Simple", 0, fabric) == pytest.approx(0.85 * within)
    slow = replace(fabric, network_bytes_per_s=100 * GIGA)
    assert cost.bandwidth("collnet", "Simple", 0, slow) == pytest.approx(85 * GIGA)
    steps_us = 2 * (3.7 + 7 * 0.4) + 31
    assert cost.latency_s("collnet", "Simple", 0, fabric) == pytest.approx(steps_us * MICRO)


def test_small_messages_go_by_latency_and_large_ones_by_bandwidth():
    small, large = (
        min(cost.choices(nbytes, NODE).items(), key=lambda item: item[1])[0]
        for nbytes in (1024, 2**30)
    )
    assert small[1] == "LL"
    assert large == ("ring", "Simple")


def test_no_ll128_without_nvlink():
    pcie = replace(NODE, medium="pcie")
    assert {protocol for _, protocol in cost.choices(1, pcie)} == {"LL", "Simple"}
    with pytest.raises(ValueError, match="no all-reduce by ring, LL128"):
        cost.all_reduce_s(1, pcie, algorithm="ring", protocol="LL128")


def test_a_machine_of_the_catalogue_as_a_fabric():
    cluster = cost.fabric_of(machines.machine("4x8x-v100-dgx1-4xib-edr"))
    assert (cluster.ranks, cluster.nodes, cluster.local) == (32, 4, 8)
    assert cluster.bus_bytes_per_s == pytest.approx(6 * 20 * GIGA)  # SM70_NVLINK_BW
    assert cluster.network_bytes_per_s == pytest.approx(4 * 12 * GIGA)  # NET_BW
    hopper = cost.fabric_of(machines.machine("8x-h100-nvswitch"), 4)
    assert (hopper.ranks, hopper.nodes, hopper.switch_adds) == (4, 1, True)
    ampere = cost.fabric_of(machines.machine("8x-a100-nvswitch"))
    assert (ampere.bus_bytes_per_s, ampere.amd) == (235 * GIGA, True)
    without_peers = cost.fabric_of(machines.machine("4x-rtx-4090"))
    assert (without_peers.medium, without_peers.bus_bytes_per_s) == ("pcie", 24 * GIGA)


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (8, 0), (10, 4)])
def test_ranks_must_be_spread_evenly(ranks, nodes):
    with pytest.raises(ValueError, match="two ranks or more, evenly"):
        cost.Fabric(ranks, nodes, GIGA)
