"""DDP's own mixed precision on virtual ranks, against passes by hand and real ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import torch
import torch.distributed as dist
import warm_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.nn.parallel.distributed import _MixedPrecision
from torch.testing import assert_close
from virtual_ranks import here, run

import d2lpar as par
from d2lpar.timeline.intervals import common_s, union

LOW, STEPS, RANKS = torch.bfloat16, 4, 2

# torch's own code copies parameters on a stream that waits for nothing: see the last test.
pytestmark = pytest.mark.filterwarnings("ignore::d2lpar.vgpu.races.stream_sanitizer.HazardWarning")


def network(width=8):
    torch.manual_seed(0)
    frozen = nn.Linear(width, width).requires_grad_(False)
    net = nn.Sequential(nn.Linear(4, width), frozen, nn.Tanh(), nn.Linear(width, 2))
    net.register_buffer("offset", torch.ones(3))
    return net


def batch(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(3, 4, generator=generator)


def loss(outputs):
    return outputs.float().square().sum()


def passes(net, device, *, to_none=True, lr=0.0):
    """The gradients of each step, and the parameters at the end."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    gradients = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        loss(net(batch(step, dist.get_rank()).to(device))).backward()
        gradients.append([p.grad.cpu().clone() for p in net.parameters() if p.requires_grad])
        if lr:  # zero times what nobody has written may be no number
            optimizer.step()
    assert {p.dtype for p in net.parameters() if p.requires_grad} == {torch.float32}
    return gradients, [p.detach().cpu() for p in net.parameters()]


def virtual(reduced, view, to_none, lr):
    types = _MixedPrecision(LOW, reduced, LOW)
    options = {"gradient_as_bucket_view": view, "bucket_cap_mb": 0.0001}
    net = DDP(network().to(here()), mixed_precision=types, **options)
    assert net.module.offset.dtype == LOW
    return passes(net, here(), to_none=to_none, lr=lr)


def by_hand(reduced, lr):
    """What the types mean: passes in LOW, averages in `reduced`, steps in full precision."""
    net, gradients = network(), []
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr)
    for step in range(STEPS):
        found = []
        for rank in range(RANKS):
            copy = network().to(LOW)
            copy.load_state_dict(net.state_dict())
            loss(copy(batch(step, rank).to(LOW))).backward()
            found.append([p.grad.to(reduced) for p in copy.parameters() if p.requires_grad])
        gradients.append([((a + b) / RANKS).float() for a, b in zip(*found, strict=True)])
        for p, gradient in zip(trained, gradients[-1], strict=True):
            p.grad = gradient
        optimizer.step()
    return gradients, [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("to_none", [False, True])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("reduced", [LOW, torch.float32, None])
def test_gradients_and_parameters_are_those_worked_out_by_hand(reduced, view, to_none):
    expected = by_hand(reduced or LOW, lr=0.1)
    for found in run(virtual, reduced, view, to_none, 0.1):
        assert_close(found, expected, rtol=0, atol=0)


class NoStream(AbstractContextManager):
    """Stands in for streams and events on a processor, where everything happens in its turn."""

    def __exit__(self, *error):
        return None

    def record(self):
        pass

    def wait(self, stream=None):
        pass

    def wait_stream(self, other):
        pass


def on_gloo(rank, folder):
    torch.set_num_threads(1)
    torch.Stream = torch.Event = torch.accelerator.current_stream = NoStream
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    net = DDP(network(), mixed_precision=_MixedPrecision(LOW, torch.float32, LOW))
    torch.save(passes(net, "cpu"), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_gradients_are_those_of_torch_on_real_ranks(tmp_path):
    """But for the first step: torch 2.15 exchanges memory there that nobody has written."""
    warm_process.run_on_ranks(on_gloo, str(tmp_path), ranks=RANKS)
    for rank, (gradients, _) in enumerate(run(virtual, torch.float32, False, True, 0.0)):
        theirs, _ = torch.load(tmp_path / f"{rank}.pt")
        assert_close(gradients[1:], theirs[1:], rtol=0, atol=0)


def memory_of_a_pass(width, types):
    net = DDP(network(width).to(here()), mixed_precision=types, bucket_cap_mb=1000)
    found = []
    for _ in range(3):
        net.zero_grad()
        found = [torch.vgpu.memory_allocated()]
        outputs = net(torch.ones(1, 4, device=here()))
        found.append(torch.vgpu.memory_allocated())
        outputs.sum().backward()
        del outputs
        found.append(torch.vgpu.memory_allocated())
    return found


def test_low_precision_copies_are_charged_from_the_forward_pass_to_the_end_of_backward():
    width = 1024
    all_of_it = sum(p.numel() for p in network(width).parameters())
    trained = sum(p.numel() for p in network(width).parameters() if p.requires_grad)
    types = _MixedPrecision(LOW, LOW, LOW)
    before, within, after = run(memory_of_a_pass, width, types)[0]
    frozen = 2 * (all_of_it - trained)  # their copies stay, as they do in torch
    slack = 32 * 512  # blocks of small tensors
    assert before == pytest.approx(4 * all_of_it + 2 * trained + frozen, abs=slack)
    assert within - before == pytest.approx(2 * trained, abs=slack)
    assert after - before == pytest.approx(4 * trained, abs=slack)


def spans_of_steps(types, width=1024):
    def steps():
        net = nn.Sequential(*(nn.Linear(width, width) for _ in range(3))).to(here())
        net = DDP(net, mixed_precision=types, bucket_cap_mb=1)
        for _ in range(2):
            net.zero_grad()
            net(torch.ones(8, width, device=here())).sum().backward()

    with par.simulate("8x-v100-pcie", RANKS) as gpus, par.record() as timeline:
        par.run_ranks(steps, gpus)
    return timeline.on("vgpu:0")


def sent_bytes(timeline):
    sent = [s.bytes for s in timeline if s.name == "all_reduce"]
    return sum(sent[-3:])


def test_copies_and_casts_take_time_on_streams_of_their_own_and_half_as_much_is_sent():
    timeline = spans_of_steps(_MixedPrecision(LOW, LOW, LOW))
    numel = 1024 * 1024
    copies = [s for s in timeline if s.name == "copy" and s.stream == 2 and s.bytes == 6 * numel]
    upcasts = [s for s in timeline if s.name == "copy" and s.stream == 3 and s.bytes == 6 * numel]
    assert (len(copies), len(upcasts)) == (2 * 3, 2 * 3)
    assert min(s.duration_s for s in copies) > 6 * numel / 900e9  # the V100's memory
    assert 2 * sent_bytes(timeline) == sent_bytes(spans_of_steps(None))


def test_buckets_are_summed_and_cast_while_backward_goes_on():
    timeline = spans_of_steps(_MixedPrecision(LOW, LOW, LOW))
    first = [s for s in timeline if s.name == "all_reduce"][-3]
    products = timeline.where(lambda s: s.name == "mm" and s.start_s >= first.start_s)
    assert len(products) >= 3
    assert common_s(union([first]), union(products)) == pytest.approx(products.busy_s)


def steps_without_a_wait():
    net = DDP(network().to(here()), mixed_precision=_MixedPrecision(LOW, LOW, LOW))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    X = torch.ones(8, 4, device=here())
    for _ in range(2):
        optimizer.zero_grad()
        net(X).sum().backward()
        optimizer.step()


def test_that_torch_copies_without_waiting_for_the_optimizer_is_found():
    with par.hazards() as found:
        run(steps_without_a_wait)
    reads = [hazard.text for hazard in found if hazard.kind == "read"]
    assert any("without waiting for the default stream" in text for text in reads)
