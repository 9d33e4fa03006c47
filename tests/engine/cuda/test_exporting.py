"""`torch.export` of models on emulated GPUs, and pipelines that are made by it."""

import copy
import gc
import types

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
from torch.testing import assert_close

import d2lpar as par
from d2lpar.vgpu.cuda import device_translation, mode
from d2lpar.vgpu.cuda.device_translation import translated


class Net(nn.Module):
    """Parameters that are one, buffers of both kinds, a tensor that is neither, one made inside."""

    def __init__(self):
        super().__init__()
        self.first, self.tied, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.tied.weight = self.first.weight
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.scale = torch.arange(4.0)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(self.tied(self.first(x).relu())) + self.shift
        return self.last(x * self.scale + torch.arange(4, device=x.device))


def net(device="cuda"):
    torch.manual_seed(0)
    made = Net().to(device)
    made.scale = made.scale.to(device)
    return made


@pytest.fixture(autouse=True)
def cuda():
    torch.set_num_threads(1)
    with par.emulate_cuda(2, verbose=False) as devices:
        yield devices


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_has_its_parameters_and_computes_the_same(strict):
    model, x = net(), torch.randn(8, 4, device="cuda")
    program = torch.export.export(model, (torch.ones(8, 4, device="cuda"),), strict=strict)
    exported = program.module()
    expected = copy.deepcopy(model)(x)
    assert_close(exported(x), expected, rtol=0, atol=0)
    assert_close(model.norm.running_mean, exported.get_buffer("norm.running_mean"), rtol=0, atol=0)
    mine = {id(p) for p in model.parameters()}
    assert {id(p) for p in exported.parameters()} <= mine
    assert all(value.is_cuda for value in program.state_dict.values())


@pytest.mark.parametrize("times", [1, 2])
def test_a_program_is_decomposed_as_on_the_host(times):
    model, x = net().eval(), torch.randn(8, 4, device="cuda")
    program = torch.export.export(model, (x,))
    on_host = torch.export.export(net("cpu").eval(), (x.cpu(),)).run_decompositions()
    for _ in range(times):
        program = program.run_decompositions()
    targets = [[node.target for node in p.graph.nodes] for p in (program, on_host)]
    assert targets[0] == targets[1]
    assert_close(program.module()(x), model(x), rtol=0, atol=0)
    assert {id(p) for p in program.module().parameters()} <= {id(p) for p in model.parameters()}


def test_sizes_may_be_left_open():
    batch = torch.export.Dim("batch")
    model = net().eval()
    inputs = (torch.ones(8, 4, device="cuda"),)
    exported = torch.export.export(model, inputs, dynamic_shapes=({0: batch},)).module()
    x = torch.randn(3, 4, device="cuda")
    assert_close(exported(x), model(x), rtol=0, atol=0)


def test_a_program_takes_neither_kernels_nor_memory():
    model, x = net(), torch.ones(8, 4, device="cuda")
    gc.collect()  # what other tests have left
    before = torch.cuda.memory_allocated()
    with par.record() as timeline:
        program = torch.export.export(model, (x,))
    assert [span.name for span in timeline if span.kind == "kernel"] == []
    assert torch.cuda.memory_allocated() == before
    assert program.example_inputs[0][0] is x


def on_a_rank():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model, x, wanted = net(), torch.randn(8, 4).cuda(), torch.ones(8, 2).cuda()
    dist.broadcast(x, 0)
    whole = copy.deepcopy(model)
    split = {"last": SplitPoint.BEGINNING}
    pipe = pipeline(model, mb_args=(x[:4],), split_spec=split)
    stage = pipe.build_stage(rank, torch.device("cuda", rank))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss, scale_grads=False)
    schedule.step(*([x] if rank == 0 else []), **({"target": wanted} if rank == 1 else {}))
    for part, target in zip(x.chunk(2), wanted.chunk(2), strict=True):
        nn.functional.mse_loss(whole(part), target).backward()
    found = dict(pipe.get_stage_module(rank).named_parameters())
    for name, parameter in found.items():
        assert_close(parameter.grad, whole.get_parameter(name).grad)
    return sorted(found)


def test_a_traced_pipeline_has_the_gradients_of_one_gpu(cuda):
    first, last = par.run_ranks(on_a_rank, cuda)
    assert "first.weight" in first
    assert last == ["last.bias", "last.weight"]


class Named(nn.Module):
    def forward(self, x):
        return x + torch.ones(4, device="cuda")


def test_what_cannot_be_exported_says_why():
    model, x = net(), torch.ones(8, 4, device="cuda")
    with pytest.raises(NotImplementedError, match="on several devices: move both to one"):
        torch.export.export(model, (torch.ones(8, 4),))
    with pytest.raises(RuntimeError, match="device") as found:
        torch.export.export(Named(), (x,))
    assert any("device=x.device" in note for note in found.value.__notes__)


def test_an_operator_on_the_real_gpu_that_computes_for_virtual_ones_stays_there(monkeypatch):
    """Ours asks for it by the names that the program uses for virtual ones."""
    runtime = types.SimpleNamespace(backing=torch.device("cuda", 0))
    monkeypatch.setattr(device_translation, "running", lambda: runtime)
    asked = []
    monkeypatch.setattr(mode, "translated", lambda *call: asked.append(translated(*call)) or {})
    make = "make([2], device=device)"
    names = {"make": torch.ops.aten.empty.memory_format, "device": runtime.backing}
    for module in ("d2lpar.vgpu.torch_backend.operations.dispatch", "program"):
        eval(make, {**names, "__name__": module})
    assert [call["device"].type for call in asked] == ["cuda", "vgpu"]
