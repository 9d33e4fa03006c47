"""What traces models (`torch.export`, `torch.jit.trace`) is refused on emulated GPUs; pipelines are
traced on the CPU."""

import copy
import types

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
from torch.export.passes import move_to_device_pass
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


def test_a_program_that_was_exported_on_the_cpu_computes_the_same_on_a_gpu():
    model, x = net("cpu").eval(), torch.randn(8, 4)
    program = move_to_device_pass(torch.export.export(mod=model, args=(x,)), "cuda")
    found = program.module()(x.cuda())
    assert found.is_cuda
    assert_close(found.cpu(), model(x))


def on_a_rank():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model, x, wanted = net("cpu"), torch.randn(8, 4).cuda(), torch.ones(8, 2).cuda()
    dist.broadcast(x, 0)
    whole = copy.deepcopy(model).cuda()
    whole.scale = whole.scale.cuda()
    split = {"last": SplitPoint.BEGINNING}
    pipe = pipeline(model, mb_args=(torch.ones(4, 4),), split_spec=split)
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


def test_what_is_on_a_gpu_is_not_exported():
    on_host, refused = torch.ones(8, 4), pytest.raises(NotImplementedError, match="on the CPU")
    with refused:
        torch.export.export(net(), (on_host,))
    with refused:
        torch.export.export(net("cpu"), (on_host.cuda(),))
    moved = move_to_device_pass(torch.export.export(net("cpu"), (on_host,)), "cuda")
    with refused:
        moved.run_decompositions()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch wants to be rid of torch.jit
def test_what_is_on_a_gpu_is_scripted_and_not_traced_by_jit():
    """A tracer would not see a convolution, and take its result for a constant."""
    model, x = nn.Conv2d(3, 4, 3), torch.ones(2, 3, 5, 5)
    expected = torch.jit.trace(model, x)(2 * x)
    model.cuda()
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.script"):
        torch.jit.trace(model, x.cuda())
    assert_close(torch.jit.script(model)(2 * x.cuda()).cpu(), expected)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_scripted_models_are_saved_on_the_cpu_and_loaded_to_a_gpu(tmp_path):
    model, x, file = torch.jit.script(nn.Linear(3, 2)), torch.ones(1, 3), tmp_path / "model.pt"
    expected = model(x)
    model.cuda()
    for save in (lambda: model.save(file), lambda: torch.jit.save(model, file)):
        with pytest.raises(NotImplementedError, match=r"model\.cpu\(\)"):
            save()
        assert not file.exists()
    model.cpu().save(file)
    for loaded in (torch.jit.load(file, map_location="cuda"), torch.jit.load(file).cuda()):
        found = loaded(x.cuda())
        assert found.is_cuda
        assert_close(found.cpu(), expected)


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
