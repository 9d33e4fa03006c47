"""Copies through the host's memory: pieces that two engines carry at once."""

from __future__ import annotations

import dataclasses

import pytest

from d2lpar.machines import machine
from d2lpar.machines.hardware import Host, Link
from d2lpar.validation import predict, read_rows
from d2lpar.vgpu.sim.constants import (
    PAGE_LOCK_BYTES_PER_S,
    PAGEABLE_BYTES_PER_S,
    STAGED_PIECE_BYTES,
)
from d2lpar.vgpu.sim.staging import beside_link_s, host_copy_s, transfers

LINK = Link("bus", 2.0, 100.0)
ONE, TWO = (("up",), LINK, None), (("down",), LINK, 1)
PIECE = STAGED_PIECE_BYTES
ROWS = {row.id: row for row in read_rows()}


def test_a_copy_of_one_hop_is_one_transfer():
    assert transfers([ONE], 10 * PIECE) == [(("up",), 2 + PIECE / 10, None, 10 * PIECE)]
    assert transfers([], 5) == []


def test_one_piece_goes_up_and_then_down():
    assert transfers([ONE, TWO], PIECE) == [
        (("up",), 2 + PIECE / 100, None, PIECE),
        (("down",), 2 + PIECE / 100, 1, PIECE),
    ]


def test_of_many_pieces_all_but_one_go_up_while_others_go_down():
    sent = transfers([ONE, TWO], 10 * PIECE)
    assert [t.ports for t in sent] == [("up",), ("up", "down"), ("down",)]
    # Ten pieces on each way, nine of them beside nine of the other; each link's latency once.
    assert sum(t.seconds for t in sent) == pytest.approx(2 * 2 + 11 * PIECE / 100)
    assert sum(t.bytes for t in sent if "down" in t.ports) == 10 * PIECE


def test_what_is_slower_sets_the_time_of_many_pieces():
    slow = (("down",), dataclasses.replace(LINK, bytes_per_s=50.0), 1)
    sent = transfers([ONE, slow], 10 * PIECE)
    assert sum(t.seconds for t in sent) == pytest.approx(4 + PIECE / 100 + 10 * PIECE / 50)


def test_the_host_copies_while_the_link_carries():
    # Half a second a piece by the host, one by the link: of ten pieces one is by the host alone.
    assert beside_link_s(5.0, 10.0, 10 * PIECE) == pytest.approx(0.5)
    # The other way round the link carries one alone, and the host needs its ten seconds in all.
    assert beside_link_s(10.0, 5.0, 10 * PIECE) + 5 == pytest.approx(10.5)
    assert beside_link_s(1.0, 3.0, PIECE // 2) == 1.0  # nothing overlaps within a piece


def test_hosts_copy_at_their_own_rate():
    slow, quick = Host("unknown"), Host("quick", copy_bytes_per_s=2 * PAGEABLE_BYTES_PER_S)
    assert host_copy_s(slow, 1000) == 1000 / PAGEABLE_BYTES_PER_S == 2 * host_copy_s(quick, 1000)
    fresh_s = host_copy_s(quick, 1000, fresh=True) - host_copy_s(quick, 1000)
    assert fresh_s == pytest.approx(1000 / PAGE_LOCK_BYTES_PER_S)
    with pytest.raises(ValueError, match="copy_bytes_per_s"):
        Host("none", copy_bytes_per_s=0.0)


def test_servers_of_the_a100_copy_faster_than_those_of_the_v100():
    new, old = (machine(name).host for name in ("8x-a100-nvswitch", "8x-v100-dgx1"))
    assert (new.copy_bytes_per_s or 0) > 2 * PAGEABLE_BYTES_PER_S
    assert old.copy_bytes_per_s is None


@pytest.mark.parametrize(
    "name", ["nop2p-unidirectional-4090", "send-h100-host", "bandwidthtest-pageable-d2h-a100-sxm"]
)
def test_published_copies_through_the_hosts_memory(name):
    # One after the other they were half as fast: 36 to 55 % off.
    assert abs(predict(ROWS[name]).error) < 0.25
