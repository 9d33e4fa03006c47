"""Side streams, events, and a loader that copies the next batch while this one is worked on."""

import torch
from torch import nn

cuda = torch.device("cuda")

# A kernel on a side stream has to wait for what makes its input.
side = torch.cuda.Stream()
a = torch.empty((1000, 1000), device=cuda).normal_(0.0, 1.0)
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    total = torch.sum(a)
    a.record_stream(side)
torch.cuda.current_stream().wait_stream(side)
total_on_cpu = total.item()
expected_total = a.cpu().sum().item()

# Events measure what happens between them, on one device and its stream.
start_event = torch.cuda.Event(enable_timing=True)
end_event = torch.cuda.Event(enable_timing=True)
start_event.record()
for _ in range(10):
    a = (a @ a).clamp(-1, 1)
end_event.record()
torch.cuda.synchronize()
elapsed_ms = start_event.elapsed_time(end_event)
assert end_event.query()


class Prefetcher:
    """Hands out batches that are on the GPU already."""

    def __init__(self, batches):
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.batches)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.next_input, self.next_target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
            target.record_stream(torch.cuda.current_stream())
        self.preload()
        return input, target


made = [(torch.rand(256, 8192), torch.randint(10, (256,))) for _ in range(6)]
pinned = [(x.pin_memory(), y.pin_memory()) for x, y in made]
net = nn.Sequential(nn.Linear(8192, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
criterion = nn.CrossEntropyLoss().cuda()


def time_of(step):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def plain():
    for input, target in made:
        criterion(net(input.cuda()), target.cuda()).backward()


def prefetched():
    prefetcher = Prefetcher(pinned)
    input, target = prefetcher.next()
    while input is not None:
        criterion(net(input), target).backward()
        input, target = prefetcher.next()


plain_ms, prefetched_ms = time_of(plain), time_of(prefetched)
print(f"{elapsed_ms:.3f} ms, plain {plain_ms:.3f} ms, prefetched {prefetched_ms:.3f} ms")
