"""A network in two halves on two GPUs, plain and pipelined, timed by timeit."""

import statistics
import timeit

import torch
import torch.nn as nn
import torch.optim as optim


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = torch.nn.Linear(10, 10).to("cuda:0")
        self.relu = torch.nn.ReLU()
        self.net2 = torch.nn.Linear(10, 5).to("cuda:1")

    def forward(self, x):
        x = self.relu(self.net1(x.to("cuda:0")))
        return self.net2(x.to("cuda:1"))


toy = ToyModel()
optimizer = optim.SGD(toy.parameters(), lr=0.001)
optimizer.zero_grad()
outputs = toy(torch.randn(20, 10))
labels = torch.randn(20, 5).to("cuda:1")
nn.MSELoss()(outputs, labels).backward()
optimizer.step()
toy_devices = [str(p.device) for p in toy.parameters()]

WIDTH, CLASSES, IMAGES = 64, 1000, 120


def block(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class ConvNet(nn.Module):
    """Convolutions that take about as long in the first half as in the second."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(block(3, WIDTH, 2), *[block(WIDTH, WIDTH) for _ in range(4)])
        self.second = nn.Sequential(*[block(WIDTH, WIDTH) for _ in range(4)], nn.AvgPool2d(64))
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.fc(self.second(self.first(x)).flatten(1))


class ModelParallel(ConvNet):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.first.to("cuda:0")
        self.second.to("cuda:1")
        self.fc.to("cuda:1")

    def forward(self, x):
        x = self.second(self.first(x).to("cuda:1"))
        return self.fc(x.view(x.size(0), -1))


class PipelineParallel(ModelParallel):
    def __init__(self, split_size=20, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.split_size = split_size

    def forward(self, x):
        splits = iter(x.split(self.split_size, dim=0))
        s_prev = self.first(next(splits)).to("cuda:1")
        ret = []
        for s_next in splits:
            s_prev = self.second(s_prev)
            ret.append(self.fc(s_prev.view(s_prev.size(0), -1)))
            s_prev = self.first(s_next).to("cuda:1")
        s_prev = self.second(s_prev)
        ret.append(self.fc(s_prev.view(s_prev.size(0), -1)))
        return torch.cat(ret)


def train(model, num_batches=3):
    model.train(True)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    one_hot_indices = torch.LongTensor(IMAGES).random_(0, CLASSES).view(IMAGES, 1)
    for _ in range(num_batches):
        inputs = torch.randn(IMAGES, 3, 128, 128)
        labels = torch.zeros(IMAGES, CLASSES).scatter_(1, one_hot_indices, 1)
        optimizer.zero_grad()
        outputs = model(inputs.to("cuda:0"))
        labels = labels.to(outputs.device)
        loss_fn(outputs, labels).backward()
        optimizer.step()


def mean_seconds(setup):
    return statistics.mean(
        timeit.repeat("train(model)", setup, number=1, repeat=3, globals=globals())
    )


seconds = {
    "single": mean_seconds("model = ConvNet().to('cuda:0')"),
    "model parallel": mean_seconds("model = ModelParallel()"),
    "pipeline": mean_seconds("model = PipelineParallel()"),
}
for name, mean in seconds.items():
    print(f"{name}: {mean:.4f} s")
