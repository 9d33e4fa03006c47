"""Data parallelism the short way: a ResNet-18 (for small images) in nn.DataParallel."""

import time

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, inputs, outputs, halve=False):
        super().__init__()
        stride = 2 if halve else 1
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv3 = nn.Conv2d(inputs, outputs, 1, stride=stride) if halve else None
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)

    def forward(self, X):
        Y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(X)))))
        return F.relu(Y + (X if self.conv3 is None else self.conv3(X)))


def stage(inputs, outputs, first=False):
    return nn.Sequential(
        Residual(inputs, outputs, halve=not first),
        Residual(outputs, outputs),
    )


def resnet18(classes, width=8):
    net = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    net.add_module("stage1", stage(width, width, first=True))
    net.add_module("stage2", stage(width, 2 * width))
    net.add_module("stage3", stage(2 * width, 4 * width))
    net.add_module("pool", nn.AdaptiveAvgPool2d((1, 1)))
    net.add_module("fc", nn.Sequential(nn.Flatten(), nn.LazyLinear(classes)))
    return net


def evaluate_accuracy_gpu(net, batches, device=None):
    net.eval()
    if not device:
        device = next(iter(net.parameters())).device
    right = total = 0
    with torch.no_grad():
        for X, y in batches:
            X, y = X.to(device), y.to(device)
            right += (net(X).argmax(dim=1) == y).sum().item()
            total += y.numel()
    net.train()
    return right / total


def try_gpu(i=0):
    return torch.device(f"cuda:{i}" if torch.cuda.device_count() > i else "cpu")


def make_batches(count, size):
    generator = torch.Generator().manual_seed(5)
    labels = [torch.randint(10, (size,), generator=generator) for _ in range(count)]
    return [(F.one_hot(y, 16).float().reshape(size, 1, 4, 4).repeat(1, 1, 4, 4), y) for y in labels]


def train(net, num_gpus, lr, epochs=2):
    batches = make_batches(4, 32)
    devices = [try_gpu(i) for i in range(num_gpus)]

    def init_weights(module):
        if type(module) in (nn.Linear, nn.Conv2d):
            generator = torch.Generator().manual_seed(module.weight.numel())
            with torch.no_grad():
                module.weight.copy_(0.05 * torch.randn(module.weight.shape, generator=generator))
                module.bias.zero_()

    net.to(devices[0])
    net(batches[0][0].to(devices[0]))
    net.apply(init_weights)
    if torch.cuda.is_available():
        net = nn.DataParallel(net, device_ids=devices)
    trainer = torch.optim.SGD(net.parameters(), lr)
    loss = nn.CrossEntropyLoss()
    times, losses = [], []
    for _ in range(epochs):
        net.train()
        start = time.perf_counter()
        for X, y in batches:
            trainer.zero_grad()
            X, y = X.to(devices[0]), y.to(devices[0])
            l = loss(net(X), y)  # noqa: E741
            l.backward()
            trainer.step()
            losses.append(l.item())
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return net, times, losses, evaluate_accuracy_gpu(net, batches)


torch.manual_seed(0)
net, times, losses, accuracy = train(resnet18(10), max(torch.cuda.device_count(), 1), lr=0.1)
print(f"accuracy {accuracy:.2f}, {times[-1]:.4f} s an epoch on {torch.cuda.device_count()} GPUs")
