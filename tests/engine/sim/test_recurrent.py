"""Recurrent networks: the values and gradients of the CPU, in one operation as on CUDA."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import d2lpar as par


def outcome(device, net, x, states=None):
    """Outputs, states and gradients of a step, brought to the host."""
    net.to(device).zero_grad()
    torch.manual_seed(3)
    x = x.to(device, copy=True).requires_grad_()
    states = None if states is None else [s.to(device, copy=True).requires_grad_() for s in states]
    given = [*([] if states is None else states)]
    begun = () if states is None else (tuple(states) if len(states) > 1 else states[0],)
    out, last = net(x, *begun)
    found = [out, *(last if isinstance(last, tuple) else [last])]
    sum((t * t.detach().cos()).sum() for t in found).backward()
    gradients = [t.grad for t in (x, *given, *net.parameters())]
    return [t.detach().cpu() for t in (*found, *gradients)]


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # of the CPU
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"num_layers": 3, "dropout": 0.5}),
        (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bias": False}),
        (nn.GRU, {"bidirectional": True, "dropout": 0.3, "num_layers": 2}),
        (nn.RNN, {"nonlinearity": "relu", "bias": False}),
    ],
)
def test_a_sequence_is_what_the_cpu_computes(gpus, kind, options):
    net, x = kind(3, 4, batch_first=True, **options), torch.randn(2, 5, 3)
    assert_close(outcome(gpus[1], net, x), outcome("cpu", net, x))


def test_states_that_are_given_have_gradients(gpus):
    for kind, number in ((nn.LSTM, 2), (nn.GRU, 1)):
        states = [torch.randn(2, 2, 4) for _ in range(number)]
        net, x = kind(3, 4, num_layers=2), torch.randn(5, 2, 3)
        assert_close(outcome(gpus[0], net, x, states), outcome("cpu", net, x, states))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_is_what_the_cpu_computes(gpus, kind, bias):
    cell, x, results = kind(3, 4, bias=bias), torch.randn(2, 2, 3), []
    for device in ("cpu", gpus[0]):
        cell.to(device).zero_grad()
        there = x.to(device, copy=True).requires_grad_()
        states = cell(there[1], cell(there[0]))
        states = states if isinstance(states, tuple) else (states,)
        sum(state.square().sum() for state in states).backward()
        found = (*states, there.grad, *(p.grad for p in cell.parameters()))
        results.append([t.detach().cpu() for t in found])
    assert_close(results[1], results[0])


def test_second_derivatives_are_refused_as_by_cudnn_and_are_those_of_cells_without_it(gpus):
    net, x, results = nn.GRU(3, 4), torch.randn(5, 2, 3), []
    for device in ("cpu", gpus[0]):
        net.to(device)
        there = x.to(device, copy=True).requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):
            (first,) = torch.autograd.grad(net(there)[0].square().sum(), there, create_graph=True)
        first.square().sum().backward()
        results.append(there.grad.cpu())
    assert_close(results[1], results[0])
    there = x.to(gpus[0]).requires_grad_()
    (first,) = torch.autograd.grad(net(there)[0].square().sum(), there, create_graph=True)
    with pytest.raises(NotImplementedError, match="_cudnn_rnn_backward"):
        first.square().sum().backward()


def test_nothing_is_kept_for_a_backward_pass_in_evaluation(gpus):
    net, x = nn.LSTM(3, 4).to(gpus[0]).eval(), torch.randn(5, 2, 3).to(gpus[0])
    out, _ = net(x)
    with pytest.raises(RuntimeError, match="training mode"):
        out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_data_types(gpus, dtype):
    net, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    expected = net(x)[0]
    out, (h, c) = net.to(gpus[0], dtype)(x.to(gpus[0], dtype))
    out.sum().backward()
    assert {out.dtype, h.dtype, c.dtype, *(p.grad.dtype for p in net.parameters())} == {dtype}
    assert_close(out.detach().cpu().float(), expected.detach(), atol=0.02, rtol=0.02)


def test_autocast_takes_the_lower_precision(gpus):
    net, x = nn.GRU(3, 4).to(gpus[0]), torch.randn(5, 2, 3).to(gpus[0])
    with torch.autocast("vgpu", torch.bfloat16):
        out, h = net(x)
    out.float().sum().backward()
    assert (out.dtype, h.dtype) == (torch.bfloat16, torch.bfloat16)
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}


def test_weights_of_another_size_are_refused(gpus):
    net = nn.LSTM(3, 4).to(gpus[0])
    net.weight_hh_l0 = nn.Parameter(torch.zeros(16, 5, device=gpus[0]))
    with pytest.raises(RuntimeError, match=r"\(16, 5\).*\(16, 4\)"):
        net(torch.randn(5, 2, 3).to(gpus[0]))


# --- time -----------------------------------------------------------------------------------------


def forward_s(net, steps, batch, features, gpu):
    net = net.to(gpu)
    x = torch.empty(steps, batch, features, device=gpu)
    with torch.no_grad():
        return par.measure(lambda: net(x)).median_s


@pytest.fixture
def simulated():
    with par.simulate("8x-v100-dgx1") as gpus, par.shape_only():
        yield gpus


def test_shapes_alone_take_the_same_time(gpus):
    def step():
        out, _ = net(x)
        out.sum().backward()

    times = []
    for values in (True, False):
        with par.simulate("8x-v100-dgx1", with_values=values) as (gpu, *_):
            net, x = nn.LSTM(16, 32, num_layers=2).to(gpu), torch.zeros(7, 4, 16, device=gpu)
            step()
            times.append(par.measure(step).median_s)
    assert times[0] == pytest.approx(times[1])


def test_a_step_takes_as_long_at_the_end_as_at_the_beginning(simulated):
    times = [
        forward_s(nn.LSTM(1024, 1024), steps, 64, 1024, simulated[0]) for steps in (50, 100, 150)
    ]
    first, second = (b - a for a, b in pairwise(times))
    assert second == pytest.approx(first, rel=0.02)


def test_fp32_is_rounded_to_tf32_as_cudnn_may(monkeypatch):
    def step_s():
        with par.simulate("1x-a100-nvswitch") as (gpu,), par.shape_only():
            return forward_s(nn.LSTM(2048, 2048), 50, 64, 2048, gpu)

    rounded_s = step_s()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert step_s() > 1.2 * rounded_s


def test_layers_run_beside_each_other(simulated):
    """One step behind each other: the second layer of 300 steps costs a product of its inputs, and
    what wider products take from step to step."""
    one, two = (
        forward_s(nn.LSTM(256, 256, num_layers=n), 300, 16, 256, simulated[0]) for n in (1, 2)
    )
    assert one < two < 1.5 * one


def test_a_small_network_needs_no_launch_for_a_step(simulated):
    """PyTorch takes the persistent kernel up to 192 units, and not where sequences are packed."""
    small, larger = (
        forward_s(nn.LSTM(128, units), 500, 8, 128, simulated[0]) for units in (128, 256)
    )
    assert larger > 2 * small


def test_launches_bound_a_step_of_a_small_product(simulated):
    """Two kernels a step and layer, launched by cuDNN one after the other."""
    steps, layers = 400, 4
    net = nn.LSTM(256, 256, num_layers=layers)
    seconds = forward_s(net, steps, 1, 256, simulated[0])
    launch_s = par.machines.machine("8x-v100-dgx1").host.launch_s
    assert seconds >= 2 * layers * steps * launch_s
