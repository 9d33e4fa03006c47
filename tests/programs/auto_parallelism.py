"""Two devices at once, and copies to the host while computing goes on."""

import time

import torch

SIZE, PRODUCTS = 4000, 50


class Benchmark:
    def __init__(self, description="Done"):
        self.description = description

    def __enter__(self):
        self.start = time.time()
        return self

    def __exit__(self, *args):
        seconds[self.description] = time.time() - self.start
        print(f"{self.description}: {seconds[self.description]:.4f} sec")


def run(x):
    return [x.mm(x) for _ in range(PRODUCTS)]


def copy_to_cpu(x, non_blocking=False):
    return [y.to("cpu", non_blocking=non_blocking) for y in x]


seconds = {}
devices = [torch.device("cuda"), torch.device("cuda:1")]
x_gpu1 = torch.rand(size=(SIZE, SIZE), device=devices[0])
x_gpu2 = torch.rand(size=(SIZE, SIZE), device=devices[1])

run(x_gpu1)
run(x_gpu2)
torch.cuda.synchronize(devices[0])
torch.cuda.synchronize(devices[1])

with Benchmark("GPU1 time"):
    run(x_gpu1)
    torch.cuda.synchronize(devices[0])
with Benchmark("GPU2 time"):
    run(x_gpu2)
    torch.cuda.synchronize(devices[1])
with Benchmark("GPU1 & GPU2"):
    run(x_gpu1)
    run(x_gpu2)
    torch.cuda.synchronize()
    torch.cuda.synchronize(devices[1])
with Benchmark("Run on GPU1"):
    y = run(x_gpu1)
    torch.cuda.synchronize()
with Benchmark("Copy to CPU"):
    y_cpu = copy_to_cpu(y)
    torch.cuda.synchronize()
with Benchmark("Run on GPU1 and copy to CPU"):
    y = run(x_gpu1)
    y_cpu = copy_to_cpu(y, True)
    torch.cuda.synchronize()
with Benchmark("without waiting"):
    run(x_gpu1)
