"""Tensor, sequence and loss parallelism by torch's plans on virtual ranks: equal to one device."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

import d2lpar as par

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 16, 8, 2, 4, 4


class Block(nn.Module):
    """Attention and two linear layers, each after a norm; LENGTH tokens at a time."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        three = [part(y).unflatten(-1, (-1, WIDTH // HEADS)) for part in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in three), is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A small language model."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


COLUMNS, ROWS = ColwiseParallel, RowwiseParallel
TENSOR = {
    **dict.fromkeys(("q", "k", "v", "up"), COLUMNS),
    **dict.fromkeys(("o", "down"), ROWS),
}


def plan_tensor(model, mesh, loss_in_parts):
    """Activations between the parts are whole on every rank."""
    for block in model.blocks:
        parallelize_module(block, mesh, {name: style() for name, style in TENSOR.items()})
    head = COLUMNS(output_layouts=Shard(-1) if loss_in_parts else Replicate(),
                   use_local_output=not loss_in_parts)  # fmt: skip
    return parallelize_module(model, mesh, {"embed": ROWS(input_layouts=Replicate()), "head": head})


def plan_sequence(model, mesh, loss_in_parts):
    """Activations between the parts are split along the sequence."""
    for block in model.blocks:
        plan = {name: style() for name, style in TENSOR.items()}
        plan |= {name: ROWS(output_layouts=Shard(1)) for name in ("o", "down")}
        plan |= {name: SequenceParallel(use_local_output=True) for name in ("norm1", "norm2")}
        plan |= {name: COLUMNS(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")}
        parallelize_module(block, mesh, plan)
    head = COLUMNS(input_layouts=Shard(1), use_local_output=not loss_in_parts,
                   output_layouts=Shard(-1) if loss_in_parts else Replicate())  # fmt: skip
    return parallelize_module(
        model,
        mesh,
        {
            "embed": ROWS(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(use_local_output=True),
            "head": head,
        },
    )


PLANS = {"tensor": plan_tensor, "sequence": plan_sequence}


def data():
    torch.manual_seed(1)
    return torch.randint(VOCABULARY, (2, 2, BATCH, LENGTH))  # step, input or target, …


def new_model():
    torch.manual_seed(0)
    return Model()


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_alone():
    """Parameters and their last gradients after two steps on the CPU."""
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    losses = []
    for tokens, targets in data():
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: (p.detach(), p.grad) for name, p in model.named_parameters()}


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def train_in_parts(plan, shape, loss_in_parts, kind="vgpu"):
    """The same on ranks: data parallel over the first dimension of a mesh of two."""
    mesh = init_device_mesh(kind, shape, mesh_dim_names=("dp", "tp")[-len(shape) :])
    device = torch.device(kind, torch.get_device_module(kind).current_device())
    model = plan(copy.deepcopy(MODEL[0]).to(device), mesh["tp"], loss_in_parts)
    # Norms are plain tensors in one plan, and one kernel for all cannot have both kinds.
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9, foreach=False)
    replica, replicas = (mesh.get_local_rank("dp"), shape[0]) if len(shape) > 1 else (0, 1)
    losses = []
    for tokens, targets in data().to(device).chunk(replicas, 2)[replica]:
        optimizer.zero_grad()
        if loss_in_parts:
            with loss_parallel():
                loss = loss_of(model(tokens), targets)
                loss.backward()
        else:
            loss = loss_of(model(tokens), targets)
            loss.backward()
        if replicas > 1:
            for p in model.parameters():
                grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                dist.all_reduce(grad, dist.ReduceOp.AVG, group=mesh.get_group("dp"))
        optimizer.step()
        losses.append(whole(loss).item())
    return losses, {name: (whole(p), whole(p.grad)) for name, p in model.named_parameters()}


MODEL: list[nn.Module] = []


@pytest.fixture(autouse=True, scope="module")
def model():
    MODEL.append(new_model())
    yield
    MODEL.clear()


@pytest.mark.parametrize(
    ("plan", "loss_in_parts", "shape"),
    [
        ("tensor", False, (2,)),
        ("sequence", True, (2,)),
        pytest.param("tensor", True, (2,), marks=pytest.mark.slow),
        pytest.param("sequence", False, (2,), marks=pytest.mark.slow),
        pytest.param("tensor", False, (2, 2), marks=pytest.mark.slow),
        pytest.param("tensor", True, (2, 2), marks=pytest.mark.slow),
        pytest.param("sequence", False, (2, 2), marks=pytest.mark.slow),
        pytest.param("sequence", True, (2, 2), marks=pytest.mark.slow),
    ],
)
def test_training_in_parts_is_training_on_one_device(plan, loss_in_parts, shape):
    losses, expected = train_alone()
    n = torch.Size(shape).numel()
    with par.simulate("8x-v100-pcie", n, with_values=True) as gpus:
        found = par.run_ranks(train_in_parts, gpus, PLANS[plan], shape, loss_in_parts)
    replicas = [f[0] for f in found]
    mean = [sum(each) / len(replicas) for each in zip(*replicas, strict=True)]
    assert mean == pytest.approx(losses, rel=1e-5)
    for _, parameters in found:
        for name, (parameter, grad) in expected.items():
            torch.testing.assert_close(parameters[name][0], parameter, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(parameters[name][1], grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plan", ["tensor", "sequence"])
def test_it_is_so_as_a_program_for_cuda(plan):
    losses, expected = train_alone()
    with par.emulate_cuda(2, "8x-v100-pcie", verbose=False) as gpus:
        found = par.run_ranks(train_in_parts, gpus, PLANS[plan], (2,), plan == "sequence", "cuda")
    for of_rank, parameters in found:
        assert of_rank == pytest.approx(losses, rel=1e-5)
        for name, (parameter, grad) in expected.items():
            torch.testing.assert_close(parameters[name][0], parameter, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(parameters[name][1], grad, rtol=1e-4, atol=1e-5)


ACTIVATIONS = BATCH * LENGTH * WIDTH * 4  # bytes


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # Megatron-LM (Shoeybi et al. 2019): two all-reduces a block forward, and two backward;
        # but queries, keys and values are three layers here, so that it is four.
        ("tensor", {"all_reduce": 6}),
        # With sequences in parts (Korthikanti et al. 2022) an all-reduce is two halves.
        ("sequence", {"reduce_scatter": 2}),
    ],
)
def test_the_collectives_of_a_block_are_those_of_the_papers(plan, expected):
    def step():
        mesh = init_device_mesh("vgpu", (2,), mesh_dim_names=("tp",))
        device = torch.device("vgpu", torch.vgpu.current_device())
        model = PLANS[plan](copy.deepcopy(MODEL[0]).to(device), mesh, loss_in_parts=False)
        length = LENGTH if plan == "tensor" else LENGTH // 2
        x = torch.randn(BATCH, length, WIDTH).to(device).requires_grad_()
        dist.barrier()
        y = model.blocks[0](x)
        if plan == "tensor":
            y.sum().backward()

    with par.simulate("8x-v100-pcie", 2, with_values=True) as gpus, par.record() as timeline:
        par.run_ranks(step, gpus)
    spans = [s for s in timeline if s.device == "vgpu:0" and s.kind == "collective"]
    after = [s.name for s in spans].index("barrier") + 1
    sizes = [(s.name, s.bytes) for s in spans[after:]]
    found = Counter(name for name, nbytes in sizes if nbytes == ACTIVATIONS)
    assert {name: found[name] for name in expected} == expected, sizes


def test_ddp_of_tensor_parallel_modules_trains_as_one_device():
    """Several steps: then DTensors view what the optimizer has changed."""
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
    from torch.nn.parallel import DistributedDataParallel

    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))

    def inputs(step):
        return torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(step))

    def train(model, batch):
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(3):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def life():
        mesh = init_device_mesh("vgpu", (2, 2), mesh_dim_names=("dp", "tp"))
        device = torch.device("vgpu", torch.vgpu.current_device())
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = parallelize_module(net().to(device), mesh["tp"], plan)
        _pre_dp_module_transform(model)
        model = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
        return train(model, lambda step: inputs(step)[mesh.get_local_rank("dp")].to(device))

    with par.simulate("8x-v100-pcie", 4, with_values=True) as gpus:
        found = torch.tensor(par.run_ranks(life, gpus))
    expected = torch.tensor(train(net(), lambda step: inputs(step).flatten(0, 1)))
    torch.testing.assert_close(found[::2].mean(0), expected)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
