"""Data parallelism by hand: parameters, gradients and batches are sent around explicitly."""

import time

import torch
from torch import nn
from torch.nn import functional as F


class Stopwatch:
    def __init__(self):
        self.laps = []

    def start(self):
        self.begun = time.time()

    def stop(self):
        self.laps.append(time.time() - self.begun)
        return self.laps[-1]


def num_gpus():
    return torch.cuda.device_count()


def try_gpu(i=0):
    return torch.device(f"cuda:{i}") if num_gpus() >= i + 1 else torch.device("cpu")


def initial_params():
    generator = torch.Generator().manual_seed(1)
    shapes = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
    return [0.05 * torch.randn(shape, generator=generator) for shape in shapes]


def lenet(X, params):
    h = F.relu(F.conv2d(X, params[0], params[1]))
    h = F.avg_pool2d(h, (2, 2), (2, 2))
    h = F.relu(F.conv2d(h, params[2], params[3]))
    h = F.avg_pool2d(h, (2, 2), (2, 2)).reshape(X.shape[0], -1)
    return F.relu(h @ params[4] + params[5]) @ params[6] + params[7]


def get_params(params, device):
    replica = [p.to(device) for p in params]
    for p in replica:
        p.requires_grad_()
    return replica


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i][:] = data[0].to(data[i].device)


def split_batch(X, y, devices):
    if devices[0].type == "cpu":
        return (X,), (y,)
    return nn.parallel.scatter(X, devices), nn.parallel.scatter(y, devices)


loss = nn.CrossEntropyLoss(reduction="none")


def train_batch(X, y, replicas, devices, lr):
    shards_X, shards_y = split_batch(X, y, devices)
    losses = [
        loss(lenet(shard, params), label).sum()
        for shard, label, params in zip(shards_X, shards_y, replicas, strict=True)
    ]
    for part in losses:
        part.backward()
    with torch.no_grad():
        for i in range(len(replicas[0])):
            allreduce([replica[i].grad for replica in replicas])
    with torch.no_grad():
        for params in replicas:
            for p in params:
                p -= lr * p.grad / X.shape[0]
                p.grad.zero_()


def train(gpus, batch_size, lr, steps=3):
    devices = [try_gpu(i) for i in range(gpus)]
    replicas = [get_params(initial_params(), device) for device in devices]
    generator = torch.Generator().manual_seed(2)
    watch = Stopwatch()
    for _ in range(steps):
        X = torch.rand(batch_size, 1, 28, 28, generator=generator)
        y = torch.randint(10, (batch_size,), generator=generator)
        watch.start()
        train_batch(X, y, replicas, devices, lr)
        if num_gpus():
            torch.cuda.synchronize()
        watch.stop()
    print(f"{sum(watch.laps) / steps:.6f} s a step on {[str(device) for device in devices]}")
    return [[p.detach().cpu() for p in params] for params in replicas], watch.laps


replicas, laps = train(max(num_gpus(), 1), batch_size=64, lr=0.2)
