"""Data parallelism, however it is done, ends with the parameters of one device but for rounding.

Differences are a share of the way on which training took the parameters from their start. A sum in
another order moves the last digits only; a gradient that is left out, counted twice or not divided
moves far more. One device and two differ by 1.5e-6 in float32 and 1e-15 in float64.
"""

import copy
import os
from functools import cache, partial

import cells
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close

import d2lpar as par
from d2lpar import models

STEPS, BATCH, LR, N = 4, 32, 0.5, 2
TOLERANCE = {torch.float32: 2e-5, torch.float64: 2e-14}
on_real_ranks = pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS")


@pytest.fixture(scope="module")
def ranks():
    with par.cluster(N) as ranks:
        yield ranks


@cache
def multi_gpu_from_scratch():
    loss = nn.CrossEntropyLoss(reduction="none")
    return cells.functions("04", torch=torch, F=F, loss=loss)


def batches(pixels, dtype):
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        X = torch.rand(BATCH, 1, pixels, pixels, generator=generator, dtype=torch.float64)
        yield X.to(dtype), torch.randint(10, (BATCH,), generator=generator)


def shard(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def train(net, forward, batches, place=lambda tensor: tensor):
    """Plain SGD on the mean loss of each batch; `place` says which part goes where."""
    optimizer = torch.optim.SGD(net.parameters(), LR)
    for X, y in batches:
        optimizer.zero_grad()
        output = forward(place(X))
        F.cross_entropy(output, place(y).to(output.device)).backward()
        optimizer.step()
    return {name: value.detach().cpu() for name, value in net.state_dict().items()}


def train_with_data_parallel(make_net, batches, devices):
    net = make_net().to(devices[0])
    return train(net, nn.DataParallel(net, devices), batches)


def own_device(kind):
    return torch.device(kind, torch.vgpu.current_device()) if kind == "vgpu" else kind


def train_with_ddp(make_net, batches, kind):
    """What a rank does; `kind` of device is "cpu", or "vgpu" on virtual ranks."""
    device = own_device(kind)
    net = make_net().to(device)
    if dist.get_rank():
        for tensor in net.state_dict().values():
            tensor.zero_()  # DDP begins with what rank 0 has
    return train(net, DDP(net), batches(), lambda tensor: shard(tensor).to(device))


def on_virtual_ranks(function, *args):
    with par.simulate("8x-v100-pcie", N, with_values=True) as gpus:
        return par.run_ranks(function, gpus, *args, "vgpu")


def on_ranks(ranks, function, *args):
    return ranks.run(function, *args, "cpu")


def apart(found, expected, start):
    """How far `found` is from `expected`, as a share of the way from `start` to that."""
    way = [expected[name] - start[name] for name in start]
    error = [found[name] - expected[name] for name in start]
    assert found.keys() == expected.keys()
    return (_norm(error) / _norm(way)).item()


def _norm(tensors):
    return torch.cat([tensor.double().flatten() for tensor in tensors]).norm()


# --- LeNet: lesson 04's functions, DataParallel, DDP, a key-value store ---------------------------


def lenet_batches(dtype):
    return batches(28, dtype)


def start_params(dtype):
    torch.manual_seed(0)
    return [p.to(dtype) for p in multi_gpu_from_scratch().init_params(scale=0.1)]


def make_lenet(dtype):
    net = models.lenet().to(dtype)
    with torch.no_grad():
        for p, value in zip(net.parameters(), start_params(dtype), strict=True):
            p.copy_(value.T if value.dim() == 2 else value)
    return net


def as_state(params):
    """The lesson's list of parameters under the names of the modules."""
    values = [p.detach().cpu() for p in params]
    values = [value.T if value.dim() == 2 else value for value in values]
    return dict(zip(models.lenet().state_dict(), values, strict=True))


def by_hand(dtype, devices):
    """Lesson 04: every device has a replica, gradients are summed, each takes the same step."""
    replicas = [
        multi_gpu_from_scratch().get_params(start_params(dtype), device) for device in devices
    ]
    for X, y in lenet_batches(dtype):
        multi_gpu_from_scratch().train_batch(X, y, replicas, devices, LR)
    return replicas


def by_store(dtype, devices, place):
    """Lesson 04 with a key-value store: gradients are pushed, parameters pulled."""
    store = filled_store(dtype, place)
    replicas = [
        multi_gpu_from_scratch().get_params(start_params(dtype), device) for device in devices
    ]
    for X, y in lenet_batches(dtype):
        multi_gpu_from_scratch().train_batch_with_store(X, y, store, replicas, devices, LR)
    return replicas


def filled_store(dtype, place):
    store = par.collectives.KeyValueStore(place)
    for key, p in enumerate(start_params(dtype)):
        store.init(key, p)
    return store


def train_with_server(dtype, kind):
    """Rank 0 keeps the store, besides its share of the work; the others push to it and pull."""
    device = own_device(kind)
    r, n = dist.get_rank(), dist.get_world_size()
    store = filled_store(dtype, device) if r == 0 else None
    params = multi_gpu_from_scratch().get_params(start_params(dtype), device)
    for X, y in lenet_batches(dtype):
        X, y = shard(X).to(device), shard(y).to(device)
        multi_gpu_from_scratch().loss(multi_gpu_from_scratch().lenet(X, params), y).sum().backward()
        for key, w in enumerate(params):
            if r == 0:
                serve(store, key, w, n)
            else:
                dist.send(w.grad, 0)
                dist.recv(w.data, 0)
            w.grad.zero_()
    return as_state(params)


def serve(store, key, w, n):
    pushed = [w.grad, *(torch.empty_like(w.grad) for _ in range(1, n))]
    for r in range(1, n):
        dist.recv(pushed[r], r)
    store.push(key, pushed, lr=LR / BATCH)
    store.pull(key, [w, *pushed[1:]])
    for r in range(1, n):
        dist.send(pushed[r], r)


@cache
def lenet_on_one_cpu(dtype):
    net = make_lenet(dtype)
    return train(net, net, lenet_batches(dtype))


def assert_is_lenet_of_one_device(found, dtype):
    found = list(found)
    start, expected = make_lenet(dtype).state_dict(), lenet_on_one_cpu(dtype)
    assert len(found) == N
    for state in found:
        assert apart(state, expected, start) < TOLERANCE[dtype]


each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@each_dtype
def test_training_moves_every_parameter_by_far_more_than_the_tolerance(dtype):
    start, trained = make_lenet(dtype).state_dict(), lenet_on_one_cpu(dtype)
    whole = _norm(trained[name] - start[name] for name in start)
    assert whole > 0.02 * _norm(start.values())
    for name in start:
        assert _norm([trained[name] - start[name]]) > 100 * TOLERANCE[dtype] * whole


@each_dtype
def test_multi_gpu_from_scratch_by_hand(dtype):
    with par.simulate("8x-v100-pcie", N, with_values=True) as gpus:
        assert_is_lenet_of_one_device(map(as_state, by_hand(dtype, gpus)), dtype)


@each_dtype
@pytest.mark.parametrize("place", ["vgpu:0", "cpu"])
def test_multi_gpu_from_scratch_with_a_key_value_store(dtype, place):
    with par.simulate("8x-v100-pcie", N, with_values=True) as gpus:
        assert_is_lenet_of_one_device(map(as_state, by_store(dtype, gpus, place)), dtype)


@each_dtype
def test_data_parallel(dtype):
    with par.simulate("8x-v100-pcie", N, with_values=True) as gpus:
        make = partial(make_lenet, dtype)
        found = train_with_data_parallel(make, lenet_batches(dtype), gpus)
    assert_is_lenet_of_one_device([found] * N, dtype)


@each_dtype
def test_ddp_on_virtual_ranks(dtype):
    ddp = (train_with_ddp, partial(make_lenet, dtype), partial(lenet_batches, dtype))
    assert_is_lenet_of_one_device(on_virtual_ranks(*ddp), dtype)


@on_real_ranks
@each_dtype
def test_ddp_on_real_ranks(ranks, dtype):
    ddp = (train_with_ddp, partial(make_lenet, dtype), partial(lenet_batches, dtype))
    assert_is_lenet_of_one_device(on_ranks(ranks, *ddp), dtype)


@each_dtype
def test_a_key_value_store_on_a_virtual_rank(dtype):
    assert_is_lenet_of_one_device(on_virtual_ranks(train_with_server, dtype), dtype)


@on_real_ranks
@each_dtype
def test_a_key_value_store_on_a_real_rank(ranks, dtype):
    assert_is_lenet_of_one_device(on_ranks(ranks, train_with_server, dtype), dtype)


# --- ResNet: batch normalisation sees the shard of its device -------------------------------------

DTYPE = torch.float64


def make_resnet():
    torch.manual_seed(0)
    return models.resnet18(width=4).to(DTYPE)


def resnet_batches():
    return batches(14, DTYPE)


@cache
def resnet_on_one_cpu(shards):
    """Shard by shard, gradients averaged; what BatchNorm keeps is that of the first shard."""
    net = make_resnet()
    optimizer = torch.optim.SGD(net.parameters(), LR)
    for X, y in resnet_batches():
        optimizer.zero_grad()
        for i, (part, labels) in enumerate(zip(X.chunk(shards), y.chunk(shards), strict=True)):
            (F.cross_entropy(net(part), labels) / shards).backward()
            if i == 0:
                kept = copy.deepcopy(list(net.buffers()))
        for buffer, value in zip(net.buffers(), kept, strict=True):
            buffer.copy_(value)
        optimizer.step()
    return net.state_dict()


def assert_is_resnet_of_one_device(state):
    start, expected = make_resnet(), resnet_on_one_cpu(N)
    assert apart(state, expected, start.state_dict()) < 1e-11
    buffers = [name for name, _ in start.named_buffers()]
    assert len(buffers) == 3 * 17
    for name in buffers:
        assert not torch.equal(expected[name], start.get_buffer(name))
        assert_close(state[name], expected[name])


def test_batch_norm_over_shards_is_not_that_of_the_whole_batch():
    start = make_resnet().state_dict()
    assert apart(resnet_on_one_cpu(1), resnet_on_one_cpu(N), start) > 0.01


def test_resnet_data_parallel():
    with par.simulate("8x-v100-pcie", N, with_values=True) as gpus:
        assert_is_resnet_of_one_device(
            train_with_data_parallel(make_resnet, resnet_batches(), gpus)
        )


def test_resnet_ddp_on_virtual_ranks():
    states = on_virtual_ranks(train_with_ddp, make_resnet, resnet_batches)
    assert_is_resnet_of_one_device(states[0])
    assert_same_parameters(states)


@on_real_ranks
def test_resnet_ddp_on_real_ranks(ranks):
    states = on_ranks(ranks, train_with_ddp, make_resnet, resnet_batches)
    assert_is_resnet_of_one_device(states[0])
    assert_same_parameters(states)


def assert_same_parameters(states):
    """Bit by bit; statistics differ until the next forward pass sends those of rank 0."""
    for name, _ in make_resnet().named_parameters():
        assert torch.equal(states[1][name], states[0][name])
