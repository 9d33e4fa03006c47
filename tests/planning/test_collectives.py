"""All-reduce against a plain sum, and the key-value store."""

import pytest
import torch

import d2lpar as par
from d2lpar.lesson.collectives import (
    KeyValueStore,
    all_reduce_naive,
    all_reduce_ring,
    all_reduce_tree,
)

ALL_REDUCES = [all_reduce_naive, all_reduce_tree, all_reduce_ring]


@pytest.fixture
def eight(gpus):
    with par.simulate("8x-v100-pcie", 8, with_values=True) as devices:
        yield devices


def on_devices(devices, shape, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randint(-1000, 1000, shape).to(dtype).to(device) for device in devices]


@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("n", range(1, 9))
def test_every_device_has_the_sum_exactly(eight, all_reduce, shape, n):
    for dtype in (torch.float64, torch.int64):  # whole numbers: no order of sums rounds them
        data = on_devices(eight[:n], shape, dtype)
        expected = sum(t.cpu() for t in data)
        same_objects = list(data)
        assert all_reduce(data) is None
        assert all(a is b for a, b in zip(data, same_objects, strict=True))
        assert [t.device for t in data] == eight[:n]
        assert all(torch.equal(t.cpu(), expected) for t in data)


@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
def test_tensors_that_want_gradients_are_summed_in_place(eight, all_reduce):
    data = [t.requires_grad_() for t in on_devices(eight[:3], (4,))]
    expected = sum(t.detach().cpu() for t in data)
    all_reduce(data)
    assert all(t.is_leaf and torch.equal(t.detach().cpu(), expected) for t in data)


@pytest.mark.parametrize("all_reduce", [all_reduce_naive, all_reduce_tree])
def test_views_are_summed_in_place(eight, all_reduce):
    whole = on_devices(eight[:3], (4, 6))
    data = [t[:, ::2].t() for t in whole]
    expected = sum(t.cpu() for t in data)
    all_reduce(data)
    assert all(torch.equal(t[:, ::2].t().cpu(), expected) for t in whole)


def test_a_ring_refuses_what_it_cannot_cut_in_place(eight):
    data = [t[:, ::2].t() for t in on_devices(eight[:3], (4, 6))]
    with pytest.raises((RuntimeError, ValueError), match=r"view|contiguous"):
        all_reduce_ring(data)


@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
def test_on_the_cpu_too(all_reduce):
    data = [torch.full((3,), float(i)) for i in range(4)]
    all_reduce(data)
    assert all(t.tolist() == [6, 6, 6] for t in data)


def sent(timeline):
    return [span for span in timeline if span.kind == "copy"]


def test_bytes_and_copies_are_those_of_the_textbook(eight):
    n, nbytes = 8, 8 * 1000 * 4
    counts = {}
    for all_reduce in ALL_REDUCES:
        data = [torch.ones(8000, device=device) for device in eight]
        with par.record() as timeline:
            all_reduce(data)
        copies = sent(timeline)
        counts[all_reduce] = len(copies)
        assert sum(span.bytes for span in copies) == 2 * (n - 1) * nbytes
        busiest = max(sum(s.bytes for s in copies if s.device == str(d)) for d in eight)
        if all_reduce is all_reduce_ring:
            assert busiest == 2 * (n - 1) * nbytes / n
        if all_reduce is all_reduce_naive:
            assert busiest == (n - 1) * nbytes
    assert counts == {all_reduce_naive: 14, all_reduce_tree: 14, all_reduce_ring: 14 * 8}


def test_a_ring_sends_and_receives_at_once(gpus):
    times = {}
    for all_reduce in ALL_REDUCES:
        with par.simulate("8x-a100-nvswitch") as devices:
            data = [torch.empty(25_000_000, device=device) for device in devices]
            watch = par.Timer()
            all_reduce(data)
            times[all_reduce] = watch.stop()
            link = 100e6 / 300e9  # one whole copy
    assert times[all_reduce_ring] < times[all_reduce_tree] < times[all_reduce_naive]
    assert times[all_reduce_ring] > 2 * 7 / 8 * link
    assert times[all_reduce_naive] > 14 * link


# --- key-value store ------------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["cpu", "vgpu:0", "vgpu:3"])
def test_push_takes_a_step_and_pull_tells_all(eight, home):
    store = KeyValueStore(home)
    value = torch.arange(3.0)
    store.init("w", value)
    value += 100  # the store has a copy
    gradients = [torch.full((3,), float(i), device=d) for i, d in enumerate(eight[:4])]
    targets = [torch.zeros(3, device=d) for d in (*eight[:4], torch.device("cpu"))]
    store.push("w", gradients, lr=0.5)
    store.pull("w", targets)
    assert [t.tolist() for t in targets] == [[-3, -2, -1]] * 5
    with pytest.raises(KeyError, match="'w' is set already"):
        store.init("w", value)
    for use in (lambda: store.push("v", [], lr=1), lambda: store.pull("v", [])):
        with pytest.raises(KeyError, match=r"'v' is not in the store; it has \['w'\]"):
            use()
