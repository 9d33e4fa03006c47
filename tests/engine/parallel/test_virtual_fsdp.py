"""Sharded data parallelism on virtual ranks: equal to one device, in the memory of the formula, and
with collectives beside computing.

FSDP2 is `fully_shard`, FSDP1 is `FullyShardedDataParallel`; both are torch's own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FullStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
    enable_wrap,
    size_based_auto_wrap_policy,
    wrap,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing import assert_close

import d2lpar as par

STEPS, BATCH, WIDTH = 3, 8, 6


def net():
    """Layers whose sizes no number of ranks divides."""
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, WIDTH)) for _ in range(3)]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 3))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(STEPS)]


def step(model, optimizer, X, *, clip=None, update=True):
    """A backward pass and an update; the norm of the gradients if they are clipped."""
    model(X).square().mean().backward()
    if not update:
        return None
    norm = None
    if clip:
        fsdp1 = isinstance(model, FSDP)
        norm = (
            model.clip_grad_norm_(clip)
            if fsdp1
            else nn.utils.clip_grad_norm_(model.parameters(), clip)
        )
    optimizer.step()
    optimizer.zero_grad()
    return norm


def train(model, device, *, clip=None, accumulate=False):
    """Train on a rank's share of each batch; the optimizer, and norms of gradients."""
    ranks = dist.is_initialized()
    r, n = (dist.get_rank(), dist.get_world_size()) if ranks else (0, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    norms = []
    for i, X in enumerate(batches()):
        late = accumulate and i == 0
        with without_exchange(model) if late and ranks else contextlib.nullcontext():
            share = X.chunk(n)[r].to(device)
            norms.append(step(model, optimizer, share, clip=clip, update=not late))
    return optimizer, norms


@contextlib.contextmanager
def without_exchange(model):
    """In the block, gradients are added up on each rank alone."""
    if isinstance(model, FSDP):
        with model.no_sync():
            yield
        return
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


@functools.cache
def expected(clip=None, accumulate=False):
    """Parameters after the same steps on one device, and the norms."""
    model = net()
    _, norms = train(model, "cpu", clip=clip, accumulate=accumulate)
    return [p.detach() for p in model.parameters()], norms


def here():
    """The device of a rank, however it is called."""
    kind = "cuda" if torch.cuda.is_available() else "vgpu"
    return torch.device(kind, torch.get_device_module(kind).current_device())


def full(tensor):
    """All of a tensor, on the host."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def on_ranks(function, n=2, *, cuda=False):
    """Results by rank, in a world that is called "vgpu" or "cuda"."""
    if cuda:
        with par.emulate_cuda(n, "8x-v100-pcie", verbose=False) as gpus:
            return par.run_ranks(function, gpus)
    with par.simulate("8x-v100-pcie", n, with_values=True) as gpus:
        return par.run_ranks(function, gpus)


@pytest.fixture(autouse=True)
def no_hazards():
    """FSDP orders its streams: what is reported as a hazard would be a mistake of ours."""
    with par.hazards() as found:
        yield
    assert not found


# --- FSDP2 is equal to one device -----------------------------------------------------------------


def sharded(mesh=None, prefetch=False, **options):
    """The network, each of its parts sharded, and the whole."""
    device = here()
    model = net().to(device)
    if mesh is not None:
        options["mesh"] = init_device_mesh(device.type, mesh, mesh_dim_names=("copies", "shards"))
    for part in model:
        fully_shard(part, **options)
    fully_shard(model, **options)
    if prefetch:
        parts = list(model)
        for first, second in pairwise(parts):
            first.set_modules_to_forward_prefetch([second])
            second.set_modules_to_backward_prefetch([first])
    return model


def train_sharded(clip=None, accumulate=False, **options):
    model = sharded(**options)
    _, norms = train(model, here(), clip=clip, accumulate=accumulate)
    return [full(p) for p in model.parameters()], [None if n is None else full(n) for n in norms]


FULL = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)


def train_replicated():
    """Whole copies of the network, with FSDP2's hooks and none of its shards."""
    module = pytest.importorskip("torch.distributed._composable.replicate_with_fsdp")
    model = net().to(here())
    for part in model:
        module.replicate(part)
    module.replicate(model)
    _, norms = train(model, here(), clip=0.1)
    assert all(p.to_local().shape == p.shape for p in model.parameters())
    return [full(p) for p in model.parameters()], [full(norm) for norm in norms]


@pytest.mark.parametrize("cuda", [False, True])
def test_replicas_with_the_hooks_of_fsdp2_equal_one_device(cuda):
    for found in on_ranks(train_replicated, 2 if cuda else 4, cuda=cuda):
        assert_close(found, expected(clip=0.1))


def test_replicas_exchange_gradients_beside_the_backward_pass():
    with par.simulate("8x-v100-pcie", 2) as gpus, par.record() as timeline:
        par.run_ranks(train_replicated, gpus)
    on_gpu = timeline.on("vgpu:0")
    exchanged = on_gpu.where(lambda span: span.kind == "collective" and span.bytes > 100)
    assert {span.name for span in exchanged} == {"all_reduce"}
    assert exchanged.spans[0].stream != next(s.stream for s in on_gpu if s.name == "addmm")


def even_net():
    """A network whose hidden layer two ranks can divide."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))


def train_split_and_sharded():
    """A layer by columns and one by rows on two ranks, sharded over two such pairs."""
    mesh = init_device_mesh(here().type, (2, 2), mesh_dim_names=("data", "channel"))
    model = even_net().to(here())
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["channel"], plan)
    devices = {str(p.device) for p in model.parameters()}
    fully_shard(model, mesh=mesh["data"])
    share = mesh.get_local_rank("data")
    model(batches()[0].chunk(2)[share].to(here())).square().mean().backward()
    return devices, [full(p.grad) for p in model.parameters()]


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_fsdp2_over_split_layers_equals_one_device(cuda):
    model = even_net()
    model(batches()[0]).square().mean().backward()
    for r, (devices, gradients) in enumerate(on_ranks(train_split_and_sharded, 4, cuda=cuda)):
        assert devices == {f"cuda:{r}" if cuda else f"vgpu:{r}"}
        assert_close(gradients, [p.grad for p in model.parameters()])


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (2, {}),
        (4, {}),
        (4, {"reshard_after_forward": 2}),
        (2, {"reshard_after_forward": False}),
        (2, {"prefetch": True}),
        (2, {"mp_policy": FULL}),
        (2, {"offload_policy": CPUOffloadPolicy()}),
        (4, {"mesh": (2, 2)}),
        (4, {"mesh": (2, 2), "accumulate": True}),
        (2, {"accumulate": True}),
        (2, {"clip": 0.1}),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else str(given),
)
def test_fsdp2_equals_one_device(n, options):
    told = {name: options[name] for name in ("clip", "accumulate") if name in options}
    for found in on_ranks(partial(train_sharded, **options), n):
        assert_close(found, expected(**told))


@pytest.mark.parametrize("options", [{}, {"offload_policy": CPUOffloadPolicy()}], ids=str)
def test_fsdp2_equals_one_device_as_a_program_for_cuda(options):
    for found in on_ranks(partial(train_sharded, **options), cuda=True):
        assert_close(found, expected())


def test_gradients_of_fsdp2_are_those_of_one_device():
    def gradients():
        model = sharded()
        X = batches()[0].chunk(2)[dist.get_rank()].to(here())
        model(X).square().mean().backward()
        return [full(p.grad) for p in model.parameters()]

    model = net()
    model(batches()[0]).square().mean().backward()
    for found in on_ranks(gradients):
        assert_close(found, [p.grad for p in model.parameters()])


def test_mixed_precision_of_fsdp2_computes_in_bfloat16_and_keeps_float32():
    def look():
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = sharded(mp_policy=policy)
        seen = []
        model[0].register_forward_hook(lambda *parts: seen.append(parts[2].dtype))
        train(model, here())
        return seen[0], {p.dtype for p in model.parameters()}, [full(p) for p in model.parameters()]

    for computed, kept, parameters in on_ranks(look):
        assert computed == torch.bfloat16
        assert kept == {torch.float32}
        assert_close(parameters, expected()[0], atol=0.05, rtol=0)


def test_state_dicts_of_fsdp2_are_gathered_and_spread():
    def exchange():
        model = sharded()
        optimizer, _ = train(model, here())
        whole = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
        of_model = states.get_model_state_dict(model, options=whole)
        of_optimizer = states.get_optimizer_state_dict(model, optimizer, options=whole)
        of_optimizer = copy.deepcopy(of_optimizer)  # its numbers of steps are the optimizer's own
        gathered = [full(value) for value in of_model.values()]
        other = sharded()
        spread = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        states.set_model_state_dict(other, of_model, options=spread)
        again = torch.optim.AdamW(other.parameters(), lr=0.01)
        states.set_optimizer_state_dict(other, again, of_optimizer, options=spread)
        for each, parameters in ((model, optimizer), (other, again)):
            X = batches()[0].chunk(2)[dist.get_rank()].to(here())
            step(each, parameters, X)
        return gathered, *([full(p) for p in each.parameters()] for each in (model, other))

    (of_model, went_on, resumed), (nothing, *_) = on_ranks(exchange)
    assert_close(of_model, expected()[0])
    assert nothing == []
    assert_close(resumed, went_on)


# --- FSDP1 is equal to one device -----------------------------------------------------------------

PARTS = ModuleWrapPolicy({nn.Sequential})
S = ShardingStrategy


def wrapped(*, on_host=False, groups=None, **options):
    """The network in FSDP1."""
    device = here()
    if groups is not None:  # of ranks that shard, and of those that have the same shards
        made = [[dist.new_group(ranks) for ranks in kind] for kind in groups]
        mine = [
            next(g for g in kind if g is not dist.GroupMember.NON_GROUP_MEMBER) for kind in made
        ]
        options["process_group"] = tuple(mine)
    options = {"auto_wrap_policy": PARTS, "use_orig_params": True, **options}
    model = net() if on_host else net().to(device)
    return FSDP(model, device_id=device, **options)


def train_wrapped(clip=None, accumulate=False, **options):
    model = wrapped(**options)
    _, norms = train(model, here(), clip=clip, accumulate=accumulate)
    with FSDP.summon_full_params(model):
        parameters = [p.detach().cpu().flatten() for p in model.parameters()]
    return torch.cat(parameters), [None if n is None else n.cpu() for n in norms]


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (2, {}),
        (4, {"use_orig_params": False}),
        (2, {"sharding_strategy": S.SHARD_GRAD_OP}),
        (2, {"sharding_strategy": S.NO_SHARD}),
        (4, {"sharding_strategy": S.HYBRID_SHARD, "groups": [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]}),
        (2, {"cpu_offload": CPUOffload(offload_params=True)}),
        (2, {"on_host": True, "sync_module_states": True}),
        (2, {"mixed_precision": MixedPrecision(torch.float32, torch.float32)}),
        (2, {"forward_prefetch": True, "backward_prefetch": BackwardPrefetch.BACKWARD_POST}),
        (2, {"auto_wrap_policy": partial(size_based_auto_wrap_policy, min_num_params=60)}),
        (2, {"accumulate": True}),
        (2, {"accumulate": True, "sharding_strategy": S.NO_SHARD}),
        (2, {"clip": 0.1}),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else str(given),
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_fsdp1_equals_one_device(n, options):
    told = {name: options[name] for name in ("clip", "accumulate") if name in options}
    parameters, norms = expected(**told)
    whole = torch.cat([p.flatten() for p in parameters])
    for found, of_gradients in on_ranks(partial(train_wrapped, **options), n):
        assert_close(found[: len(whole)], whole)  # flat parameters are padded
        assert_close(of_gradients, norms)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("options", [{}, {"cpu_offload": CPUOffload(True)}], ids=str)
def test_fsdp1_equals_one_device_as_a_program_for_cuda(options):
    whole = torch.cat([p.flatten() for p in expected()[0]])
    for found, _ in on_ranks(partial(train_wrapped, **options), cuda=True):
        assert_close(found, whole)


def test_ranks_do_not_share_the_block_that_wraps():
    """`enable_wrap` is kept in a class of torch's, and in the block ranks meet in collectives."""

    def in_block():
        device = here()
        options = {"device_id": device, "sync_module_states": True, "use_orig_params": True}
        with enable_wrap(wrapper_cls=FSDP, **options):
            model = wrap(nn.Sequential(*[wrap(part) for part in net()]))
        train(model, device)
        with FSDP.summon_full_params(model):
            return [p.detach().cpu() for p in model.parameters()]

    for found in on_ranks(in_block):
        assert_close(found, expected()[0])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_state_dicts_of_fsdp1():
    def look():
        model = wrapped()
        optimizer, _ = train(model, here())
        whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
            of_rank_0 = model.state_dict()
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            of_optimizer = FSDP.optim_state_dict(model, optimizer)
            moments = {name: v["exp_avg"].cpu() for name, v in of_optimizer["state"].items()}
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            shards = model.state_dict()
            kept = [t.local_shards()[0].tensor.numel() for t in shards.values() if t.local_shards()]
            for p in model.parameters():
                p.data.zero_()
            model.load_state_dict(shards)
        with FSDP.summon_full_params(model):
            again = [p.detach().cpu() for p in model.parameters()]
        return list(of_rank_0.values()), moments, sum(kept), again

    (first, moments, mine, again), (second, _, others, _) = on_ranks(look)
    assert_close(first, expected()[0])
    assert_close(again, expected()[0])
    assert second == []
    assert mine + others == sum(p.numel() for p in expected()[0])
    model = net()
    optimizer, _ = train(model, "cpu")
    names = model.named_parameters()
    assert_close(moments, {name: optimizer.state[p]["exp_avg"] for name, p in names})


# --- memory and time ------------------------------------------------------------------------------

LAYERS, D = 6, 1024


class Block(nn.Module):
    """Two layers beside a path around them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def second_step(batch, **options):
    """The peak of the memory of a rank in its second step, and that of a block's parameters."""
    device = here()
    with device:  # where its first values are not worked out
        model = nn.Sequential(*[Block() for _ in range(LAYERS)])
    size = sum(p.nbytes for p in model[0].parameters())
    for block in model:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.Adam(model.parameters())
    X = torch.randn(batch, D, device=device)
    for _ in range(2):
        torch.vgpu.synchronize()
        torch.vgpu.reset_peak_memory_stats()
        model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.vgpu.synchronize()
    return torch.vgpu.max_memory_allocated(), size


@pytest.mark.parametrize("n", [4, 8])
def test_the_peak_of_memory_is_that_of_the_formula(n):
    """A rank keeps the n-th part of parameters and of Adam's two moments (Zhao et al. 2023,
    "PyTorch FSDP", 3.2.1). The rest is what `FSDPParamGroup` in torch holds at once, while the last
    gradients of the second block are computed, which comes last but one: the parts of the gradients
    of all blocks after it, and four times a whole block, namely its parameters, those of the first
    one, which have been gathered ahead, its gradients, and those of the third block, which are
    being exchanged (`post_backward`)."""
    with par.simulate("8x-h100-nvswitch", n) as gpus:
        found = par.run_ranks(partial(second_step, 8), gpus)
    block = found[0][1]
    part = block / n
    predicted = 3 * LAYERS * part + (LAYERS - 2) * part + 4 * block
    for peak, _ in found:
        assert peak == pytest.approx(predicted, rel=0.02)


@pytest.mark.parametrize("n", [2, 8])
def test_the_peak_of_offloaded_memory_is_that_of_four_blocks(n):
    """What a rank keeps is on the host; the four whole blocks of above are left, for any number of
    ranks, as PyTorch's own test of FSDP2's memory says of torch of today (three in 2.4)."""
    with par.simulate("8x-h100-nvswitch", n) as gpus:
        found = par.run_ranks(partial(second_step, 8, offload_policy=CPUOffloadPolicy()), gpus)
    for peak, block in found:
        assert peak == pytest.approx(4 * block, rel=0.02)


def test_the_peak_of_memory_in_mixed_precision_is_that_of_the_formula():
    """The same, in half the size but for what is exchanged: of whole blocks, parameters, those
    gathered ahead and gradients in bfloat16, and the gradients of the third one in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with par.simulate("8x-h100-nvswitch", 4) as gpus:
        found = par.run_ranks(partial(second_step, 8, mp_policy=policy), gpus)
    block = found[0][1]
    part = block / 4
    predicted = 3 * LAYERS * part + (LAYERS - 2) * part + (3 / 2 + 1) * block
    for peak, _ in found:
        assert peak == pytest.approx(predicted, rel=0.02)


def held_after_two_steps():
    with here():
        model = nn.Sequential(*[Block() for _ in range(LAYERS)])
    size = sum(p.nbytes for p in model.parameters())
    for module in (*model, model):
        fully_shard(module)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randn(8, D, device=here())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.vgpu.memory_allocated(), size


def test_between_steps_a_rank_holds_its_part_and_no_buffer_of_an_exchange():
    """Also that rank which goes on while others have not come back from the last exchange: what
    they wait for must not keep its tensors."""
    with par.simulate("8x-h100-nvswitch", 4) as gpus:
        found = par.run_ranks(held_after_two_steps, gpus)
    for held, size in found:
        assert held == pytest.approx(3 * size / 4, rel=0.005)


def spans_of_a_step():
    with par.simulate("8x-h100-nvswitch", 8) as gpus:
        with par.record() as timeline:
            par.run_ranks(partial(second_step, 4096), gpus)
        return [s for s in timeline.spans if s.device == "vgpu:3" and s.kind != "host"]


def test_collectives_run_beside_computing():
    """While a block computes, the parameters of the next are gathered; while gradients are
    computed, those of the block before are exchanged (prefetching and overlap of FSDP)."""
    spans = spans_of_a_step()
    products = [s for s in spans if s.name in ("mm", "addmm")]
    gathers = [s for s in spans if s.name == "all_gather"]
    scatters = [s for s in spans if s.name == "reduce_scatter"]
    # In each of two steps, for each block: gathered forward and backward, and exchanged.
    assert (len(gathers), len(scatters)) == (2 * 2 * LAYERS, 2 * LAYERS)

    def is_beside(span):
        return any(s.start_s < span.end_s and span.start_s < s.end_s for s in products)

    # All but the first gather of a step and of its backward pass, and but the last exchange.
    assert sum(not is_beside(s) for s in gathers) <= 2 * 2
    assert sum(not is_beside(s) for s in scatters) <= 2


def test_storages_give_their_memory_back(gpus):
    x = torch.ones(2**20, device=gpus[0])
    part = x[: 2**10]
    before = torch.vgpu.memory_allocated(gpus[0])
    storage = x.untyped_storage()
    assert (storage.nbytes(), storage.device) == (2**22, gpus[0])
    storage.resize_(0)
    assert torch.vgpu.memory_allocated(gpus[0]) == before - 2**22
    assert part.untyped_storage().size() == 0
    for use in (lambda: part + 1, part.cpu, part.sum):
        with pytest.raises(RuntimeError, match="was resized to 0 bytes"):
            use()
    storage.resize_(2**22)
    assert torch.vgpu.memory_allocated(gpus[0]) == before
    x.fill_(2)
    assert part.sum().item() == 2 * 2**10


def test_data_that_leave_and_return_are_known_to_the_graph(gpus):
    """As parameters do that are offloaded between forward and backward."""
    p = nn.Parameter(torch.ones(3))
    on_host, on_device = p.data, p.data.to(gpus[0])
    p.data = on_device
    y = (p * 2).sum()
    p.data = on_host
    assert p.device.type == "cpu"
    with pytest.raises(RuntimeError, match="moved to another device"):
        y.backward(retain_graph=True)
    p.data = on_device
    y.backward()
    assert_close(p.grad.cpu(), torch.full((3,), 2.0))
    p.data = on_host
    assert p.grad.device == gpus[0]  # it stays where it is, as on CUDA
    p.grad = None
    p.data = on_device
    assert p.grad is None
