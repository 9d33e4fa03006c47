"""Wrong versions of what students write in "Automatic parallelism"."""

import pytest
import torch

from d2lpar import checks


def copies_in_a_second_stream(x, buffers, *, waits=True, recorded=True, each=None, end=None):
    copying = torch.cuda.Stream()
    for buffer in buffers:
        y = x.mm(x)
        if waits:
            copying.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copying):
            buffer.copy_(y, non_blocking=True)
        if recorded:
            y.record_stream(copying)
        if each:
            each(copying)
    (end or torch.cuda.synchronize)()


def in_one_stream(x, buffers):
    for buffer in buffers:
        buffer.copy_(x.mm(x), non_blocking=True)
    torch.cuda.synchronize()


def makes_the_host_wait(x, buffers):
    copies_in_a_second_stream(x, buffers, each=lambda copying: copying.synchronize())


def copies_too_early(x, buffers):
    copies_in_a_second_stream(x, buffers, waits=False)


def forgets_record_stream(x, buffers):
    copies_in_a_second_stream(x, buffers, recorded=False)


def returns_too_early(x, buffers):
    copies_in_a_second_stream(x, buffers, end=lambda: None)


def computes_once(x, buffers):
    y = x.mm(x)
    for buffer in buffers:
        buffer.copy_(y, non_blocking=True)
    torch.cuda.synchronize()


def test_wait_stream_is_as_right_as_events():
    assert checks.run_and_copy(copies_in_a_second_stream)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (in_one_stream, "in a stream of their own"),
        (makes_the_host_wait, "without waiting"),
        (copies_too_early, "without waiting for the default stream"),
        (forgets_record_stream, "record_stream"),
        (returns_too_early, "may still write it"),
        (computes_once, "anew for each buffer"),
        (lambda x, buffers: torch.cuda.synchronize(), "expected x @ x"),
    ],
)
def test_a_wrong_overlap_is_told_what_is_wrong_and_drawn(wrong, says):
    verdict = checks.run_and_copy(wrong)
    assert verdict.status == checks.WRONG
    assert says in verdict.text
    assert verdict.picture["kind"] == "gantt"
