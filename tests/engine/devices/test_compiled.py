"""`torch.compile` on virtual devices: values of the eager program, fewer kernels, less traffic."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import warm_process
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
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


def test_what_is_read_counts_however_soon_it_is_gone(gpu):
    """Another tensor may get its place, and its number in Python."""
    x = torch.ones(N, device=gpu)

    def add_eight(x):
        for _ in range(8):
            x = x + torch.empty_like(x)
        return x

    (kernel,) = kernels(lambda: torch.compile(add_eight)(x))
    assert kernel.bytes == (1 + 8 + 1) * MB


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


def test_replicas_are_not_taken_for_what_was_compiled_before(gpus):
    """Their threads number the nodes of autograd anew, from zero on."""
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(10)))
    replicated = nn.DataParallel(net.to(gpus[0]), gpus)
    x = torch.ones(4, 8, device=gpus[0])

    def step():
        return [span.name for span in kernels(lambda: replicated(x).relu().sum().backward())]

    before = step()
    torch.compile(net)(x).relu().sum().backward()
    assert step() == before


def test_two_calls_are_not_merged_nor_eager_work_with_them(gpu):
    x = torch.ones(N, device=gpu)
    chain = torch.compile(lambda x: x.sin() + 1)
    assert len(kernels(lambda: chain(chain(x)) + 1)) == 3


@pytest.mark.parametrize(
    "how",
    [{"mode": "max-autotune-no-cudagraphs"}, {"options": {"coordinate_descent_tuning": True}}],
)
def test_a_product_of_a_vector_is_a_loop_where_loops_are_tuned(gpu, how):
    x, w = torch.ones(1, 64, device=gpu), torch.ones(64, 4096, device=gpu)

    def gated(x):
        return (x @ w).relu() * 2

    (kernel,) = kernels(lambda: torch.compile(gated, **how)(x))
    assert kernel.name == "fused_mm_relu_mul"
    assert kernel.bytes == 4 * (64 + 64 * 4096 + 4096)
    assert len(kernels(lambda: torch.compile(gated)(x))) == 2
    several = torch.ones(2, 64, device=gpu)
    assert len(kernels(lambda: torch.compile(gated, **how)(several))) == 2


def test_a_program_may_have_all_loops_tuned(gpu):
    x, w = torch.ones(8, 1, 64, device=gpu), torch.ones(8, 64, 128, device=gpu)
    with config.patch(coordinate_descent_tuning=True):
        (kernel,) = kernels(lambda: torch.compile(lambda x: (x @ w).relu())(x))
    assert kernel.name == "fused_bmm_relu"


def test_a_convolutions_biases_are_added_by_the_next_kernel(gpu):
    net = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()).to(gpu)
    bare = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.ReLU()).to(gpu)
    x = torch.ones(8, 64, 32, 32, device=gpu)

    def spans_s(net):
        with torch.no_grad():
            return [span.end_s - span.start_s for span in kernels(lambda: torch.compile(net)(x))]

    assert spans_s(net) == pytest.approx(spans_s(bare))


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


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_another_backend_runs_operation_by_operation(gpu, backend):
    x = torch.ones(N, device=gpu)
    step = torch.compile(lambda x: 2 * x.sin(), backend=backend, fullgraph=True)
    assert len(kernels(lambda: step(x))) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "cudagraphs"])
def test_a_module_for_another_backend_is_the_module(gpus, backend):
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to(gpus[0])
    x = torch.rand(2, 2, device=gpus[0])
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x), net(x))


def test_a_backend_that_is_not_called_is_named(gpus):
    def printing(graph, inputs):
        raise AssertionError("nothing is traced on virtual devices")

    double = torch.compile(lambda x: 2 * x, backend=printing, fullgraph=True)
    with pytest.warns(UserWarning, match=r"torch.compile\(backend=printing\) traces nothing"):
        assert double(torch.ones(2, device=gpus[0])).tolist() == [2, 2]


COMPILED_EARLY = """
import torch
from torch import nn
made = torch.compile(nn.Linear(2, 2))
import d2lpar as par
gpu, _ = par.devices(2, kind="virtual", machine="2x-v100-textbook", verbose=False)
try:
    made.to(gpu)(torch.ones(2, 2, device=gpu))
except Exception as error:
    print(error)
"""


def test_what_was_compiled_too_early_says_so():
    done = warm_process.run(COMPILED_EARLY)
    assert done.returncode == 0, done.stderr
    assert "call torch.compile after the first virtual GPU was made" in done.stdout


def test_a_compiled_optimizer(gpus):
    w, twin = (nn.Parameter(torch.ones(4, device=gpus[0])) for _ in range(2))
    for p, compiles in ((w, True), (twin, False)):
        p.grad = torch.full((4,), 0.5, device=gpus[0])
        optimizer = torch.optim.Adam([p], 0.1)
        (torch.compile(optimizer.step) if compiles else optimizer.step)()
    assert torch.equal(w.detach().cpu(), twin.detach().cpu())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_functions_of_host_tensors_run_while_cuda_is_emulated(gpus, backend):
    """Dynamo's guards refused them: "cuda doesn't match the current accelerator vgpu"."""
    step = torch.compile(lambda x: x.square() + 1, backend=backend)
    with par.emulate_cuda(1, verbose=False):
        assert step(torch.full((3,), 2.0)).tolist() == [5, 5, 5]


# --- memory ---------------------------------------------------------------------------------------


class MLP(nn.Module):
    """Its hidden numbers, before and after the activation, and its results are of 4 MB each."""

    def __init__(self, depth=1):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(depth + 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x)).square()
        return self.layers[-1](x)


def held_by(work):
    """Bytes that are held after a call, and the most during it, beside those before."""
    work()
    before = torch.vgpu.memory_allocated(0)
    torch.vgpu.reset_peak_memory_stats(0)
    result = work()
    most, held = torch.vgpu.max_memory_allocated(0), torch.vgpu.memory_allocated(0)
    del result
    return held - before, most - before


class Layer(nn.Module):
    """A transformer's, but that one of three parts stands for all of attention."""

    def __init__(self, n=1024):
        super().__init__()
        self.norm, self.parts, self.out = nn.LayerNorm(n), nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.last_norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        x = x + self.out(self.parts(self.norm(x)).chunk(3, -1)[0].tanh())
        return x + self.down(F.gelu(self.up(self.last_norm(x))))


class Scores(nn.Linear):
    def __init__(self):
        super().__init__(1024, 4096)

    def forward(self, x):
        return F.cross_entropy(super().forward(x).float(), torch.arange(1024, device=x.device))


AUTOCAST = {"float32": None, "bfloat16": None, "autocast": torch.bfloat16}


def kept_by_torch(net, x, dtype):
    """Bytes that a forward pass puts out, those for its backward pass included, where Inductor cuts
    the two: no parameters, and not its input."""
    found = []

    def forward(graph, _):
        (outputs,) = graph.graph.output_node().args
        made = {node for node in outputs if isinstance(node, torch.fx.Node)}
        values = [node.meta["val"] for node in made if node.op != "placeholder"]
        found.append(sum(v.nbytes for v in values if isinstance(v, torch.Tensor)))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
    )
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        torch.compile(net, backend=backend)(x)
    torch._dynamo.reset()
    return found[0]


@pytest.mark.parametrize("numbers", AUTOCAST)
@pytest.mark.parametrize("kind", [MLP, Layer, Scores])
def test_compiled_code_keeps_what_inductor_keeps(gpu, kind, numbers):
    """What products read stays, weights that were cast as well; what is computed in passing from
    it, norms and losses, does not."""
    autocast = AUTOCAST[numbers]
    dtype = torch.bfloat16 if numbers == "bfloat16" else torch.float32
    net, x = kind().to(dtype), torch.ones(1024, 1024, dtype=dtype, requires_grad=True)
    expected = kept_by_torch(net, x, autocast)
    net, x = net.to(gpu), x.detach().to(gpu).requires_grad_()
    with torch.autocast("vgpu", autocast, enabled=autocast is not None):
        held, _ = held_by(lambda: torch.compile(net)(x))
    assert held == pytest.approx(expected, rel=0.01)


def test_pointwise_results_are_computed_again_for_backward(gpu):
    """Compiled, backward keeps what a chain is made of, and none of its links."""
    x = torch.ones(N, device=gpu, requires_grad=True)
    chain = lambda x: x.sin().exp().cos()  # noqa: E731
    assert held_by(lambda: chain(x))[0] == 2 * MB  # the exponential, and the result of all
    assert held_by(lambda: torch.compile(chain)(x))[0] == MB


def test_gradients_and_results_take_their_memory(gpu):
    net, x = torch.compile(MLP().to(gpu)), torch.ones(1024, 1024, device=gpu)
    scale = torch.ones(1024, 1024, device=gpu, requires_grad=True)
    chain = torch.compile(lambda x: (net(x) * scale).sin())

    def step():
        net.zero_grad()
        scale.grad = None
        chain(x).sum().backward()

    # What the products read and make, and the sine.
    assert held_by(lambda: chain(x))[0] == 4 * MB
    step()
    before = torch.vgpu.memory_allocated(0)
    net.zero_grad()
    scale.grad = None
    assert before - torch.vgpu.memory_allocated(0) == 3 * MB


def test_without_backward_nothing_stays(gpu):
    """However deep a net is: a result, and what it is computed from."""
    x = torch.ones(1024, 1024, device=gpu)
    for depth in (2, 6):
        net = torch.compile(MLP(depth).to(gpu))
        with torch.no_grad():
            assert held_by(lambda net=net: net(x)) == (MB, 2 * MB)


def test_what_leaves_compiled_code_by_a_side_door_takes_memory_when_it_is_used(gpu):
    kept, x = [], torch.ones(N, device=gpu, requires_grad=True)

    @torch.compile
    def chain(x):
        kept.append(x.sin())
        return kept[-1].sum()

    chain(x)
    before = torch.vgpu.memory_allocated(0)
    used = kept[0].cos()
    assert torch.vgpu.memory_allocated(0) - before == 2 * MB
    assert used.shape == x.shape


def test_a_backward_pass_that_is_one_kernel_is_queued_when_it_ends(gpus):
    """It was queued with what came next, outside of the pass: an error of autograd's."""

    def function(x):
        return (x.sin() * x).sum(1)

    made, weights = torch.compile(function), torch.full((3,), 2.0, device=gpus[0])
    for number in range(3):
        x = (torch.arange(12.0).reshape(3, 4) + number).to(gpus[0]).requires_grad_()
        (found,) = torch.autograd.grad(made(x), [x], weights)
        (expected,) = torch.autograd.grad(function(x), [x], weights)
        torch.testing.assert_close(found, expected)
    y = made(x)
    before_s = now_s()
    torch.autograd.grad(y, [x], weights)
    assert now_s() > before_s


INDUCTOR = """
import sys, torch, d2lpar as par
from torch._dynamo.utils import counters
from torch._inductor import config
loaded = lambda: "torch._inductor.compile_fx" in sys.modules
par.devices(1, kind="virtual", verbose=False)
triple = torch.compile(lambda x: 3 * x)
print(triple(torch.ones(2, device="vgpu")).tolist(), loaded(), dict(counters["frames"]))
torch._dynamo.config.suppress_errors = True  # where there is no compiler
print(triple(torch.ones(2)).tolist(), loaded(), counters["frames"]["total"])
"""


def test_inductor_is_loaded_for_what_runs_on_the_host(tmp_path):
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    found = warm_process.run(INDUCTOR, {"PATH": "", "D2LPAR_DEVICES": "virtual", **kept})
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["[3.0, 3.0] False {}", "[3.0, 3.0] True 1"]
