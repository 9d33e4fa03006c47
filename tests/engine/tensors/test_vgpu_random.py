"""Each virtual device has a generator of its own, seeded as on CUDA, with the CPU's numbers."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.testing import assert_close

DRAWS = {
    "randn": lambda device: torch.randn(5, device=device),
    "rand_like": lambda device: torch.rand_like(torch.ones(5, device=device)),
    "randint": lambda device: torch.randint(100, (5,), device=device),
    "randperm": lambda device: torch.randperm(9, device=device),
    "bernoulli": lambda device: torch.full((50,), 0.5, device=device).bernoulli_(),
    "multinomial": lambda device: torch.ones(9, device=device).multinomial(5),
    "dropout": lambda device: F.dropout(torch.ones(50, device=device)),
    "rrelu": lambda device: F.rrelu(-torch.ones(9, device=device), training=True),
    "kaiming": lambda device: torch.nn.init.kaiming_uniform_(torch.empty(3, 3, device=device)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_seed_gives_the_numbers_of_the_cpu_on_every_device(gpus, name):
    draw = DRAWS[name]
    torch.manual_seed(3)
    expected = [draw("cpu"), draw("cpu")]
    for _ in range(2):
        torch.manual_seed(3)
        for device in gpus:
            assert_close([draw(device).cpu(), draw(device).cpu()], expected)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_on_a_device_leave_other_generators_alone(gpus, name):
    torch.manual_seed(3)
    expected = torch.randn(5)
    torch.manual_seed(3)
    DRAWS[name](gpus[0])
    assert_close(torch.randn(5), expected)
    assert_close(torch.randn(5, device=gpus[1]).cpu(), expected)


def test_states_can_be_kept_and_set(gpus):
    state = torch.vgpu.get_rng_state(1)
    first = torch.randn(3, device=gpus[1])
    torch.vgpu.set_rng_state(state, gpus[1])
    assert_close(torch.randn(3, device=gpus[1]).cpu(), first.cpu())


def test_one_device_can_be_seeded(gpus):
    torch.manual_seed(1)
    with torch.vgpu.device(2):
        torch.vgpu.manual_seed(5)
    draws = [torch.randn(3, device=device).cpu() for device in gpus]
    assert_close(draws[0], draws[1], rtol=0, atol=0)
    assert_close(draws[2], torch.randn(3, generator=torch.Generator().manual_seed(5)))


def test_fork_rng_gives_devices_and_host_their_numbers_back(gpus):
    torch.manual_seed(0)
    with torch.random.fork_rng(devices=[0, 1], device_type="vgpu"):
        inside = [torch.randn(3, device=device).cpu() for device in ("cpu", *gpus[:2])]
    outside = [torch.randn(3, device=device).cpu() for device in ("cpu", *gpus[:2])]
    assert_close(outside, inside)


def test_a_generator_of_the_host_may_be_given(gpus):
    there = torch.randn(3, device=gpus[0], generator=torch.Generator().manual_seed(4))
    assert_close(there.cpu(), torch.randn(3, generator=torch.Generator().manual_seed(4)))


def test_states_can_be_kept_and_set_where_other_tensors_are_fake(gpus):
    with FakeTensorMode():
        state = torch.vgpu.get_rng_state()
    first = torch.randn(3, device=gpus[0])
    with FakeTensorMode():
        torch.vgpu.set_rng_state(state)
    assert torch.equal(torch.randn(3, device=gpus[0]), first)


@pytest.mark.parametrize(("count", "replacement"), [(1, False), (1, True), (5, False), (5, True)])
def test_the_host_does_not_wait_for_what_is_drawn(gpus, count, replacement):
    """PyTorch looks at the chances on the device, by `_assert_async` (pull request 134818)."""
    chances = torch.ones(4, 4096, device=gpus[0])
    for _ in range(2):
        torch.vgpu.synchronize(gpus[0])
        event = torch.Event(device=gpus[0].type)
        chances.multinomial(count, replacement)
        event.record()
    assert not event.query()
