"""CUDA graphs that hold exchanges between virtual ranks: each replay exchanges anew."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import d2lpar as par


@pytest.fixture(autouse=True)
def cuda():
    torch.set_num_threads(1)
    with par.emulate_cuda(2, "2x-v100-textbook", verbose=False):
        yield


def on_ranks(function):
    """What `function(rank)` gives on each of two ranks."""
    return par.run_ranks(_in_group, [torch.device("cuda", i) for i in range(2)], function)


def _in_group(function):
    dist.init_process_group("nccl")
    return function(dist.get_rank())


# --- values ---------------------------------------------------------------------------------------


def replay_collectives(rank):
    x, everyone = torch.ones(2, device="cuda"), torch.zeros(4, device="cuda")
    received = torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = x * 2
        dist.all_reduce(total)
        dist.all_gather_into_tensor(everyone, total + rank)
        ways = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
        for work in dist.batch_isend_irecv(ways):
            work.wait()
        plus_one = functional.all_reduce(x, "sum", dist.group.WORLD) + 1
    untouched = everyone.tolist() + received.tolist()
    found = []
    for value in (3.0, 5.0):
        x.fill_(value + rank)
        graph.replay()
        found.append([t.tolist() for t in (total, everyone, received, plus_one)])
    return untouched, found


def test_a_replay_exchanges_what_is_there_now():
    for rank, (untouched, found) in enumerate(on_ranks(replay_collectives)):
        assert untouched == [0] * 6  # a capture exchanges nothing
        for value, (total, everyone, received, plus_one) in zip((3, 5), found, strict=True):
            both = 2 * value + 1
            assert total == [2 * both] * 2
            assert everyone == [2 * both] * 2 + [2 * both + 1] * 2
            assert received == [value + 1 - rank] * 2
            assert plus_one == [both + 1] * 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batches():
    return torch.rand(3, 2, 6, 4, generator=torch.Generator().manual_seed(1))


def captured_ddp_step(rank):
    net = DistributedDataParallel(network().cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    start = [p.detach().clone() for p in net.parameters()]
    x = torch.ones(6, 4, device="cuda")
    for _ in range(2):  # buckets are sorted after the first step
        net(x).square().mean().backward()
    optimizer.zero_grad()
    with torch.no_grad():
        for p, before in zip(net.parameters(), start, strict=True):
            p.copy_(before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(x).square().mean().backward()
        optimizer.step()
    for batch in batches():
        x.copy_(batch[rank])
        graph.replay()
    return [(p.detach().cpu(), p.grad.cpu()) for p in net.parameters()]


def test_a_captured_step_of_ddp_is_that_of_one_device():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        net(batch.flatten(0, 1)).square().mean().backward()
        optimizer.step()
    for of_rank in on_ranks(captured_ddp_step):
        for (value, gradient), p in zip(of_rank, net.parameters(), strict=True):
            torch.testing.assert_close(value, p.detach())
            torch.testing.assert_close(gradient, p.grad)


def captured_fsdp_step(rank):
    net = network().cuda()
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(6, 4, device="cuda")
    start = [p.detach().clone() for p in net.parameters()]
    net(x).square().mean().backward()  # FSDP looks at the modules in the first pass
    with torch.no_grad():
        for p, before in zip(net.parameters(), start, strict=True):
            p.copy_(before)
            p.grad.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for p in net.parameters():
            p.grad.zero_()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
    losses = []
    for batch in batches():
        x.copy_(batch[rank])
        graph.replay()
        losses.append(loss.item())
    held = torch.cuda.memory_allocated(rank)
    graph.replay()
    assert torch.cuda.memory_allocated(rank) == held
    return losses


def test_a_captured_step_of_fsdp_is_that_of_one_device():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    expected = []
    for batch in batches():
        optimizer.zero_grad()
        losses = [net(part).square().mean() for part in batch]
        (sum(losses) / 2).backward()
        optimizer.step()
        expected.append([loss.item() for loss in losses])
    found = on_ranks(captured_fsdp_step)
    for rank in range(2):
        assert found[rank] == pytest.approx([both[rank] for both in expected])


# --- time and misuse ------------------------------------------------------------------------------


def time_of_replay(rank):
    x = torch.ones(2**20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    events[0].record()
    graph.replay()
    events[1].record()
    dist.all_reduce(x)
    events[2].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]), events[1].elapsed_time(events[2])


def test_an_exchange_of_a_replay_takes_its_time():
    for replayed_ms, called_ms in on_ranks(time_of_replay):
        assert replayed_ms == pytest.approx(called_ms, rel=0.1)


def wait_too_late(rank):
    x = torch.ones(2, device="cuda")
    unjoined = pytest.raises(RuntimeError, match=r"has unjoined work .*all_reduce")
    with unjoined, torch.cuda.graph(torch.cuda.CUDAGraph()):
        work = dist.all_reduce(x, async_op=True)
    with pytest.raises(RuntimeError, match="wait for it before the capture ends"):
        work.wait()


def wait_on_the_host(rank):
    refused = pytest.raises(RuntimeError, match=r"due to a previous error .*: barrier at ")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        dist.barrier(device_ids=[rank])


def test_what_was_captured_is_not_waited_for_outside():
    on_ranks(wait_too_late)


def test_a_barrier_is_no_work_of_a_graph():
    on_ranks(wait_on_the_host)


def on_a_forked_stream(rank):
    x, side, graph = torch.ones(2, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with par.hazards() as found:
        with torch.cuda.graph(graph):
            y = x * 2
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                dist.all_reduce(y)
            torch.cuda.current_stream().wait_stream(side)
            y += 1
        x.fill_(3)
        graph.replay()
    return y.tolist(), found


def test_an_exchange_on_a_forked_stream():
    assert on_ranks(on_a_forked_stream) == [([13, 13], [])] * 2
