"""`torch.autocast("vgpu")` casts as torch's documentation says of CUDA."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import d2lpar as par
from d2lpar.vgpu.torch_backend.private import torch_modes

HALF = torch.bfloat16


@pytest.fixture
def x(gpus):
    return torch.linspace(0.1, 1, 4, device=gpus[0]).reshape(2, 2)


@pytest.mark.parametrize(
    ("work", "dtype"),
    [
        (lambda x: x @ x, HALF),
        (lambda x: F.linear(x, x), HALF),
        (lambda x: torch.addmm(x, x, x), HALF),
        (lambda x: torch.bmm(x[None], x[None]), HALF),
        (lambda x: F.conv2d(x[None, None], x[None, None]), HALF),
        (lambda x: F.conv1d(x, x[:, :, None]), HALF),
        (lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3), HALF),
        (lambda x: x.to(HALF).softmax(1), torch.float32),
        (lambda x: x.to(HALF).sum(), torch.float32),
        (lambda x: x.to(HALF).exp(), torch.float32),
        (lambda x: x.to(HALF) ** 2, torch.float32),
        (lambda x: F.layer_norm(x.to(HALF), (2,)), torch.float32),
        (
            lambda x: F.cross_entropy(x.to(HALF), torch.tensor([0, 1], device=x.device)),
            torch.float32,
        ),
        (lambda x: F.mse_loss(x.to(HALF), x), torch.float32),
        (lambda x: torch.cat([x.to(HALF), x]), torch.float32),
        (lambda x: torch.cat([x.to(HALF), x.to(HALF)]), HALF),
        (lambda x: x.to(HALF).relu(), HALF),
        (lambda x: x.relu(), torch.float32),
        (lambda x: x.double() @ x.double(), torch.float64),
        (lambda x: x.long() + 1, torch.int64),
    ],
)
def test_types(x, work, dtype):
    plain = work(x) if dtype is HALF else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("vgpu", dtype=HALF):
            out = work(x)
    assert (out.dtype, out.device) == (dtype, x.device)
    if plain is not None:
        assert_close(out.float().cpu(), plain.float().cpu(), rtol=0.02, atol=0.02)


@pytest.mark.skipif(not torch_modes.casts_on_cuda("rms_norm"), reason="this torch casts it not")
def test_rms_norm_is_cast_where_cuda_casts_it(x):
    with torch.autocast("vgpu", dtype=HALF):
        assert F.rms_norm(x.to(HALF), (2,)).dtype == torch.float32


def test_a_training_step_has_gradients_of_the_parameters_type(gpus):
    results = []
    for device in ("cpu", gpus[1]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        X, y = torch.ones(6, 4, device=device), torch.zeros(6, dtype=torch.long, device=device)
        with torch.autocast(torch.device(device).type, dtype=HALF):
            out = net(X)
            loss = F.cross_entropy(out, y)
        loss.backward()
        assert (out.dtype, loss.dtype) == (HALF, torch.float32)
        results.append([loss.detach().cpu(), *(p.grad.cpu() for p in net.parameters())])
    assert {t.dtype for t in results[1]} == {torch.float32}
    assert_close(results[1], results[0], rtol=0.02, atol=0.01)


def test_float16_with_a_scaler(gpus):
    net = nn.Linear(4, 2).to(gpus[0])
    before = net.weight.detach().cpu().clone()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("vgpu")
    with torch.autocast("vgpu", dtype=torch.float16):
        out = net(torch.ones(3, 4, device=gpus[0]))
        loss = out.square().mean()
    assert out.dtype == torch.float16
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (net.weight.detach().cpu() - before).abs().max() > 0


def test_a_gradient_scaler_makes_its_steps_from_shapes_alone(gpus):
    with par.simulate("2x-v100-textbook", 1) as (gpu,):
        net = nn.Linear(4, 2, device=gpu)
        optimizer = torch.optim.Adam(net.parameters())
        scaler = torch.amp.GradScaler("vgpu")
        loss = net(torch.ones(3, 4, device=gpu)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert {*optimizer.state} == {net.weight, net.bias}
        assert math.isnan(loss.item())  # which nobody knows, as before


def test_regions_within_regions(x):
    with torch.autocast("vgpu", dtype=HALF):
        with torch.autocast("vgpu", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == HALF
    assert (x @ x).dtype == torch.float32


def test_what_is_unsafe_is_refused(x):
    with torch.autocast("vgpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_autocast_of_the_host_is_another_thing(x):
    with torch.autocast("vgpu", dtype=HALF):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


# --- what is remembered ---------------------------------------------------------------------------


class Casts(TorchDispatchMode):
    """Counts copies of matrices into another type."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and args[0].dim() == 2:
            self.count += 1
        return func(*args, **(kwargs or {}))


PLAIN, UNTRACED = torch.enable_grad, torch.no_grad
BLOCKS = {
    "twice": [[PLAIN, PLAIN]],
    "two blocks": [[PLAIN], [PLAIN, PLAIN]],
    "without gradients": [[UNTRACED, UNTRACED, UNTRACED]],
    "without gradients first": [[UNTRACED, PLAIN, UNTRACED]],
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_a_weight_is_cast_as_often_as_on_the_host(gpus, blocks, frozen):
    net = nn.Linear(8, 8, bias=False).requires_grad_(not frozen)
    x = torch.ones(2, 8, dtype=HALF)
    expected = 0
    for modes in BLOCKS[blocks]:
        with torch.autocast("cpu", HALF), Casts() as casts:
            for mode in modes:
                with mode():
                    net(x)
        expected += casts.count
    net, x = net.to(gpus[0]), x.to(gpus[0])
    with par.record() as timeline:
        for modes in BLOCKS[blocks]:
            with torch.autocast("vgpu", HALF):
                for mode in modes:
                    with mode():
                        net(x)
    kernels = [span.name for span in timeline.spans if span.kind == "compute"]
    assert sum("copy" in name for name in kernels) == expected


def test_gradients_of_what_is_used_twice_are_those_of_the_host(gpus):
    def gradient(device, dtype):
        torch.manual_seed(0)
        net = nn.Linear(16, 16).to(device)
        x = torch.linspace(-1, 1, 64, device=device).view(4, 16)
        with torch.autocast(dtype, HALF), torch.no_grad():
            net(x)  # which must not cost the gradient
        with torch.autocast(dtype, HALF):
            loss = net(net(x).relu()).square().mean()
        loss.backward()
        return net.weight.grad.cpu()

    assert_close(gradient(gpus[0], "vgpu"), gradient("cpu", "cpu"), rtol=0.01, atol=1e-5)


def test_what_was_cast_is_held_to_the_end_of_the_block(fresh_gpus):
    net = nn.Linear(1024, 1024, bias=False).to(fresh_gpus[0])
    x = torch.ones(4, 1024, device=fresh_gpus[0])
    before = torch.vgpu.memory_allocated(0)
    with torch.autocast("vgpu", HALF):
        with torch.no_grad():
            net(x)
        assert torch.vgpu.memory_allocated(0) - before == 2 * 1024**2
        with torch.autocast("vgpu", enabled=False):
            net(x)
        assert torch.vgpu.memory_allocated(0) - before == 2 * 1024**2
        torch.clear_autocast_cache()
        assert torch.vgpu.memory_allocated(0) == before
        with torch.inference_mode():
            net(x)
        assert torch.vgpu.memory_allocated(0) == before
        net(x)
    assert torch.vgpu.memory_allocated(0) == before
