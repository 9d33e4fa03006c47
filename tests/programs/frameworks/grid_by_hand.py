"""Data, pipeline and tensor parallelism in groups made by hand, as in small educational trainers.

A grid of ranks with a group along each of its axes; weights that are made on `meta` and filled
where they are needed; matrices split by columns and by rows with functions of autograd; stages that
exchange by `batch_isend_irecv`, one forward and one backward in turn; gradients summed in float32,
and averaged in buckets while backward goes on.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.nn import functional as F

LAYERS, WIDTH, HIDDEN, WORDS, LENGTH = 4, 16, 32, 24, 6
ROWS, MICRO_BATCHES, STEPS = 3, 4, 2  # rows of a micro-batch of one replica
DATA, STAGES, PARTS = 2, 2, 2


def weight(name: str, *shape: int) -> torch.Tensor:
    """A whole matrix of the network, the same wherever it is asked for."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5


def whole_weights() -> dict[str, torch.Tensor]:
    found = {"embed": weight("embed", WORDS, WIDTH), "head": weight("head", WORDS, WIDTH)}
    for layer in range(LAYERS):
        found[f"{layer}.up"] = weight(f"{layer}.up", HIDDEN, WIDTH)
        found[f"{layer}.down"] = weight(f"{layer}.down", WIDTH, HIDDEN)
    return found


def batch(step: int, replica: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * replica + micro_batch)
    words = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
    return words[:, :-1], words[:, 1:]


class Grid:
    """Who this rank is along each axis, and its groups."""

    def __init__(self, *sizes: int) -> None:
        self.ranks = torch.arange(dist.get_world_size()).view(*sizes)
        place = (self.ranks == dist.get_rank()).nonzero().flatten().tolist()
        self.replica, self.stage, self.part = place
        self.data, self.pipeline, self.tensor = (self._group(axis) for axis in range(3))

    def _group(self, axis: int) -> dist.ProcessGroup:
        lines = self.ranks.movedim(axis, -1).reshape(-1, self.ranks.shape[axis]).tolist()
        return dist.new_subgroups_by_enumeration(lines)[0]

    def neighbour(self, by: int) -> int | None:
        stage = self.stage + by
        inside = 0 <= stage < self.ranks.shape[1]
        return self.ranks[self.replica, stage, self.part].item() if inside else None


class CopyToParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient, group=grid.tensor)
        return gradient


class SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x, group=grid.tensor)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.up = nn.Parameter(torch.empty(HIDDEN // PARTS, WIDTH))
        self.down = nn.Parameter(torch.empty(WIDTH, HIDDEN // PARTS))

    def fill(self) -> None:
        up, down = (
            weight(f"{self.layer}.up", HIDDEN, WIDTH),
            weight(f"{self.layer}.down", WIDTH, HIDDEN),
        )
        self.up.data.copy_(up.chunk(PARTS)[grid.part])
        self.down.data.copy_(down.chunk(PARTS, dim=1)[grid.part])

    def forward(self, x):
        hidden = F.gelu(F.linear(CopyToParts.apply(x), self.up))
        return x + SumOfParts.apply(F.linear(hidden, self.down))


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        per_stage = LAYERS // STAGES
        first = grid.stage * per_stage
        self.embed = nn.Embedding(WORDS, WIDTH) if grid.stage == 0 else None
        self.blocks = nn.ModuleList(Block(first + i) for i in range(per_stage))
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if grid.stage == STAGES - 1 else None

    @torch.no_grad()
    def fill(self) -> None:
        for block in self.blocks:
            block.fill()
        for name in ("embed", "head"):
            if getattr(self, name) is not None:
                getattr(self, name).weight.copy_(weight(name, WORDS, WIDTH))

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


class Buckets:
    """Gradients summed up in float32, a bucket for so many parameters, averaged when complete."""

    def __init__(self, net: nn.Module, size: int) -> None:
        parameters = list(net.parameters())[::-1]
        self.buckets = [parameters[i : i + size] for i in range(0, len(parameters), size)]
        self.sums, self.handles, self.last, self.waits = [], [], False, False
        self.missing: list[set] = []
        for bucket in self.buckets:
            flat = torch.zeros(sum(p.numel() for p in bucket), device=device)
            self.sums.append(flat)
            self.missing.append(set())
            pieces = flat.split([p.numel() for p in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.main_grad = piece.view_as(parameter)
                number = len(self.sums) - 1
                parameter.register_post_accumulate_grad_hook(
                    lambda p, number=number: self.ready(p, number)
                )

    def ready(self, parameter: nn.Parameter, number: int) -> None:
        parameter.main_grad.add_(parameter.grad.data)
        parameter.grad = None
        if not self.last:
            return
        if not self.waits:
            Variable._execution_engine.queue_callback(self.wait)
            self.waits = True
        self.missing[number].remove(parameter)
        if not self.missing[number]:
            self.sums[number].div_(DATA)
            handle = dist.all_reduce(self.sums[number], group=grid.data, async_op=True)
            self.handles.append(handle)

    def expect(self, *, last: bool) -> None:
        self.last = last
        self.missing = [set(bucket) for bucket in self.buckets]

    def wait(self) -> None:
        for handle in self.handles:
            handle.wait()
        self.handles, self.waits = [], False
        for bucket in self.buckets:
            for parameter in bucket:
                parameter.grad = parameter.main_grad.to(parameter.dtype)

    def reset(self) -> None:
        for flat in self.sums:
            flat.zero_()


def exchange(sent: torch.Tensor | None, receives: bool, peer: int | None) -> torch.Tensor | None:
    """Send to a neighbour, receive from it, or both."""
    if peer is None or (sent is None and not receives):
        return None
    operations, received = [], None
    if sent is not None:
        operations.append(dist.P2POp(dist.isend, sent, peer))
    if receives:
        received = torch.empty(ROWS, LENGTH, WIDTH, device=device, requires_grad=True)
        operations.append(dist.P2POp(dist.irecv, received, peer))
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    torch.cuda.synchronize()
    return received


class Step:
    """A step of one forward and one backward in turn."""

    def __init__(self, number: int) -> None:
        self.number, self.begun, self.ended, self.losses = number, 0, 0, []
        self.before, self.after = grid.neighbour(-1), grid.neighbour(1)
        self.waiting: list[tuple] = []

    def forward(self, x: torch.Tensor | None) -> torch.Tensor:
        words, following = batch(self.number, grid.replica, self.begun)
        self.begun += 1
        x = words.to(device) if x is None else x
        y = net(x)
        if self.after is None:
            loss = F.cross_entropy(y.flatten(0, 1), following.to(device).flatten())
            self.losses.append(loss.item())
            y = loss / MICRO_BATCHES
        self.waiting.append((x, y))
        return y

    def backward(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        x, y = self.waiting.pop(0)
        self.ended += 1
        buckets.expect(last=self.ended == MICRO_BATCHES)
        y.backward(gradient)
        return None if self.before is None else x.grad

    def run(self) -> float:
        warm_up = min(STAGES - 1 - grid.stage, MICRO_BATCHES)
        for _ in range(warm_up):
            y = self.forward(exchange(None, True, self.before))
            exchange(y.detach(), False, self.after)
        steady = MICRO_BATCHES - warm_up
        x = exchange(None, True, self.before) if steady else None
        for i in range(steady):
            y = self.forward(x)
            gradient = exchange(y.detach(), True, self.after)
            sent = self.backward(gradient)
            x = exchange(sent, i < steady - 1, self.before)
        for _ in range(warm_up):
            sent = self.backward(exchange(None, True, self.after))
            exchange(sent, False, self.before)
        return self._mean_loss()

    def _mean_loss(self) -> float:
        loss = torch.tensor(sum(self.losses) / MICRO_BATCHES, device=device)
        if self.after is None:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=grid.data)
        dist.broadcast(loss, grid.ranks[grid.replica, -1, grid.part].item(), group=grid.pipeline)
        return loss.item()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=device)
    grid = Grid(DATA, STAGES, PARTS)
    with torch.device("meta"):
        net = Stage()
    net.to_empty(device=device)
    net.fill()
    buckets = Buckets(net, size=2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    dist.barrier()
    losses = []
    for number in range(STEPS):
        buckets.reset()
        losses.append(Step(number).run())
        gradients = {name: p.grad.cpu() for name, p in net.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    saved = {
        "place": (grid.replica, grid.stage, grid.part), "losses": losses, "gradients": gradients,
        "parameters": {name: p.detach().cpu() for name, p in net.named_parameters()},
    }  # fmt: skip
    torch.save(saved, f"{sys.argv[1]}.{dist.get_rank()}")
    dist.destroy_process_group()
