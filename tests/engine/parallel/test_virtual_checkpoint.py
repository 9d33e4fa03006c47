"""Distributed checkpoints of virtual ranks, read by fewer ranks and by no ranks; and activation
checkpointing in sharded networks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.checkpoint.format_utils import (
    BroadcastingTorchSaveReader,
    DynamicMetaLoadPlanner,
    dcp_to_torch_save,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import d2lpar as par

WIDTH, BATCH = 6, 8


def net():
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, WIDTH)) for _ in range(2)]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 3))


def inputs(number):
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(number))


def here():
    kind = "cuda" if torch.cuda.is_available() else "vgpu"
    return torch.device(kind, torch.get_device_module(kind).current_device())


def on_ranks(function, n, *, cuda=False):
    if cuda:
        with par.emulate_cuda(n, "8x-v100-pcie", verbose=False) as gpus:
            return par.run_ranks(function, gpus)
    with par.simulate("8x-v100-pcie", n, with_values=True) as gpus:
        return par.run_ranks(function, gpus)


def training(kind, model):
    """The network, sharded, and its optimizer."""
    device = here()
    model.to(device)
    if kind == "FSDP1":
        policy = ModuleWrapPolicy({nn.Sequential})
        model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=device)
    else:
        for part in model:
            fully_shard(part)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def steps(model, optimizer, numbers, device="cpu", rank=0, size=1):
    for number in numbers:
        X = inputs(number).chunk(size)[rank].to(device).requires_grad_()
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def my_steps(model, optimizer, numbers):
    steps(model, optimizer, numbers, here(), dist.get_rank(), dist.get_world_size())


def expected(numbers):
    model = net()
    steps(model, torch.optim.AdamW(model.parameters(), lr=0.01), numbers)
    return [p.detach() for p in model.parameters()]


WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(path, kind, save=dcp.save):
    model, optimizer = training(kind, net())
    my_steps(model, optimizer, range(2))
    of_model, of_optimizer = get_state_dict(model, optimizer)
    done = save({"model": of_model, "optimizer": of_optimizer, "step": 2}, checkpoint_id=path)
    my_steps(model, optimizer, [9])  # what is saved stays what it was
    return done


def resume(path, kind):
    """Load into a network with other values, and go on."""
    model, optimizer = training(kind, net())
    my_steps(model, optimizer, [7])
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer, "step": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    my_steps(model, optimizer, range(state["step"], 4))
    return list(get_model_state_dict(model, options=WHOLE).values())


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["FSDP1", "FSDP2"])
def test_two_ranks_go_on_from_what_four_have_saved(tmp_path, kind):
    on_ranks(partial(save, tmp_path, kind), 4)
    assert len(list(tmp_path.glob("*.distcp"))) == 4
    assert_close(on_ranks(partial(resume, tmp_path, kind), 2)[0], expected(range(4)))


def test_a_program_for_cuda_writes_what_one_process_reads(tmp_path):
    on_ranks(partial(save, tmp_path / "parts", "FSDP2"), 2, cuda=True)
    dcp_to_torch_save(tmp_path / "parts", tmp_path / "whole.pt")
    found = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert found["step"] == 2
    assert_close(list(found["model"].values()), expected(range(2)))


def test_modules_that_are_imported_late_know_how_devices_are_called(gpus):
    """The one that writes checkpoints asks so which kind of tensors it must copy to the host."""
    from torch._utils import _get_available_device_type as imported_late

    assert imported_late() == "vgpu"
    with par.emulate_cuda(1, verbose=False):
        assert imported_late() == "cuda"
    assert imported_late() == "vgpu"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpoint_in_the_background_holds_the_state_of_its_time(tmp_path):
    def save_later(*args, **options):
        future = dcp.async_save(*args, **options)
        return future.result() is not None and future.done()

    assert on_ranks(partial(save, tmp_path, "FSDP2", save_later), 2) == [True, True]
    assert_close(on_ranks(partial(resume, tmp_path, "FSDP2"), 2)[0], expected(range(4)))


def staged(device, stager):
    """What a state with views has become on the host: values, and which have memory in common."""
    x = torch.arange(6.0, device=device)
    weight = nn.Parameter(x[2:])
    weight.mark = "mine"
    state = {"x": x, "part": [x[2:], weight], "turned": x.view(2, 3).t(), "none": x[:0].clone()}
    first = stager.stage(state)
    x += 1
    second = stager.stage(state)
    tensors = [second["x"], *second["part"], second["turned"]]
    addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    again = first["x"].untyped_storage().data_ptr() in addresses
    values = [tensor.tolist() for tensor in [*tensors, second["none"]]]
    return values, len(addresses), again, second["part"][1].mark, {type(t) for t in tensors}


@pytest.mark.parametrize("shared", [False, True])
def test_views_have_one_copy_on_the_host_before_a_checkpoint_is_written(gpus, shared):
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    expected = staged("cpu", StateDictStager(share_memory=shared))
    assert expected[1:3] == (1, True)
    assert staged(gpus[1], StateDictStager(share_memory=shared)) == expected
    with par.emulate_cuda(1, verbose=False):
        stager = StateDictStager(share_memory=shared, pin_memory=True)
        assert staged("cuda", stager) == expected


def test_checkpoints_in_another_process_are_refused(tmp_path):
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    def save_elsewhere():
        kind = AsyncCheckpointerType.PROCESS
        dcp.async_save({"x": 1}, checkpoint_id=tmp_path, async_checkpointer_type=kind)

    with pytest.raises(NotImplementedError, match="cannot save a checkpoint in another process"):
        on_ranks(save_elsewhere, 2)


def test_tensors_of_a_mesh_are_resharded(tmp_path):
    values = torch.arange(24.0).reshape(6, 4)

    def write():
        mesh = init_device_mesh("vgpu", (4,))
        tensor = distribute_tensor(values.to(here()), mesh, [Shard(0)])
        dcp.save({"x": tensor}, checkpoint_id=tmp_path)

    def read():
        mesh = init_device_mesh("vgpu", (2,))
        tensor = distribute_tensor(torch.zeros(6, 4, device=here()), mesh, [Shard(1)])
        dcp.load({"x": tensor}, checkpoint_id=tmp_path)
        return tensor.to_local().cpu()

    on_ranks(write, 4)
    assert_close(on_ranks(read, 2), list(values.chunk(2, 1)))


# --- activation checkpointing ---------------------------------------------------------------------


class Recomputed(nn.Module):
    """A part whose activations are computed again in the backward pass."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return checkpoint(self.part, x, use_reentrant=False)


WAYS = {
    "wrapper": checkpoint_wrapper,
    "reentrant": partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT),
    "function": Recomputed,
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["FSDP1", "FSDP2"])
def test_recomputing_activations_changes_nothing(way, kind):
    def train():
        whole = net()
        for i in (0, 1):
            whole[i] = WAYS[way](whole[i])
        model, optimizer = training(kind, whole)
        my_steps(model, optimizer, range(3))
        return list(get_model_state_dict(model, options=WHOLE).values())

    assert_close(on_ranks(train, 2)[0], expected(range(3)))


def test_recomputing_saves_memory():
    parts, layers, width, batch = 8, 4, 64, 2**14

    def peak(way):
        pairs = [[nn.Linear(width, width), nn.Tanh()] * layers for _ in range(parts)]
        model = nn.Sequential(*[nn.Sequential(*pair) for pair in pairs]).to(here())
        for i in range(parts):
            model[i] = way(model[i])
            fully_shard(model[i])
        fully_shard(model)
        torch.vgpu.reset_peak_memory_stats()
        model(torch.randn(batch, width, device=here())).sum().backward()
        return torch.vgpu.max_memory_allocated()

    with par.simulate("8x-v100-pcie", 2) as gpus:
        kept = par.run_ranks(peak, gpus, lambda part: part)
        again = par.run_ranks(peak, gpus, checkpoint_wrapper)
    # Each layer keeps its output; recomputing, each part does, and one of them all within it.
    saved = (parts * layers - (parts + layers - 1)) * batch * width * 4
    assert kept[0] - again[0] == pytest.approx(saved, rel=0.1)


@pytest.mark.filterwarnings("ignore:`_get_pg_default_device` will be deprecated")
def test_a_file_of_torch_save_is_read_by_one_rank_for_all(tmp_path):
    """The reader asks the group for its kind of device, which NCCL's says is the GPU."""
    torch.save(net().state_dict(), tmp_path / "whole.pt")

    def read():
        dist.init_process_group("nccl")
        state = nn.ModuleList(net()).to(here()).state_dict()
        for value in state.values():
            value.zero_()
        reader = BroadcastingTorchSaveReader(tmp_path / "whole.pt")
        dcp.load(state, storage_reader=reader, planner=DynamicMetaLoadPlanner())
        return {name: value.cpu() for name, value in state.items()}

    for found in on_ranks(read, 2):
        assert_close(found, dict(net().state_dict()), rtol=0, atol=0)
