"""The shape of today's large trainers: pipeline × FSDP × tensor parallelism on one device mesh.

The network is made on `meta`, cut into a stage, its blocks parallelised by a plan with sequence
parallelism, recomputed in backward, sharded with mixed precision, and only then given memory and
weights. A schedule of torch's drives the stages; gradients are clipped over all ranks; the state is
saved as distributed tensors.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, WORDS, LENGTH = 2, 16, 4, 24, 8
ROWS, MICRO_BATCHES, STEPS = 4, 2, 2  # rows of a replica's batch


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (
            f(x).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(rows, length, -1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed = Attention(), FeedForward()
        self.norm_attention, self.norm_feed = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm_attention(x))
        return x + self.feed(self.norm_feed(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        x = self.embed(x) if self.embed is not None else x
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x)) if self.head is not None else x


def whole_weight(name: str, shape: torch.Size) -> torch.Tensor:
    """A parameter of the whole network, the same wherever it is asked for."""
    if len(shape) == 1:
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(shape, generator=generator) / shape[-1] ** 0.5


def batch(step: int, replica: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + replica)
    words = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
    return words[:, :-1], words[:, 1:]


def loss_of(y, following):
    return F.cross_entropy(y.flatten(0, 1).float(), following.flatten())


# What makes it parallel


def cut(net: Decoder, stage: int, stages: int) -> Decoder:
    """Leave of the network what a stage has."""
    own = range(LAYERS * stage // stages, LAYERS * (stage + 1) // stages)
    net.layers = nn.ModuleDict({str(i): net.layers[str(i)] for i in own})
    if stage:
        net.embed = None
    if stage < stages - 1:
        net.norm = net.head = None
    return net


def split(net: Decoder, mesh) -> None:
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    there = {name: way for name, way in plan.items() if getattr(net, name) is not None}
    parallelize_module(net, mesh, there)
    for block in net.layers.values():
        whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan = {
            "norm_attention": SequenceParallel(), "norm_feed": SequenceParallel(),
            "attention": whole, "feed": whole,
            "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "feed.gate": ColwiseParallel(), "feed.up": ColwiseParallel(),
            "feed.down": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
        parallelize_module(block, mesh, plan)


def shard(net: Decoder, mesh, precision: torch.dtype) -> None:
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": False}
    if net.embed is not None:
        fully_shard(net.embed, **options)
    for block in net.layers.values():
        fully_shard(block, **options)
    if net.head is not None:
        fully_shard([net.norm, net.head], **options)
    fully_shard(net, **options)


@torch.no_grad()
def fill(net: Decoder) -> None:
    """Give the local parts of all parameters their values."""
    for name, p in net.named_parameters():
        whole = whole_weight(name.replace("_checkpoint_wrapped_module.", ""), p.shape)
        if isinstance(p, DTensor):
            from torch.distributed.tensor import distribute_tensor

            whole = distribute_tensor(whole.to(device), p.device_mesh, p.placements)
        p.copy_(whole)


def clip(net: Decoder, mesh, most: float) -> float:
    """Clip by the norm of the gradients of all stages."""
    gradients = [p.grad for p in net.parameters()]
    norm = nn.utils.get_total_norm(gradients)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    total = norm**2
    dist.all_reduce(total, group=mesh.get_group())
    total = total**0.5
    nn.utils.clip_grads_with_norm_(net.parameters(), most, total)
    return total.item()


if __name__ == "__main__":
    path, precision = sys.argv[1], getattr(torch, sys.argv[2])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "fsdp", "tp"))
    replica, stage = mesh.get_local_rank("fsdp"), mesh.get_local_rank("pp")
    with torch.device("meta"):
        net = cut(Decoder(), stage, 2)
    split(net, mesh["tp"])
    for name, block in net.layers.items():
        net.layers[name] = checkpoint_wrapper(block, preserve_rng_state=False)
    shard(net, mesh["fsdp"], precision)
    net.to_empty(device=device)
    fill(net)
    net.train()
    pipeline_stage = PipelineStage(net, stage, 2, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(pipeline_stage, MICRO_BATCHES, loss_fn=loss_of, scale_grads=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-3, fused=True)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        words, following = (part.to(device) for part in batch(step, replica))
        found: list[torch.Tensor] = []
        if stage == 0:
            schedule.step(words)
        else:
            schedule.step(target=following, losses=found)
        mean = torch.stack(found).mean() if found else torch.tensor(-1.0, device=device)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=mesh["fsdp"].get_group())
        dist.all_reduce(mean, op=dist.ReduceOp.MAX, group=mesh["pp"].get_group())
        losses.append(mean.item())
        norms.append(clip(net, mesh["pp"], 0.5))
        optimizer.step()
    whole = {
        name.replace("_checkpoint_wrapped_module.", ""): p.full_tensor().cpu()
        for name, p in net.state_dict().items()
    }
    torch.save({"losses": losses, "norms": norms, "state": whole}, f"{path}.{dist.get_rank()}")
    dist.destroy_process_group()
