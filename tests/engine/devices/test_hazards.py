"""The hazard detector: programs with a hazard and the same ones made right, told apart."""

import copy
import inspect
import io
import pickle
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import d2lpar as par
from d2lpar.vgpu.races import call_sites
from d2lpar.vgpu.races.stream_sanitizer import HazardWarning
from d2lpar.vgpu.races.vector_clock import VectorClocks

GPU = "vgpu:0"


def vgpu():
    return torch.get_device_module("vgpu")


def kinds(program):
    """The kinds of hazard in a program, each pair of places once."""
    with par.hazards() as found:
        program()
    return [hazard.kind for hazard in found]


@pytest.fixture
def side(fresh_gpus):
    return vgpu().Stream(GPU)


# --- vector clocks --------------------------------------------------------------------------------


def test_order_passes_from_stream_to_stream_and_over_the_host():
    order = VectorClocks()
    a, b, c = (0, 0), (0, 1), (1, 0)
    work = (a, order.epochs[a], None, order)
    assert order.is_before(work, a)
    assert not order.is_before(work, b)
    order.acquire(b, order.release(a))
    assert order.is_before(work, b)
    assert not order.is_before(work, c)
    later = (a, order.epochs[a], None, order)
    assert not order.is_before(later, b)  # queued after the event that b has waited for
    order.acquire(c, order.release(b))
    assert order.is_before(work, c)  # by way of b
    assert not order.is_done(work)
    order.host_acquires(order.release(c))
    assert order.is_done(work)
    assert not order.is_done(later)
    order.host_acquires(order.release(a))
    assert order.is_before(later, b)  # b is given its work after the host has waited


def test_work_before_a_new_epoch_is_told_from_work_after_it():
    """As a backward pass tells what it finds from what it does, on all streams at once."""
    order = VectorClocks()
    streams = [(0, 0), (0, 1)]
    before = [(stream, order.epochs[stream], None, order) for stream in streams]
    known = order.release((0, 0))
    begun = order.advance()
    assert begun == order.epochs
    for access in before:
        assert access[1] < begun[access[0]]
    order.acquire((0, 1), known)
    after = ((0, 0), order.epochs[0, 0], None, order)
    assert order.is_before(before[0], (0, 1))
    assert not order.is_before(after, (0, 1))


# --- use on another stream ------------------------------------------------------------------------


def read_on(side, wait):
    x = torch.ones(1000, device=GPU) * 2
    wait(x)
    with vgpu().stream(side):
        y = x + 1
    vgpu().synchronize()
    return y


ORDERED = {
    "wait_stream": lambda side, x: side.wait_stream(vgpu().current_stream()),
    "wait_event": lambda side, x: side.wait_event(vgpu().current_stream().record_event()),
    "event.wait": lambda side, x: vgpu().current_stream().record_event().wait(side),
    "synchronize": lambda side, x: vgpu().synchronize(),
    "stream.synchronize": lambda side, x: vgpu().current_stream().synchronize(),
    "event.synchronize": lambda side, x: vgpu().current_stream().record_event().synchronize(),
    "item": lambda side, x: x.sum().item(),
    "cpu": lambda side, x: x.cpu(),
    "accelerator": lambda side, x: torch.accelerator.synchronize(),
}


@pytest.mark.parametrize("how", ORDERED)
def test_a_stream_may_use_what_it_has_waited_for(side, how):
    assert kinds(lambda: read_on(side, lambda x: ORDERED[how](side, x))) == []


def test_using_a_tensor_without_waiting_for_its_writer_is_a_hazard(side):
    assert kinds(lambda: read_on(side, lambda x: None)) == ["read"]
    event = vgpu().Event()
    event.record()  # before the write, so it says nothing of it
    assert kinds(lambda: read_on(side, lambda x: side.wait_event(event))) == ["read"]
    # Waiting the wrong way round:
    assert kinds(lambda: read_on(side, lambda x: vgpu().current_stream().wait_stream(side)))


def test_tensors_from_before_the_first_stream_count(fresh_gpus):
    x = torch.ones(1000, device=GPU)
    side = vgpu().Stream(GPU)

    def use():
        with vgpu().stream(side):
            x + 1

    assert kinds(use) == ["read"]
    y = torch.ones(1000, device="vgpu:1")
    vgpu().synchronize("vgpu:1")

    def use_there():
        with vgpu().stream(vgpu().Stream("vgpu:1")):
            y + 1

    assert kinds(use_there) == []


def test_both_places_the_tensor_and_the_remedy_are_named(side):
    with par.hazards() as found:
        x = torch.ones(3, 4, device=GPU)
        first = inspect.currentframe().f_lineno - 1
        with vgpu().stream(side):
            x.sum()
        second = inspect.currentframe().f_lineno - 1
    (hazard,) = found
    assert [hazard.first.line, hazard.second.line] == [first, second]
    assert hazard.first.file == hazard.second.file == __file__
    assert hazard.second.source == "x.sum()"
    for words in (
        "a tensor of 3 × 4 float32 on vgpu:0",
        f"used on stream 1 of vgpu:0 at test_hazards.py:{second}",
        f"the default stream of vgpu:0, which wrote it at test_hazards.py:{first}",
        'stream1.wait_stream(torch.vgpu.default_stream("vgpu:0"))',
        "wait_event()",
    ):
        assert words in str(hazard)


def test_a_pair_of_places_is_reported_once_and_as_a_warning_by_default(side):
    x = torch.ones(3, device=GPU)

    def use(times=1):
        for _ in range(times):
            with vgpu().stream(side):
                x + 1

    with pytest.warns(HazardWarning, match="without waiting") as caught:
        use(times=2)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert kinds(lambda: use(times=2)) == ["read"]
    assert issubclass(HazardWarning, UserWarning)


def test_overwriting_what_another_stream_may_still_read(side):
    def overwrite(wait):
        x = torch.ones(1000, device=GPU)
        side.wait_stream(vgpu().current_stream())
        with vgpu().stream(side):
            y = x * 2
        if wait:
            vgpu().current_stream().wait_stream(side)
        x.zero_()
        vgpu().synchronize()
        return y

    assert kinds(lambda: overwrite(wait=True)) == []
    assert kinds(lambda: overwrite(wait=False)) == ["write"]


def test_overwriting_what_another_stream_may_still_write(side):
    x = torch.ones(1000, device=GPU)
    vgpu().synchronize()

    def twice():
        with vgpu().stream(side):
            torch.mul(x, 2, out=x)
        torch.add(x, 1, out=x)

    assert kinds(twice) == ["write"]


def test_reading_on_two_streams_at_once_is_none(side):
    x = torch.ones(1000, device=GPU)
    vgpu().synchronize()

    def read():
        with vgpu().stream(side):
            x + 1
        x + 2

    assert kinds(read) == []


def test_parts_of_a_tensor_that_do_not_overlap_are_two_tensors(side):
    x = torch.ones(10, 4, device=GPU)
    vgpu().synchronize()

    def write(rows, others):
        with vgpu().stream(side):
            x[rows] += 1
        x[others] += 1
        vgpu().synchronize()

    assert kinds(lambda: write(slice(0, 5), slice(5, 10))) == []
    assert kinds(lambda: write(slice(0, 5), slice(4, 10)))


def test_an_earlier_write_to_another_part_is_not_forgotten(side):
    x = torch.ones(10, device=GPU)
    vgpu().synchronize()
    with vgpu().stream(side):
        x[:5] += 1
    x[5:] += 1  # ordered; the last write of the whole
    assert kinds(lambda: x[:5] + 1) == ["read"]


@pytest.mark.parametrize("waits", [True, False])
def test_copies_between_devices_order_both_their_streams(side, waits):
    x = torch.ones(1000, device=GPU)

    def send():
        y = (x * 2).to("vgpu:1")  # on the default streams of both
        y += 1
        x.mul_(3)
        with vgpu().stream(side):
            if waits:
                side.wait_stream(vgpu().default_stream(GPU))
            return (x + 1).to("vgpu:1")  # the default stream of vgpu:1 waits for it

    assert kinds(send) == ([] if waits else ["read"])


def test_a_copy_orders_devices_for_those_who_come_after(side):
    def program():
        with vgpu().stream(side):
            x = torch.ones(10, device=GPU)
            y = x.to("vgpu:1")
        z = y + 1  # vgpu:1's stream has waited for side
        back = z.to(GPU)  # and so has, now, vgpu:0's default stream
        x.record_stream(vgpu().current_stream())
        return back + x

    assert kinds(program) == []


# --- freed memory ---------------------------------------------------------------------------------


def free_while_used(side, *, before_free=None, size=100_000, after=100_000):
    x = torch.ones(size, device=GPU)
    side.wait_stream(vgpu().current_stream())
    with vgpu().stream(side):
        (x * 2).sum()
    if before_free:
        before_free(x)
    del x
    y = torch.ones(after, device=GPU)
    vgpu().synchronize()
    return y


def test_memory_that_is_freed_while_another_stream_uses_it(side):
    with par.hazards() as found:
        free_while_used(side)
    assert [hazard.kind for hazard in found] == ["free"]
    assert "tensor.record_stream(stream1)" in str(found[0])
    assert found[0].first.source == "(x * 2).sum()"
    assert found[0].second.source == "y = torch.ones(after, device=GPU)"


def test_record_stream_or_waiting_makes_freeing_safe(side):
    assert kinds(lambda: free_while_used(side, before_free=lambda x: x.record_stream(side))) == []
    wait = vgpu().current_stream().wait_stream
    assert kinds(lambda: free_while_used(side, before_free=lambda x: wait(side))) == []
    other = vgpu().Stream(GPU)
    wrong = kinds(lambda: free_while_used(side, before_free=lambda x: x.record_stream(other)))
    assert wrong == ["free"]


def test_memory_that_does_not_fit_is_not_reused(side):
    assert kinds(lambda: free_while_used(side, size=1000, after=2000)) == []
    # The allocator keeps small blocks apart from large ones.
    assert kinds(lambda: free_while_used(side, size=10**6, after=100)) == []


def test_waiting_after_the_free_is_early_enough_before_the_next_tensor(side):
    def program():
        x = torch.ones(1000, device=GPU)
        side.wait_stream(vgpu().current_stream())
        with vgpu().stream(side):
            y = x * 2
        del x
        vgpu().current_stream().wait_stream(side)
        return y, torch.ones(1000, device=GPU)

    assert kinds(program) == []


def test_a_tensor_made_on_a_side_stream_and_used_on_the_main_one(side):
    def program(record):
        main = vgpu().current_stream()
        with vgpu().stream(side):
            x = torch.ones(1000, device=GPU)
        main.wait_stream(side)
        x + 1
        if record:
            x.record_stream(main)
        del x
        with vgpu().stream(side):
            return torch.zeros(1000, device=GPU)

    assert kinds(lambda: program(record=True)) == []
    assert kinds(lambda: program(record=False)) == ["free"]


# --- the host -------------------------------------------------------------------------------------

READS = {
    "item": lambda y: y[0].item(),
    "numpy": lambda y: y.numpy(),
    "tolist": lambda y: y.tolist(),
    "repr": repr,
    "sum": lambda y: y.sum(),
    "+": lambda y: 1 + y,
    "bool": lambda y: bool(y[0]),
    "cat": lambda y: torch.cat([torch.ones(2), y]),
    "view": lambda y: y.view(2, 2)[0].clone(),
    "another dtype": lambda y: y.to(torch.float64),
    "a gradient": lambda y: nn.functional.linear(torch.ones(4, requires_grad=True), y[None]),
    "in place": lambda y: y.add_(1),
    "out": lambda y: torch.ones(4).add_(y),
    "pickle": pickle.dumps,
    "save": lambda y: torch.save(y, io.BytesIO()),
    "deepcopy": copy.deepcopy,
    "array": lambda y: memoryview(y.numpy()),
    "equal": lambda y: torch.equal(y, torch.ones(4)),
}
LOOKS = {
    "shape": lambda y: (y.shape, y.size(), y.dim(), y.stride(), len(y), y.numel(), y.dtype),
    "pinned": lambda y: y.is_pinned(),
    "device": lambda y: (y.device, y.is_cpu, y.data_ptr(), y.requires_grad),
    "isinstance": lambda y: isinstance(y, torch.Tensor) and torch.is_tensor(y),
    "view": lambda y: y.view(2, 2).t()[0].detach(),
    "back to the device": lambda y: y.to(GPU, non_blocking=True) + 1,
    "list": lambda y: [y, y][1],
}


@pytest.mark.parametrize("how", READS)
def test_reading_before_a_non_blocking_copy_is_done(fresh_gpus, how):
    y = torch.ones(4, device=GPU).to("cpu", non_blocking=True)
    (kind,) = kinds(lambda: READS[how](y))
    assert kind == ("host write" if how == "in place" else "host read")
    assert type(y) is torch.Tensor
    assert kinds(lambda: READS[how](y)) == []  # said once


@pytest.mark.parametrize("how", READS)
def test_reading_after_the_host_has_waited(fresh_gpus, how):
    y = torch.ones(4, device=GPU).to("cpu", non_blocking=True)
    vgpu().synchronize()
    assert type(y) is torch.Tensor
    assert kinds(lambda: READS[how](y)) == []


@pytest.mark.parametrize("how", LOOKS)
def test_what_needs_no_values_is_no_read(fresh_gpus, how):
    y = torch.ones(4, device=GPU).to("cpu", non_blocking=True)
    assert kinds(lambda: LOOKS[how](y)) == []
    vgpu().synchronize()
    assert torch.equal(y, torch.ones(4))


def test_any_wait_for_the_stream_will_do_and_no_other(fresh_gpus):
    x, other = torch.ones(4, device=GPU), torch.ones(4, device="vgpu:1")
    copied = vgpu().Event()
    for wait, enough in (
        (lambda: vgpu().current_stream().synchronize(), True),
        (lambda: copied.synchronize(), True),
        (lambda: x.sum().item(), True),
        (lambda: vgpu().synchronize("vgpu:1"), False),
        (lambda: other.sum().item(), False),
    ):
        y = x.to("cpu", non_blocking=True)
        copied.record()
        wait()
        assert (kinds(lambda: y.sum()) == []) is enough  # noqa: B023


def test_an_event_from_before_the_copy_does_not_help(fresh_gpus):
    x, early = torch.ones(4, device=GPU), vgpu().Event()
    early.record()
    y = x.to("cpu", non_blocking=True)
    early.synchronize()
    assert kinds(lambda: y.sum()) == ["host read"]


def test_polling_an_event_until_it_has_happened_is_waiting(fresh_gpus):
    y = torch.ones(4, device=GPU).to("cpu", non_blocking=True)
    copied = vgpu().current_stream().record_event()
    assert not copied.query()
    assert type(y) is not torch.Tensor
    par.host_work(1.0, "something else")
    assert copied.query()
    assert type(y) is torch.Tensor


def test_copying_into_a_pinned_buffer(fresh_gpus):
    buffer, x = torch.zeros(4).pin_memory(), torch.ones(4, device=GPU)
    buffer.copy_(x, non_blocking=True)
    assert kinds(lambda: buffer.sum()) == ["host read"]
    buffer.copy_(x, non_blocking=True)
    buffer.copy_(x + 1, non_blocking=True)  # one stream, so one after the other
    vgpu().synchronize()
    assert kinds(lambda: buffer.tolist()) == []
    pageable = torch.zeros(4)
    pageable.copy_(x, non_blocking=True)  # waits
    assert kinds(lambda: pageable.tolist()) == []


def test_overwriting_a_buffer_that_a_copy_may_still_read(fresh_gpus):
    buffer = torch.ones(4).pin_memory()
    x = buffer.to(GPU, non_blocking=True)
    assert kinds(lambda: buffer.sum()) == []  # reading at once is harmless
    for write in (
        lambda: buffer.zero_(),
        lambda: buffer.__setitem__(0, 5.0),
        lambda: torch.add(buffer, 1, out=buffer),
        lambda: buffer[:2].fill_(3),
    ):
        buffer.to(GPU, non_blocking=True)
        assert kinds(write) == ["host write"]
        buffer.to(GPU, non_blocking=True)
        vgpu().synchronize()
        assert kinds(write) == []
    del x


def test_two_streams_and_one_pinned_buffer(side):
    buffer, x = torch.zeros(4).pin_memory(), torch.ones(4, device=GPU)
    vgpu().synchronize()

    def program(wait):
        buffer.copy_(x, non_blocking=True)
        with vgpu().stream(side):
            if wait:
                side.wait_stream(vgpu().default_stream(GPU))
            y = buffer.to(GPU, non_blocking=True)
        vgpu().synchronize()
        return y

    assert kinds(lambda: program(wait=False)) == ["host read"]
    assert kinds(lambda: program(wait=True)) == []


def test_results_are_plain_tensors_and_gradients_flow(fresh_gpus):
    x = torch.ones(4, device=GPU, requires_grad=True)
    y = (x * 2).to("cpu", non_blocking=True)
    with par.hazards():
        z = y + 1
    assert type(z) is torch.Tensor
    assert type(y) is torch.Tensor
    z.sum().backward()
    assert x.grad.tolist() == [2.0] * 4


def test_a_class_that_a_program_has_given_stays(fresh_gpus):
    class Mine(torch.Tensor):
        pass

    buffer = torch.zeros(4).pin_memory().as_subclass(Mine)
    buffer.copy_(torch.ones(4, device=GPU), non_blocking=True)
    assert type(buffer) is Mine
    vgpu().synchronize()
    assert type(buffer) is Mine


# --- what is no hazard ----------------------------------------------------------------------------


def make_net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


def train(net, X, y, steps=3):
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()


def batch(device):
    return torch.rand(8, 1, 8, 8).to(device), torch.zeros(8, dtype=torch.long).to(device)


def test_training_on_one_stream_has_none(side):
    net = make_net().to(GPU)
    assert kinds(lambda: train(net, *batch(GPU))) == []


def test_training_on_a_side_stream_has_none_with_proper_waits(side):
    def program():
        net, (X, y) = make_net().to(GPU), batch(GPU)
        side.wait_stream(vgpu().current_stream())
        with vgpu().stream(side):
            train(net, X, y)
        vgpu().current_stream().wait_stream(side)
        return sum(p.sum() for p in net.parameters()).item()

    assert kinds(program) == []


def test_data_parallel_has_none(fresh_gpus):
    net = make_net().to(GPU)
    parallel = nn.DataParallel(net, [0, 1, 2])

    def program():
        for _ in range(3):
            X, y = torch.rand(9, 1, 8, 8), torch.zeros(9, dtype=torch.long).to(GPU)
            nn.functional.cross_entropy(parallel(X), y).backward()

    assert kinds(program) == []


def test_model_parallel_with_streams_has_none(side):
    first, second = nn.Linear(4, 4).to(GPU), nn.Linear(4, 4).to("vgpu:1")
    X = torch.ones(2, 4, device=GPU)
    side.wait_stream(vgpu().current_stream())

    def program():
        with vgpu().stream(side):
            loss = second(first(X).to("vgpu:1")).sum()
        vgpu().current_stream().wait_stream(side)
        loss.backward()

    assert kinds(program) == []


# --- backward passes ------------------------------------------------------------------------------


def test_a_backward_operation_runs_on_the_stream_of_its_forward_operation(side):
    x = torch.ones(100, device=GPU, requires_grad=True)
    side.wait_stream(vgpu().current_stream())
    with par.record() as timeline:
        a = x.sin()
        with vgpu().stream(side):
            b = x.cos()
        vgpu().current_stream().wait_stream(side)
        loss = (a + b).sum()
        loss.backward()
    spans = list(timeline.on(GPU, "compute"))
    names = [(s.name, s.stream) for s in spans]
    at = names.index(("ones_like", 0))
    assert names[:2] == [("sin", 0), ("cos", 1)]
    assert ("cos", 0) in names[at:]  # the derivative of the sine
    assert ("sin", 1) in names[at:]  # that of the cosine, on the side stream
    assert torch.allclose(x.grad.cpu(), torch.full((100,), 1.0).cos() - torch.ones(100).sin())


@pytest.mark.parametrize("first_on_side", [False, True])
def test_a_leaf_gets_its_gradient_on_the_stream_that_has_used_it_first(side, first_on_side):
    """As in PyTorch's own test of streams in backward passes; a later step may use another."""
    x = torch.ones(100, device=GPU, requires_grad=True)
    found = []
    x.register_hook(lambda grad: found.append(vgpu().current_stream().stream_id))

    def step(on_side):
        side.wait_stream(vgpu().current_stream())
        streams = (side, None) if on_side else (None, side)
        with vgpu().stream(streams[0]):
            a = x * 2
        with vgpu().stream(streams[1]):
            b = x * 3
        vgpu().current_stream().wait_stream(side)
        (a + b).sum().backward()
        return x.grad

    def program():
        step(first_on_side)
        x.grad = None
        assert step(not first_on_side).tolist() == [5.0] * 100

    assert kinds(program) == []
    numbers = [0, side.stream_id]
    assert found == (numbers[::-1] if first_on_side else numbers)


@pytest.mark.parametrize("look", [lambda x: x.data, lambda x: x.detach()])
def test_what_autograd_does_not_follow_is_no_use_of_a_leaf(side, look):
    x = torch.ones(100, device=GPU, requires_grad=True)
    found = []
    x.register_hook(lambda grad: found.append(vgpu().current_stream().stream_id))
    look(x)
    side.wait_stream(vgpu().current_stream())
    with vgpu().stream(side):
        (x * 2).sum().backward()
    assert found == [side.stream_id]


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_view_whose_base_has_changed_is_used_where_autograd_does_not_look(side, device):
    """As DTensors use what they hold; asked whether it is a leaf, such a view raises."""
    x = torch.ones(3, device=device, requires_grad=True)
    with torch.no_grad():
        view = x.view(3).requires_grad_()
        x += 1
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        print(view.is_leaf)
    with torch._C._AutoDispatchBelowAutograd():
        assert (view.view(3) * 2).tolist() == [4.0] * 3


def test_the_pass_orders_its_streams_and_the_callers(side):
    """What comes before and after backward() on the caller's stream needs no wait of its own."""
    weights = [torch.ones(100, device=GPU, requires_grad=True) for _ in range(2)]
    side.wait_stream(vgpu().current_stream())

    def program():
        with vgpu().stream(side):
            y = (weights[0] * weights[1]).exp()
        vgpu().current_stream().wait_stream(side)
        y.sum().backward()
        with torch.no_grad():
            for w in weights:
                w -= w.grad
        side.wait_stream(vgpu().current_stream())

    assert kinds(lambda: [program(), program()]) == []


def test_forgetting_to_wait_before_the_loss_is_still_found(side):
    x = torch.ones(100, device=GPU, requires_grad=True)
    side.wait_stream(vgpu().current_stream())

    def program():
        with vgpu().stream(side):
            y = x * 2
        y.sum().backward()

    assert kinds(program) == ["read"]


def test_a_hook_that_reduces_gradients_on_a_stream_of_its_own(side):
    def program(wait):
        net = nn.Linear(4, 4).to(GPU)
        main = vgpu().current_stream()

        def reduce(parameter):
            side.wait_stream(main) if wait else None
            with vgpu().stream(side):
                parameter.grad.mul_(0.5)

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(reduce)
        net(torch.ones(2, 4, device=GPU)).sum().backward()
        main.wait_stream(side)
        with torch.no_grad():
            net.weight -= net.weight.grad
        vgpu().synchronize()
        with par.record() as timeline:
            net(torch.ones(2, 4, device=GPU)).sum().backward()
        vgpu().synchronize()
        return [s.name for s in timeline.on(GPU, "compute") if s.stream == 1]

    assert set(kinds(lambda: program(wait=False))) == {"write"}
    names = []
    assert kinds(lambda: names.extend(program(wait=True))) == []
    assert set(names) == {"mul_"}
    assert names


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_on_a_side_stream(side, reentrant):
    x = torch.ones(10, device=GPU, requires_grad=True)
    side.wait_stream(vgpu().current_stream())

    def program():
        with vgpu().stream(side):
            y = checkpoint(lambda z: (z.sin() * 2).cos(), x, use_reentrant=reentrant)
        vgpu().current_stream().wait_stream(side)
        y.sum().backward()
        return x.grad + 1

    assert kinds(program) == []


# --- places ---------------------------------------------------------------------------------------


def test_the_place_is_the_users_line_not_torchs(fresh_gpus):
    marks = []

    class Net(nn.Module):
        def forward(self, x):
            marks.append(call_sites.mark())
            return x

    nn.Sequential(Net())(torch.ones(2))
    place = call_sites.call_site_of(marks[0])
    assert place.file == __file__
    assert place.source == "marks.append(call_sites.mark())"
    assert str(place) == f"test_hazards.py:{place.line}"


def test_no_place_is_in_an_installed_package_wherever_it_lies(tmp_path, monkeypatch):
    (tmp_path / "library-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    of_another_python = tmp_path / "lib" / "site-packages" / "library.py"
    for file in (of_another_python, tmp_path / "library.py"):
        library = {"mark": call_sites.mark}
        exec(compile("def call():\n    return mark()\n", str(file), "exec"), library)
        assert call_sites.call_site_of(library["call"]()).file == __file__


def test_a_cell_of_a_notebook_is_named_by_its_first_line(monkeypatch):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    name = shell.compile.cache("\nx = 1\ny = 2\n", 7)
    assert str(call_sites.CallSite(name, 3)) == 'cell "x = 1", line 3'
    assert call_sites.CallSite(name, 3).source == "y = 2"
    name = shell.compile.cache(f"x = {'1 + ' * 20}1\n", 8)
    assert str(call_sites.CallSite(name, 1)) == 'cell "x = 1 + 1 + 1 + 1 + 1 + 1 +…", line 1'


# --- collectives ----------------------------------------------------------------------------------


def advice(program, gpus):
    """What the first hazard of a program of ranks says to do; None without hazards."""
    with par.hazards() as found:
        par.run_ranks(program, gpus)
    return str(found[0]).partition(". Call ")[2] if found else None


def used_after(begin, wait):
    """Each rank begins communication on a tensor, waits as told, and overwrites the tensor."""

    def program():
        x = torch.ones(1000, device=f"vgpu:{dist.get_rank()}")
        work = begin(x)
        wait(work)
        x.mul_(2)

    return program


@pytest.mark.parametrize(
    "begin",
    [
        lambda x: dist.all_reduce(x, async_op=True),
        lambda x: dist.all_gather([torch.empty_like(x) for _ in range(2)], x, async_op=True),
        lambda x: dist.irecv(x, 0) if dist.get_rank() else dist.isend(x, 1),
    ],
    ids=["all_reduce", "all_gather", "send"],
)
def test_communication_is_waited_for_by_its_work(begin, fresh_gpus):
    """Programs have no name for the stream that it runs on."""
    said = advice(used_after(begin, lambda work: None), fresh_gpus[:2])
    assert said.startswith("work.wait()")
    assert "test_hazards.py:" in said
    assert "wait_stream" not in said
    assert advice(used_after(begin, lambda work: work.wait()), fresh_gpus[:2]) is None


def test_who_waited_for_communication_on_another_stream_waits_for_that(fresh_gpus):
    def program(wait):
        gpu = f"vgpu:{dist.get_rank()}"
        x, side = torch.ones(1000, device=gpu), vgpu().Stream(gpu)
        side.wait_stream(vgpu().current_stream(gpu))
        with vgpu().stream(side):
            dist.all_reduce(x)
        if wait:
            vgpu().default_stream(gpu).wait_stream(side)
        x.mul_(2)

    said = advice(lambda: program(wait=False), fresh_gpus[:2])
    assert 'default_stream("vgpu:0").wait_stream(stream' in said
    assert advice(lambda: program(wait=True), fresh_gpus[:2]) is None


def test_a_collective_waits_for_the_stream_that_is_current(fresh_gpus):
    def program(wait):
        gpu = f"vgpu:{dist.get_rank()}"
        side = vgpu().Stream(gpu)
        with vgpu().stream(side):
            x = torch.ones(1000, device=gpu)
        if wait:
            vgpu().current_stream(gpu).wait_stream(side)
        dist.all_reduce(x)

    said = advice(lambda: program(wait=False), fresh_gpus[:2])
    assert "current_stream().wait_stream(stream1)" in said
    assert advice(lambda: program(wait=True), fresh_gpus[:2]) is None


# --- other machines -------------------------------------------------------------------------------


def test_each_machine_has_its_own_order(side):
    outer = torch.ones(10, device=GPU)
    with par.simulate("2x-v100-textbook", with_values=True):
        inner = vgpu().Stream(GPU)

        def use():
            with vgpu().stream(inner):
                return outer + 1

        assert kinds(use) == []  # the work of the other machine is over


def test_no_warnings_where_there_is_one_stream(fresh_gpus):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(make_net().to(GPU), *batch(GPU))
        torch.ones(3, device=GPU).cpu().sum()


def test_a_number_may_be_copied_while_copies_are_on_their_way(fresh_gpus):
    """Torch hands it over as a number, which has no storage to look up."""
    on_its_way = torch.randn(100_000).pin_memory().to(GPU, non_blocking=True)
    counter = torch.zeros(2, dtype=torch.int32, device=GPU)
    assert kinds(lambda: counter.copy_(5)) == []
    assert counter.tolist() == [5, 5]
    assert on_its_way.device == torch.device(GPU)
