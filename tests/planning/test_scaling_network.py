"""What exchanging gradients costs on a network of levels, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lpar import machines, scaling
from d2lpar.machines import collective_cost as cost
from d2lpar.parallelism.scaling import Level, Network

GIGA = 1e9
NODE = machines.machine("8x-v100-dgx1")
SLOW = machines.NETWORKS["25gbe"]
# Four GPUs a node at 8 bytes a second, nodes at 2, in racks of three that send 3 together.
FABRIC = cost.Fabric(2, 1, 8.0)
HAND = Network(
    (Level("GPU", 4, 0.5, 8.0), Level("node", 3, 1.0, 2.0), Level("rack", inf, 2.0, 3.0)),
    FABRIC,
    2.0,
)
METHODS = scaling.METHODS


# --- networks -------------------------------------------------------------------------------------


def test_devices_are_spread_evenly_over_nodes_and_racks():
    assert HAND.sizes(1) == [1, 1, 1]
    assert HAND.sizes(4) == [4, 1, 1]
    assert HAND.sizes(5) == [3, 2, 1]  # as if there were six
    assert HAND.sizes(12) == [4, 3, 1]
    assert HAND.sizes(24) == [4, 3, 2]
    assert HAND.sizes(100_000) == [4, 3, 8334]
    with pytest.raises(
        ValueError, match=r"devices of Network\.sizes must be a whole number from 1 on, not 0"
    ):
        HAND.sizes(0)


def test_a_machine_and_a_network_make_the_same_as_the_cluster_of_that_name():
    made = Network.of(NODE, machines.NETWORKS["ib-edr"], ports=4)
    assert made == Network.of(machines.machine("64x8x-v100-dgx1-4xib-edr"))
    gpu, node = made.levels
    assert (gpu.members, gpu.latency_s) == (8, NODE.peer.latency_s)
    assert gpu.bytes_per_s == pytest.approx(6 * 22.4 * GIGA)
    assert (node.members, node.bytes_per_s) == (inf, 48 * GIGA)


def test_racks_share_what_leaves_them():
    racks = Network.of(NODE, SLOW, nodes_per_rack=16, oversubscription=4).levels
    assert [level.members for level in racks] == [8, 16, inf]
    assert racks[1].bytes_per_s == pytest.approx(0.87 * SLOW.bytes_per_s)  # Ethernet under load
    assert racks[2].bytes_per_s == pytest.approx(4 * racks[1].bytes_per_s)


def test_a_machine_alone_has_one_level_without_limit():
    alone = Network.of(machines.machine("2x-v100-textbook"))
    assert alone.sizes(16) == [16]
    assert alone.fabric_of(16).nodes == 1
    assert Network.of(machines.machine("4x-rtx-4090")).fabric.medium == "host"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ports": 0}, "ports of Network.of must"),
        ({"nodes_per_rack": -1}, "nodes_per_rack of Network.of"),
        ({"oversubscription": 0.5}, "1 or more, not 0.5"),
    ],
)
def test_a_network_needs_sensible_numbers(options, says):
    with pytest.raises(ValueError, match=says):
        Network.of(NODE, SLOW, **options)


def test_a_cluster_has_its_network():
    with pytest.raises(ValueError, match="a cluster already"):
        Network.of(machines.machine("2x8x-v100-dgx1-25gbe"), SLOW)


# --- exchanges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["64x8x-v100-dgx1-4xib-edr", "16x4x-p100-pcie-25gbe"])
def test_the_librarys_exchange_is_that_of_collective_cost(name):
    machine = machines.machine(name)
    exchange = scaling.library(Network.of(machine))
    per_node = machine.node_size
    for devices in (2, per_node, 2 * per_node, len(machine.accelerators)):
        expected_s = cost.all_reduce_s(10**8, cost.fabric_of(machine, devices))
        assert exchange(10**8, devices) == expected_s


def test_a_ring_is_as_slow_as_its_slowest_link():
    exchange = scaling.ring(HAND)
    # Four GPUs: 6 steps of 12 of 48 bytes at 8 a second, and 0.5 s each.
    assert exchange(48, 4) == pytest.approx(6 * (0.5 + 12 / 8))
    # Twelve: 22 steps of 4 bytes at a node's 2 a second, and 1 s each.
    assert exchange(48, 12) == pytest.approx(22 * (1 + 4 / 2))
    assert scaling.ring_bytes(48, HAND, 12) == {"GPU": 88.0, "node": 88.0}


def test_levels_are_exchanged_one_after_the_other():
    # Reduce-scatter and all-gather of 48 bytes within 4, all-reduce of it between 3 and 2.
    expected_s = 6 * (0.5 + 12 / 8) + 4 * (1 + 16 / 2) + 2 * (2 + 24 / 3)
    assert scaling.hierarchical(HAND)(48, 24) == pytest.approx(expected_s)
    assert scaling.hierarchical_bytes(48, HAND, 24) == {"GPU": 72.0, "node": 64.0, "rack": 48.0}
    assert scaling.hierarchical(HAND)(48, 4) == pytest.approx(scaling.ring(HAND)(48, 4))


def test_adding_up_in_the_node_first_spares_the_network():
    # Three nodes of four, each with a server: a node pushes 2/3 of what it has and is pulled from.
    with_it = scaling.store_bytes(48, HAND, 12)
    without = scaling.store_bytes(48, HAND, 12, aggregate=False)
    assert with_it == {"GPU": 72.0, "node": 64.0}
    assert without == {"node": 256.0}
    expected_s = 72 / 8 + 2 * 0.5 + 64 / 2 + 2 * 1.0
    assert scaling.key_value_store(HAND)(48, 12) == pytest.approx(expected_s)


def test_one_server_is_a_bottleneck_and_more_of_them_are_not():
    # One server receives 48 bytes from each of three nodes, then sends as much.
    one = scaling.store_bytes(48, HAND, 12, servers=1)
    assert one == {"GPU": 72.0, "node": 48.0, "rack": 144.0, "server": 144.0}
    assert scaling.store_bytes(48, HAND, 12, servers=1, aggregate=False)["server"] == 576.0
    assert scaling.store_bytes(48, HAND, 12, servers=6)["server"] == 24.0


def test_a_store_on_the_gpus_of_one_node_sends_what_a_ring_sends():
    alone = Network.of(NODE)
    assert scaling.store_bytes(8, alone, 8) == scaling.ring_bytes(8, alone, 8) == {"GPU": 14.0}
    assert scaling.store_bytes(8, alone, 8, aggregate=False) == {"GPU": 14.0}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_one_device_exchanges_nothing(method):
    assert method(HAND)(10**9, 1) == 0.0


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@given(
    devices=st.integers(2, 100_000),
    nbytes=st.integers(1, 10**10),
    faster=st.floats(1, 100),
    level=st.integers(0, 1),
)
def test_more_bandwidth_is_never_slower(method, devices, nbytes, faster, level):
    network = Network.of(NODE, SLOW)
    levels = list(network.levels)
    levels[level] = replace(levels[level], bytes_per_s=levels[level].bytes_per_s * faster)
    bus = network.fabric.bus_bytes_per_s * (faster if level == 0 else 1)
    better = Network(
        tuple(levels),
        replace(network.fabric, bus_bytes_per_s=bus),
        network.node_bytes_per_s * (faster if level == 1 else 1),
    )
    slow_s, fast_s = method(network)(nbytes, devices), method(better)(nbytes, devices)
    assert fast_s <= slow_s * (1 + 1e-12)


def test_half_precision_halves_the_bytes_for_three_bytes_of_memory_traffic_each():
    exchange = scaling.half_precision(scaling.ring(HAND), 30.0)
    assert exchange(48, 4) == pytest.approx(6 * (0.5 + 6 / 8) + 48 * 3 / 30)
    assert exchange(48, 1) == 0.0
