"""k devices equal one: the training step as lesson 04 defines it, and as the package helps to."""

from types import SimpleNamespace

import pytest
import torch
from cells import functions
from torch import nn
from torch.nn import functional as F

import d2lpar as par

STEPS, LR = 4, 0.2


@pytest.fixture(scope="module")
def lesson() -> SimpleNamespace:
    loss = nn.CrossEntropyLoss(reduction="none")
    return functions("04", torch=torch, F=F, par=par, loss=loss)


@pytest.fixture
def devices() -> list[torch.device]:
    return par.devices(4, kind="virtual", verbose=False)


def batches(size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.rand(size, 1, 28, 28, generator=generator, dtype=torch.float64),
            torch.randint(10, (size,), generator=generator),
        )
        for _ in range(STEPS)
    ]


def start(lesson: SimpleNamespace) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [p.double() for p in lesson.init_params(scale=0.1)]


def by_plain_autograd(lesson: SimpleNamespace, size: int) -> list[torch.Tensor]:
    """The oracle: no list of devices anywhere, torch's own optimizer, on the CPU."""
    params = [p.requires_grad_() for p in start(lesson)]
    optimizer = torch.optim.SGD(params, lr=LR)
    for X, y in batches(size):
        optimizer.zero_grad()
        F.cross_entropy(lesson.lenet(X, params), y).backward()
        optimizer.step()
    return params


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [16, 10, 7])  # even shards, uneven ones
def test_by_hand(lesson, devices, k, size):
    replicas = [lesson.get_params(start(lesson), device) for device in devices[:k]]
    for X, y in batches(size):
        lesson.train_batch(X, y, replicas, devices[:k], LR)
    expected = by_plain_autograd(lesson, size)
    for replica in replicas:
        assert_equal(replica, expected)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_by_key_value_store(lesson, devices, k):
    store = par.collectives.KeyValueStore(devices[0])
    for key, p in enumerate(start(lesson)):
        store.init(key, p)
    replicas = [lesson.get_params(start(lesson), device) for device in devices[:k]]
    for X, y in batches(10):
        lesson.train_batch_with_store(X, y, store, replicas, devices[:k], LR)
    expected = by_plain_autograd(lesson, 10)
    for replica in replicas:
        assert_equal(replica, expected)


class LeNet(nn.Module):
    """The lesson's function as a module, for nn.DataParallel."""

    def __init__(self, lesson: SimpleNamespace) -> None:
        super().__init__()
        self._lenet = lesson.lenet
        for i, p in enumerate(start(lesson)):
            self.register_parameter(f"p{i}", nn.Parameter(p))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self._lenet(X, [getattr(self, f"p{i}") for i in range(8)])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [16, 10])
def test_by_data_parallel(lesson, devices, k, size):
    net = LeNet(lesson).to(devices[0])
    parallel = nn.DataParallel(net, device_ids=list(range(k)))
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for X, y in batches(size):
        optimizer.zero_grad()
        F.cross_entropy(parallel(X), y.to(devices[0])).backward()
        optimizer.step()
    assert_equal(list(net.parameters()), by_plain_autograd(lesson, size))


def test_a_replica_that_is_aliased_would_be_seen(lesson):
    """The oracle must be able to say no: the classic bug on two CPU "devices"."""
    params = [p.requires_grad_() for p in start(lesson)]
    X, y = batches(16)[0]
    lesson.train_batch(X, y, [params, params], [torch.device("cpu")] * 2, LR)
    with pytest.raises(AssertionError):
        assert_equal(params, by_plain_autograd(lesson, 16))
