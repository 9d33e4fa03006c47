"""`devices(n)`: real GPUs where there are enough, virtual ones otherwise, and never both."""

import gc
from dataclasses import replace

import pytest
import torch
import warm_process

import d2lpar as par
from d2lpar import machines
from d2lpar.vgpu.api.device_choice import backing_device
from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime


def run(code, **env):
    """The output of a fresh process in which CUDA is as the code fakes it."""
    found = warm_process.run(code, {"PATH": "", **env})
    assert found.returncode == 0, found.stderr
    return found.stdout.strip().splitlines()


FAKE = """
import torch
torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: {count})
torch.cuda.get_device_name = lambda device: "Fake GPU"
import d2lpar as par
"""


def test_real_gpus_are_used_and_virtual_ones_not_registered():
    lines = run(
        FAKE.format(count=2)
        + "print(par.devices(2))\n"
        + "print(par.devices(1, verbose=False), torch._C._get_privateuse1_backend_name())\n"
        + "print(par.clock_name())"
    )
    assert lines[0] == "cuda:0, cuda:1  ·  2 real: Fake GPU, Fake GPU"
    assert lines[1] == str([torch.device("cuda", i) for i in range(2)])
    assert lines[2] == f"{[torch.device('cuda', 0)]} privateuseone"
    assert lines[3] == "measured"


def test_virtual_ones_where_there_are_too_few():
    code = FAKE.format(count=1) + "print(par.devices(3, verbose=False)[-1])\n"
    code += (
        "from d2lpar.vgpu.torch_backend.machine.runtime import running; print(running().backing)"
    )
    assert run(code, D2LPAR_BACKING="cpu") == ["vgpu:2", "cpu"]
    assert run(code) == ["vgpu:2", "cuda:0"]


def test_variables_choose_kind_and_machine():
    code = FAKE.format(count=8) + "par.devices(2)"
    assert run(
        code, D2LPAR_DEVICES="virtual", D2LPAR_MACHINE="8x-a100-nvswitch", D2LPAR_BACKING="cpu"
    )[0] == (
        "vgpu:0, vgpu:1  ·  2 virtual A100-SXM4-40GB: arithmetic on this CPU, "
        "time simulated on 8x-a100-nvswitch"
    )
    assert "8 real" in run(code.replace("(2)", "(8)"), D2LPAR_DEVICES="real", D2LPAR_MACHINE="")[0]


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None, True])
def test_a_wrong_number(n):
    with pytest.raises(ValueError, match="whole number from 1 on"):
        par.devices(n)


def test_more_than_torch_can_number():
    lines = run(
        """
import torch, d2lpar as par
assert torch.ones(1, device=par.devices(128, kind="virtual", verbose=False)[-1]).item() == 1
for ask in (
    lambda: par.devices(129, kind="virtual"),
    lambda: par.simulate("2x-v100-textbook", 129).__enter__(),
):
    try:
        ask()
    except ValueError as error:
        print(error)
print(torch.vgpu.device_count())
"""
    )
    assert lines[-1] == "128"
    assert [line.split(",")[0] for line in lines[:-1]] == [
        "torch numbers 128 devices of a kind"
    ] * 2
    assert all("2x-v100-textbook was asked for with 129" in line for line in lines[:-1])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("D2LPAR_BACKING", "tpu", "'tpu' is no device .* set it to cpu, or unset it"),
        ("D2LPAR_BACKING", "meta", "'meta' is no device .* set it to cpu, or unset it"),
        ("D2LPAR_MACHINE", "8xa100", r"is '8xa100', but no machine is called .* '8x-a100"),
        ("D2LPAR_MACHINE", "no/where.json", "is 'no/where.json', but .* no such file"),
        ("D2LPAR_DEVICES", "gpu", r"'virtual' or 'real', not 'gpu' \(D2LPAR_DEVICES is 'gpu'\)"),
    ],
)
def test_a_variable_that_is_wrong_is_named(monkeypatch, name, value, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message) as error:
        par.devices(1, kind=None if name == "D2LPAR_DEVICES" else "virtual")
    assert name in str(error.value)


def test_real_gpus_to_compute_on_are_listed(monkeypatch):
    monkeypatch.setenv("D2LPAR_BACKING", "cuda:2")
    with pytest.raises(ValueError, match="set it to cpu or cuda:0 or cuda:1, or unset it"):
        backing_device(2)
    for name in ("cpu", "cuda", "cuda:1"):
        monkeypatch.setenv("D2LPAR_BACKING", name)
        assert backing_device(2) == torch.device(name)


def test_wrong_kinds_machines_and_missing_gpus(monkeypatch):
    with pytest.raises(ValueError, match="'real', not 'imaginary'"):
        par.devices(2, kind="imaginary")
    monkeypatch.setenv("D2LPAR_DEVICES", "vgpu")
    with pytest.raises(ValueError, match="'real', not 'vgpu'"):
        par.devices(2)
    monkeypatch.delenv("D2LPAR_DEVICES")
    with pytest.raises(ValueError, match=r"no machine is called '8xa100'; there is .*8x-a100"):
        par.devices(2, kind="virtual", machine="8xa100")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="3 real GPUs were asked for and this machine has 0"):
        par.devices(3, kind="real")


def test_asking_for_more_goes_on_with_clock_memory_and_tensors(capsys):
    lines = run(
        """
import torch, d2lpar as par
from d2lpar.vgpu.api.timing import now_s
a, b = par.devices(2, kind="virtual", verbose=False)
x = torch.ones(1000, device=b, requires_grad=True)
par.host_work(5, "load")
before = now_s(), torch.vgpu.memory_allocated(1)
state = torch.vgpu.get_rng_state(1)
devices = par.devices(6, kind="virtual", verbose=False)
assert (now_s(), torch.vgpu.memory_allocated(1)) == before and before[0] > 5
assert torch.equal(torch.vgpu.get_rng_state(1), state)
assert torch.vgpu.device_count() == 6
(x.to(devices[5]) * 2).sum().backward()
assert x.grad.sum().item() == 2000
assert par.devices(3, kind="virtual", verbose=False) == devices[:3]
assert torch.vgpu.device_count() == 6
with par.record() as timeline:
    torch.ones(2, device=devices[5])
assert timeline.devices == ["host", "vgpu:5"]
print("ok")
"""
    )
    assert lines == ["ok"]


def test_another_machine_starts_its_clock_and_knows_what_is_held():
    lines = run(
        """
import torch, d2lpar as par
from d2lpar.vgpu.api.timing import now_s
devices = par.devices(8, kind="virtual", machine="8x-a100-nvswitch", verbose=False)
first, last = torch.ones(1000, device=devices[0]), torch.ones(3, device=devices[7])
assert now_s() > 0
pinned = torch.ones(2).pin_memory()
par.devices(2, kind="virtual", machine="2x-v100-textbook", verbose=False)
assert now_s() == 0 and torch.vgpu.device_count() == 2
assert torch.vgpu.memory_allocated(0) == 4096
there = int(15.78 * 2**30)
taken = 2 * 2**20 + round(80 * 3.8 * 2**20)  # a segment, and what CUDA itself takes of a V100
assert torch.vgpu.mem_get_info(0) == (there - taken, there)
assert first.sum().item() == 1000 and pinned.is_pinned()
try:
    last + 1
except RuntimeError as error:
    print(error)
print(last.cpu().tolist())
del first
print(torch.vgpu.memory_allocated(0))
"""
    )
    assert "a tensor on vgpu:7 belongs to a machine that is not in use here" in lines[0]
    assert lines[0].endswith("The machine in use is 2x-v100-textbook, with vgpu:0 to vgpu:1")
    assert lines[1:] == ["[1.0, 1.0, 1.0]", "0"]


def test_a_machine_of_ones_own(gpus):
    fast, slow = machines.A100, machines.V100
    mixed = replace(machines.machine(), name="mixed", accelerators=(fast, slow))
    with par.simulate(mixed):
        names = [torch.vgpu.get_device_name(i) for i in range(2)]
    assert names == ["A100-SXM4-40GB (virtual)", "V100-SXM2-16GB (virtual)"]


def test_in_a_simulated_block_the_devices_are_those_of_the_block(gpus):
    with par.simulate("8x-a100-nvswitch", 3) as devices:
        assert par.devices(3, kind="virtual", verbose=False) == devices
        assert par.devices(2, kind="virtual", machine="8x-a100-nvswitch", verbose=False)
        for wrong in ({"n": 4}, {"n": 2, "machine": "2x-v100-textbook"}):
            with pytest.raises(ValueError, match="simulates 3 devices of 8x-a100-nvswitch"):
                par.devices(kind="virtual", verbose=False, **wrong)
    gc.collect()
    assert par.devices(4, kind="virtual", verbose=False) == gpus


def test_what_is_printed(gpus, capsys):
    par.devices(2, kind="virtual")
    assert capsys.readouterr().out == (
        "vgpu:0, vgpu:1  ·  2 virtual V100-SXM2-16GB: arithmetic on this CPU, "
        "time simulated on 2x-v100-textbook\n"
    )


@pytest.mark.parametrize("block", ["simulate", "shape_only"])
def test_blocks_that_end_in_another_order_leave_what_there_was(block):
    gpus = par.devices(2, kind="virtual", verbose=False)

    def blocks(machine):
        with par.simulate(machine) if block == "simulate" else par.shape_only():
            yield

    def state():
        rt = current_runtime()
        return rt.machine.name, rt.shape_only

    before = state()
    first, second = blocks("8x-a100-nvswitch"), blocks("2x-v100-textbook")
    next(first)
    next(second)
    inside = state()
    first.close()
    assert state() == inside  # the second goes on
    second.close()
    assert state() == before
    assert torch.ones(3, device=gpus[1]).sum().item() == 3
