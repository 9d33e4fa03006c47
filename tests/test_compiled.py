"""`torch.compile` on virtual devices: values of the eager program, fewer kernels, less traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import d2lpar as par
from d2lpar import machines
from d2lpar.vgpu.api.timing import now_s, synchronize

HOST = machines.Host("plain")
BOX = replace(machines.machine("2x-v100-textbook"), host=HOST)
N = 1 << 20  # elements of 4 bytes
MB = 4 * N

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture
def gpu():
    with par.simulate(BOX, 1) as (device,):
        yield device


def kernels(work):
    """The kernels of a call, after one to warm up."""
    work()
    with par.record() as timeline:
        work()
    return [span for span in timeline.spans if span.kind == "compute"]


def test_a_chain_is_one_kernel_that_reads_and_writes_once(gpu):
    x = torch.ones(N, device=gpu)
    chain = torch.compile(lambda x: (x.sin() * 2 + 1).relu())
    (kernel,) = kernels(lambda: chain(x))
    assert kernel.name == "fused_sin_mul_add_relu"
    assert kernel.bytes == 2 * MB


def test_what_survives_is_written(gpu):
    x = torch.ones(N, device=gpu)

    def two(x):
        y = x.sin()
        return y, y + 1

    (kernel,) = kernels(lambda: torch.compile(two)(x))
    assert kernel.bytes == 3 * MB


def test_products_cut_chains(gpu):
    x = torch.ones(512, 512, device=gpu)
    names = [k.name for k in kernels(lambda: torch.compile(lambda x: (x.sin() + 1) @ x + 1)(x))]
    assert names == ["fused_sin_add", "mm", "fused_add"]


def test_a_norm_written_out_is_one_kernel(gpu):
    """The root mean square of rows: reduced, and used by what is reduced."""
    x = torch.ones(512, 2048, device=gpu)
    norm = torch.compile(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    (kernel,) = kernels(lambda: norm(x))
    assert kernel.bytes == 2 * MB


def test_a_sum_of_all_is_waited_for(gpu):
    x = torch.ones(N, device=gpu)
    first, _, last = kernels(lambda: torch.compile(lambda x: x / (x.sum() + 1))(x))
    assert first.bytes == pytest.approx(MB, rel=1e-3)
    assert last.bytes == pytest.approx(2 * MB, rel=1e-3)


def test_backward_is_compiled_too(gpu):
    w = torch.ones(N, device=gpu, requires_grad=True)
    gradient = torch.ones(N, device=gpu)
    chain = torch.compile(lambda w: (w * 2).sin() * 3)

    def step():
        w.grad = None
        chain(w).backward(gradient)

    assert len(kernels(step)) == 2


def test_two_calls_are_not_merged_nor_eager_work_with_them(gpu):
    x = torch.ones(N, device=gpu)
    chain = torch.compile(lambda x: x.sin() + 1)
    assert len(kernels(lambda: chain(chain(x)) + 1)) == 3


def host_s(work):
    work()
    start_s = now_s(wait=False)
    work()
    return now_s(wait=False) - start_s


def test_the_host_pays_guards_once_and_a_launch_a_kernel(gpu):
    x = torch.ones(64, 64, device=gpu)
    chain = torch.compile(lambda x: ((x.sin() + 1) @ x).cos().view(-1) + 1)
    expected_s = HOST.compiled_call_s + 2 * HOST.compiled_s + HOST.dispatch_s
    assert host_s(lambda: chain(x)) == pytest.approx(expected_s)
    whole = torch.compile(lambda x: ((x.sin() + 1) @ x).cos() + 1, mode="reduce-overhead")
    assert host_s(lambda: whole(x)) == pytest.approx(HOST.compiled_call_s + HOST.graph_s)


def test_modules_are_guarded_and_no_longer_called(gpu):
    net = nn.Sequential(*[nn.ReLU() for _ in range(9)])
    x = torch.ones(64, 64, device=gpu)
    expected_s = HOST.compiled_call_s + 10 * HOST.guard_s + HOST.compiled_s
    compiled = torch.compile(net)
    assert host_s(lambda: compiled(x)) == pytest.approx(expected_s, abs=2 * HOST.module_s)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune"])
def test_values_are_those_of_the_eager_program(gpus, mode):
    torch.manual_seed(0)
    net = nn.Sequential(Block(32), nn.Flatten(), nn.Linear(32, 4)).to(gpus[0])
    x, y = torch.rand(16, 32, device=gpus[0]), torch.arange(16, device=gpus[0]) % 4

    def step(function):
        torch.manual_seed(1)
        torch.vgpu.manual_seed_all(1)
        net.zero_grad()
        loss = F.cross_entropy(function(x), y)
        loss.backward()
        return [loss.detach().cpu(), *(p.grad.cpu() for p in net.parameters())]

    eager, compiled = step(net), step(torch.compile(net, mode=mode))
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))


def test_compiled_steps_are_faster_and_graphs_the_fastest(gpu):
    net = nn.Sequential(*[Block(128) for _ in range(4)]).to(gpu)
    x = torch.ones(32, 128, device=gpu)

    def seconds(function):
        for _ in range(2):
            synchronize()
            start_s = now_s()
            function(x).sum().backward()
        return now_s() - start_s

    eager_s, compiled_s, graphed_s = (
        seconds(f) for f in (net, torch.compile(net), torch.compile(net, mode="reduce-overhead"))
    )
    assert eager_s > compiled_s > graphed_s


def test_another_backend_runs_operation_by_operation(gpu):
    x = torch.ones(N, device=gpu)
    assert len(kernels(lambda: torch.compile(lambda x: x.sin() + 1, backend="eager")(x))) == 2


def test_a_compiled_optimizer(gpus):
    w, twin = (nn.Parameter(torch.ones(4, device=gpus[0])) for _ in range(2))
    for p, compiles in ((w, True), (twin, False)):
        p.grad = torch.full((4,), 0.5, device=gpus[0])
        optimizer = torch.optim.Adam([p], 0.1)
        (torch.compile(optimizer.step) if compiles else optimizer.step)()
    assert torch.equal(w.detach().cpu(), twin.detach().cpu())


def test_products_in_pieces_are_noted_to_be_whole(gpu):
    x = torch.ones(4, 4, device=gpu)
    step = torch.compile(lambda x: x @ x)
    with (
        torch._inductor.config.patch(_micro_pipeline_tp=True),
        pytest.warns(UserWarning, match="_micro_pipeline_tp changes nothing on virtual GPUs"),
    ):
        assert step(x).shape == (4, 4)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_functions_of_host_tensors_run_while_cuda_is_emulated(backend):
    """Dynamo's guards refused them: "cuda doesn't match the current accelerator vgpu"."""
    step = torch.compile(lambda x: x.square() + 1, backend=backend)
    with par.emulate_cuda(1, verbose=False):
        assert step(torch.full((3,), 2.0)).tolist() == [5, 5, 5]
