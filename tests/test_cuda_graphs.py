"""`torch.cuda.CUDAGraph` on emulated devices: values of the program as it stands, one launch."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import d2lpar as par
from d2lpar import machines

HOST = machines.machine("2x-v100-textbook").host


@pytest.fixture
def cuda():
    with par.emulate_cuda(1, "2x-v100-textbook", verbose=False):
        yield torch.device("cuda")


def test_a_replay_computes_with_what_is_there_now(cuda):
    x, out = torch.zeros(3, device=cuda), torch.zeros(3, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1).view(-1) * 2
        out.add_(y)
    assert out.tolist() == [0, 0, 0]  # capturing changes nothing
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [10, 10, 10]
    graph.replay()
    assert out.tolist() == [20, 20, 20]


def test_a_captured_training_step_is_the_step(cuda):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(cuda)
    twin = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(cuda)
    twin.load_state_dict(net.state_dict())
    batches = torch.rand(3, 16, 4, device=cuda)

    def step(model, x):
        for p in model.parameters():
            p.grad = None
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        return loss

    x = batches[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(net, x)
    for batch in batches:
        x.copy_(batch)
        graph.replay()
        assert torch.equal(loss, step(twin, batch))
    assert all(map(torch.equal, net.parameters(), twin.parameters()))


def test_it_takes_the_host_one_launch(cuda):
    x = torch.zeros(64, device=cuda)
    graph = torch.cuda.CUDAGraph()
    start_s = time.perf_counter()
    with torch.cuda.graph(graph):
        for _ in range(20):
            x = x + 1
    assert time.perf_counter() == start_s
    graph.replay()
    assert time.perf_counter() - start_s == pytest.approx(HOST.graph_s)
    with par.record() as timeline:
        graph.replay()
    assert len([span for span in timeline.spans if span.kind == "compute"]) == 20


def test_what_is_not_captured_cannot_be_replayed(cuda):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        graph.replay()
    with pytest.raises(RuntimeError, match="not being captured"):
        graph.capture_end()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        with pytest.raises(RuntimeError, match="captures a graph already"):
            torch.cuda.CUDAGraph().capture_begin()
    assert not torch.cuda.is_current_stream_capturing()
