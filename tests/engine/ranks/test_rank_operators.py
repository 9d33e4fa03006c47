"""Operators that a program defines: each rank calls its own kernels of them, as a process would."""

import pytest
import running
import torch

import d2lpar as par

BEGIN = """
import torch
import torch.distributed as dist

dist.init_process_group()
rank = dist.get_rank()
torch.cuda.set_device(rank)
turn = lambda: dist.barrier(device_ids=[rank])  # lets the other rank go on
x = torch.ones(3, device="cuda", requires_grad=True)
"""
CUSTOM_OP = """
@torch.library.custom_op("d2lpar_test::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * (rank + 2)

@scaled.register_fake
def _(x):
    return torch.empty_like(x)

scaled.register_autograd(lambda ctx, grad: grad * (rank + 2))

@torch.library.custom_op("d2lpar_test::add_rank", mutates_args={"x"})
def add_rank(x: torch.Tensor) -> None:
    x.add_(rank)

for scale in (scaled, torch.ops.d2lpar_test.scaled):
    turn()
    x.grad = None
    y = scale(x)
    turn()
    y.sum().backward()
    print(rank, y.tolist(), x.grad.tolist(), scale(torch.ones(2)).tolist())
values = torch.zeros(2, device="cuda")
before = values._version
turn()
add_rank(values)
turn()
print(rank, values.tolist(), values._version > before, scaled(x.to("meta")).shape)
"""
LIBRARY = """
library = torch.library.Library("d2lpar_test", "DEF")
library.define("shifted(Tensor x) -> Tensor")
library.impl("shifted", lambda x: x + rank, "CompositeExplicitAutograd")
turn()
print(rank, torch.ops.d2lpar_test.shifted(x.detach()).tolist())
"""
DEFINED_ANEW = """
for factor in (2, 3):
    @torch.library.custom_op("d2lpar_test::times", mutates_args=())
    def times(x: torch.Tensor) -> torch.Tensor:
        return x * factor
    turn()
    print(rank, times(x.detach()).tolist())
"""
BY_DEVICE = """
@torch.library.custom_op("d2lpar_test::of_device", mutates_args=(), device_types="cuda")
def of_device(x: torch.Tensor) -> torch.Tensor:
    return x + rank

@of_device.register_kernel("cpu")
def _(x):
    return x - 10

@of_device.register_fake
def _(x):
    return torch.empty_like(x)

library = torch.library.Library("d2lpar_test", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: 2 * x + rank, "CUDA")
library.impl("twice", lambda x: -x, "CPU")
turn()
for operator in (of_device, torch.ops.d2lpar_test.twice):
    print(rank, operator(x.detach())[0].item(), operator(torch.ones(1)).item())
"""
BY_CUDAS_KEYS = """
class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.d2lpar_test.keyed(x)

    @staticmethod
    def backward(ctx, grad):
        return 7 * grad

library = torch.library.Library("d2lpar_test", "FRAGMENT")
library.define("keyed(Tensor x) -> Tensor")
library.impl("keyed", lambda x: x + rank, "CUDA")
library.impl("keyed", Times.apply, "AutogradCUDA")

@torch.library.custom_op("d2lpar_test::cast", mutates_args=())
def cast(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

cast.register_autocast("cuda", torch.float16)
torch.ops.d2lpar_test.keyed(x).sum().backward()
with torch.autocast("cuda"):
    cast_type = cast(x.detach()).dtype
print(rank, x.grad[0].item(), cast_type, cast(x.detach()).dtype)
"""
TRITON_OP = """
@torch.library.triton_op("d2lpar_test::with_rule", mutates_args={})
def with_rule(x: torch.Tensor) -> torch.Tensor:
    return x + rank

turn()
print(rank, with_rule(x.detach())[0].item())
"""
OF_TWO_SCHEMAS = """
kind = "Tensor x" if rank == 0 else "Tensor x, Tensor y"
library = torch.library.Library("d2lpar_test", "FRAGMENT")
library.define(f"unlike({kind}) -> Tensor")
turn()
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program on two ranks; gives its status, its lines in the order of ranks, stderr."""

    def command(source):
        (tmp_path / "program.py").write_text(BEGIN + source)
        found = running.run("--quiet", "--nproc-per-node", 2, tmp_path / "program.py")
        return found.status, sorted(found.lines, key=lambda line: line[:1]), found.err

    return command


def test_each_rank_calls_its_own_operator_forward_and_backward(run):
    status, lines, err = run(CUSTOM_OP)
    assert (status, err) == (0, "")
    first = "0 [2.0, 2.0, 2.0] [2.0, 2.0, 2.0] [2.0, 2.0]"
    second = "1 [3.0, 3.0, 3.0] [3.0, 3.0, 3.0] [3.0, 3.0]"
    written = "True torch.Size([3])"
    of_writes = [f"{rank} [{rank}.0, {rank}.0] {written}" for rank in range(2)]
    assert lines == [first, first, of_writes[0], second, second, of_writes[1]]


def test_each_rank_may_make_the_library_of_a_namespace(run):
    status, lines, _ = run(LIBRARY)
    assert status == 0
    assert lines == ["0 [1.0, 1.0, 1.0]", "1 [2.0, 2.0, 2.0]"]


def test_on_an_emulated_gpu_the_kernel_for_cuda_runs(run):
    """Where there was one for the CPU, too, that was taken in silence."""
    status, lines, err = run(BY_DEVICE)
    assert (status, err) == (0, "")
    assert lines == ["0 1.0 -9.0", "0 2.0 -1.0", "1 2.0 -9.0", "1 3.0 -1.0"]


def test_kernels_for_cudas_autograd_and_autocast_run(run):
    status, lines, err = run(BY_CUDAS_KEYS)
    assert (status, err) == (0, "")
    assert lines == [f"{rank} 7.0 torch.float16 torch.float32" for rank in range(2)]


def test_each_rank_has_rules_of_its_own(run):
    status, lines, err = run(TRITON_OP)
    assert (status, err) == (0, "")
    assert lines == ["0 1.0", "1 2.0"]


def test_a_rank_may_define_an_operator_anew(run):
    status, lines, err = run(DEFINED_ANEW)
    assert (status, err) == (0, "")
    assert lines == [f"{rank} [{n}.0, {n}.0, {n}.0]" for rank in range(2) for n in (2, 3)]


def test_what_a_program_has_defined_ends_with_it(run):
    assert run(OF_TWO_SCHEMAS.replace("if rank == 0", "if True"))[0] == 0
    assert run(OF_TWO_SCHEMAS.replace("if rank == 0", "if False"))[0] == 0
    assert not hasattr(torch.ops.d2lpar_test, "unlike")


def test_an_operator_that_is_defined_twice_is_refused_as_torch_does(run):
    status, _, err = run(LIBRARY + 'library.define("shifted(Tensor x) -> Tensor")\n')
    assert status == 1
    assert "multiple times" in err


@pytest.mark.skipif(not hasattr(torch.linalg, "polar"), reason="this torch has no linalg.polar")
def test_what_torch_itself_registers_for_cuda_in_python_does_not_run():
    """It calls CUDA."""
    matrix = torch.randn(4, 3)
    found = torch.linalg.polar(matrix.to(par.devices(1, verbose=False)[0]))
    for ours, theirs in zip(found, torch.linalg.polar(matrix), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
