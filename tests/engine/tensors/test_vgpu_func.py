"""torch.func on virtual GPUs: every composition of its transforms is what it is on the CPU."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import func
from torch.fx.experimental.proxy_tensor import make_fx

import d2lpar as par

pytestmark = [  # what torch says of itself, on any device
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]


def f(x):
    """Two values of two, by a view that is written in place."""
    y = x.sin() * x**3
    y.view(2, 1).mul_(2)
    return (y * x.exp()).tanh() + x.sum()


def vjp(g):
    def transformed(x):
        out, pull = func.vjp(g, x)
        return pull(torch.ones_like(out))[0]

    return transformed


# Each makes a function of a vector out of another.
TRANSFORMS = {
    "grad": lambda g: func.grad(lambda x: g(x).sum()),
    "vjp": vjp,
    "jvp": lambda g: lambda x: func.jvp(g, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda g: lambda x: func.vmap(g)(torch.stack([x, 2 * x])),
    "jacrev": func.jacrev,
    "jacfwd": func.jacfwd,
    "hessian": func.hessian,
    "functionalize": func.functionalize,
    "linearize": lambda g: lambda x: func.linearize(g, x)[1](torch.ones_like(x)),
}
# Within another transform, torch 2.15 lets linearize read memory that nobody has written.
INNER = [name for name in TRANSFORMS if name != "linearize"]


def outcome(names, x):
    """What the composition returns, or the error that it raises."""
    g = f
    for name in reversed(names):
        g = TRANSFORMS[name](g)
    try:
        return g(x)
    except (RuntimeError, NotImplementedError) as error:
        return error


def check(names, device):
    x = torch.tensor([0.5, -0.7], dtype=torch.float64)
    expected, found = outcome(names, x), outcome(names, x.to(device))
    if isinstance(expected, Exception):
        assert str(found) == str(expected)
    else:
        assert found.device == device
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("outer", TRANSFORMS)
def test_transforms_and_their_pairs(gpus, outer):
    for names in [(outer,), *product([outer], INNER)]:
        check(names, gpus[1])


@pytest.mark.slow
@pytest.mark.parametrize("outer", TRANSFORMS)
@pytest.mark.parametrize("middle", INNER)
def test_three_transforms(gpus, outer, middle):
    for inner in INNER:
        check((outer, middle, inner), gpus[1])


def cubes(x):
    return (x**3).sum()


@pytest.mark.parametrize("second", [func.hessian, lambda f: func.jacfwd(func.jacrev(f))])
def test_second_derivatives_of_a_cube(gpus, second):
    x = torch.arange(3.0)
    assert torch.equal(second(cubes)(x.to(gpus[0])).cpu(), torch.diag(6 * x))


def test_zeros_that_are_no_values_take_neither_memory_nor_a_kernel(fresh_gpus):
    device = fresh_gpus[0]
    with par.record() as timeline:
        zeros = torch._efficientzerotensor(1000, device=device).view(10, 100)  # as derivatives do
    assert torch.vgpu.memory_allocated(device) == 0
    assert not list(timeline.on(device, "compute"))
    assert (zeros * torch.ones(100, device=device))._is_zerotensor()
    assert torch.equal((zeros + 1).cpu(), torch.ones(10, 100))
    assert torch.equal(zeros.exp().cpu(), torch.ones(10, 100))
    assert torch.equal(zeros.clone().cpu(), torch.zeros(10, 100))


def test_a_second_derivative_takes_the_same_time_from_shapes_alone():
    def spans(with_values):
        with par.simulate("2x-v100-textbook", with_values=with_values) as (device, _):
            x = torch.ones(3, device=device)
            with par.record() as timeline:
                func.hessian(cubes)(x)
                torch.vgpu.synchronize()
            return timeline.spans

    assert spans(True) == spans(False)


def test_a_tensor_for_meta_is_not_copied(fresh_gpus):
    x = torch.ones(3, 4, device=fresh_gpus[0]).T
    for shape_only in (False, True):
        with par.record() as timeline:
            if shape_only:
                with par.shape_only():
                    there = x.to("meta", torch.float64)
            else:
                there = x.to("meta", torch.float64)
        assert (there.shape, there.stride(), there.dtype) == (x.shape, x.stride(), torch.float64)
        assert not timeline.spans


def test_graphs_hold_the_operations_of_virtual_tensors(gpus):
    def program(x):
        return torch.stack([x.sin(), torch.ones(2, device=x.device)]).sum(0) * constants[x.device]

    x = torch.tensor([1.0, 2.0])
    constants = {device: torch.tensor([3.0, 4.0]).to(device) for device in (x.device, gpus[1])}
    graphs = [make_fx(program)(place) for place in (x, x.to(gpus[1]))]
    assert graphs[1].code.replace("vgpu', index=1", "cpu'") == graphs[0].code
    y = torch.tensor([5.0, 6.0])
    assert torch.equal(graphs[1](y.to(gpus[1])).cpu(), program(y))
