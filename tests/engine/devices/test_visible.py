"""A variable such as CUDA_VISIBLE_DEVICES: what it means, for virtual GPUs and in emulated CUDA."""

import math
import os
import time
from dataclasses import replace

import pytest
import torch
import warm_process
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import d2lpar as par
from d2lpar import machines
from d2lpar.vgpu.api import visible_devices
from d2lpar.vgpu.sim.copy_routes import hops

EIGHT = machines.machine("8x-p100-dgx1")  # two neighbours share a way to the host


def run(code, **env):
    """The lines that a fresh process prints."""
    world = {"PATH": "", "D2LPAR_DEVICES": "virtual", **env}
    found = warm_process.run(f"import os, torch, d2lpar as par\n{code}", world)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip().splitlines()


# --- what a text means ----------------------------------------------------------------------------


def of_torch(text):
    """What torch.cuda makes of it: the numbers, or None where its parser fails on a lone sign."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", text)
        try:
            numbers = torch.cuda._parse_visible_devices()
        except ValueError:
            return None
    return [number for number in numbers if isinstance(number, int)]


@given(st.text("0123 \t,,,+-gx;.", max_size=12) | st.text("01,", max_size=9))
@example("0, 5")
@example("0,5gpu")
@example("+1,-0")
@example("0,2,-1,1")
@example("1,1")
@example("GPU-8932f937,1")
def test_lists_are_read_as_torch_reads_them(text):
    expected = of_torch(text)
    if expected is None:
        assert {"+", "-"} & {entry.strip()[:1] for entry in text.split(",")}
    else:
        assert visible_devices.listed(text) == expected


@pytest.mark.parametrize(
    ("text", "count", "numbers"),
    [
        (None, 3, [0, 1, 2]),
        ("2,1", 3, [2, 1]),
        ("0,2,-1,1", 3, [0, 2]),  # the example of NVIDIA's guide
        ("", 3, []),
        ("-1", 3, []),
        ("0,3,1", 3, [0]),  # there is no 3
        ("0, 1", 3, [0, 1]),
        ("0,1,0", 3, []),
        ("0;1", 3, [0]),
        ("'0,1'", 3, []),  # quotes that a file of settings has kept
        ("+,1", 3, []),
        ("one", 3, []),
    ],
)
def test_what_is_visible(monkeypatch, text, count, numbers):
    monkeypatch.delenv("SOME_VARIABLE", raising=False)
    if text is not None:
        monkeypatch.setenv("SOME_VARIABLE", text)
    variable = visible_devices.Variable("SOME_VARIABLE")
    assert variable.visible(count) == numbers
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: count)
        if text != "+,1":  # a lone sign, on which torch's own parser fails
            assert torch.cuda._device_count_nvml() == len(numbers)


def test_a_variable_is_read_once(monkeypatch):
    variable = visible_devices.Variable("SOME_VARIABLE")
    monkeypatch.setenv("SOME_VARIABLE", "1")
    assert variable.visible(4) == [1]
    monkeypatch.setenv("SOME_VARIABLE", "2,3")
    variable.start()
    assert not variable.is_ignored
    for late in ("0", ""):
        monkeypatch.setenv("SOME_VARIABLE", late)
        assert variable.visible(4) == [2, 3]
        assert variable.is_ignored
        assert str(variable) == "SOME_VARIABLE='2,3'"
        variable.start()
    variable.forget()
    assert variable.visible(4) == []


# --- part of a machine ----------------------------------------------------------------------------


def ways(machine, pairs):
    """The ports and links between accelerators, with accelerators named by `pairs`."""
    found = {}
    for name, one in pairs.items():
        for other_name, other in {**pairs, "host": None}.items():
            if one != other:
                route = hops(machine, one, other), hops(machine, other, one)
                found[name, other_name] = [[hop.link for hop in way] for way in route]
    return found


def sharing(machine, ends):
    """Which of these copies to the host use a port that another one uses, too."""
    ports = [{port for hop in hops(machine, end, None) for port in hop.ports} for end in ends]
    return [[bool(one & other) for other in ports] for one in ports]


@pytest.mark.parametrize("numbers", [(2, 3), (3, 2), (1, 2), (5, 0, 4), (7,), (0, 1)])
@pytest.mark.parametrize("peers", ["nvlink", "bus", "none"])
def test_a_part_keeps_its_links_and_what_shares_them(numbers, peers):
    whole = {
        "nvlink": EIGHT,
        "bus": EIGHT.with_peer(EIGHT.host_link),
        "none": EIGHT.with_peer(None),
    }[peers]
    part = whole.only(numbers)
    assert part.accelerators == tuple(whole.accelerators[i] for i in numbers)
    new = dict(zip(numbers, range(len(numbers)), strict=True))
    assert ways(part, new) == ways(whole, {i: i for i in numbers})
    assert sharing(part, range(len(numbers))) == sharing(whole, numbers)


def test_parts_of_parts_and_files(tmp_path):
    assert EIGHT.only([6, 4, 5]).only([2, 0]) == EIGHT.only([5, 6])
    assert EIGHT.only(range(8)) == EIGHT
    assert EIGHT.only([0, 1]) == EIGHT.with_accelerators(2)
    assert EIGHT.only([0, 1, 5]).with_accelerators(2) == EIGHT.only([0, 1])
    assert EIGHT.only([2]).is_like(EIGHT.only([2, 3]))
    assert not EIGHT.only([2, 5]).is_like(EIGHT.only([2, 3]))
    assert not EIGHT.only([2, 3]).is_like(EIGHT)
    assert machines.load(machines.save(EIGHT.only([5, 2]), tmp_path / "m.json")) == EIGHT.only(
        [5, 2]
    )


@pytest.mark.parametrize("numbers", [[], [1, 1], [8], [-1, 0]])
def test_parts_that_there_are_not(numbers):
    with pytest.raises(ValueError, match="8x-p100-dgx1 has accelerators 0 to 7; choose some"):
        EIGHT.only(numbers)


@pytest.mark.parametrize("slots", [(1,), (1, 1), (0, 2, 3), (-1, 0)])
def test_slots_that_cannot_be(slots):
    with pytest.raises(ValueError, match="slots of 8x-p100-dgx1 must be 2 whole numbers from 0 on"):
        replace(EIGHT.only([2, 3]), slots=slots)


def test_parts_and_clusters():
    with pytest.raises(ValueError, match="is a cluster: choose accelerators of one of its nodes"):
        machines.machine("2x8x-p100-dgx1-25gbe").only([0])
    with pytest.raises(ValueError, match="part of 8x-p100-dgx1: make a cluster of the whole"):
        EIGHT.only([2]).cluster(2, machines.NETWORKS["25gbe"])


# --- virtual GPUs ---------------------------------------------------------------------------------


def test_virtual_gpus_are_those_that_are_visible():
    code = """
devices = par.devices(2, machine="8x-p100-dgx1")
print(torch.get_device_module("vgpu").device_count(), *torch.nn.DataParallel(
    torch.nn.Linear(2, 2).to(devices[0])).device_ids)
os.environ["D2LPAR_VISIBLE_DEVICES"] = "0"
print(len(par.devices(3, machine="8x-p100-dgx1", verbose=False)))
try:
    par.devices(4, machine="8x-p100-dgx1")
except RuntimeError as error:
    print(error)
print([f"{fact.text}: {fact.remedy}" for fact in par.doctor().facts if fact.topic == "visible"])
with par.simulate("8x-p100-dgx1") as gpus:
    print(len(gpus), len(par.devices(4, verbose=False)))
"""
    lines = run(code, D2LPAR_VISIBLE_DEVICES="6,3, 2")
    assert lines == [
        "vgpu:0, vgpu:1  ·  2 virtual P100-SXM2-16GB: arithmetic on this CPU, "
        "time simulated on 8x-p100-dgx1 with D2LPAR_VISIBLE_DEVICES='6,3, 2'",
        "3 0 1 2",
        "3",
        "4 virtual GPUs were asked for, and D2LPAR_VISIBLE_DEVICES='6,3, 2' shows 3 of the 8 of "
        "8x-p100-dgx1: ask for fewer, or change or unset the variable and start Python anew",
        "[\"D2LPAR_VISIBLE_DEVICES='6,3, 2' for virtual GPUs: \", "
        "'D2LPAR_VISIBLE_DEVICES was changed after the first virtual GPU, and is ignored: "
        "set it before, and start Python anew']",
        "8 4",
    ]


def read_at_once(machine):
    """Seconds for copies from all accelerators of a machine to its host."""
    with par.simulate(machine) as gpus:
        data = [torch.empty(10**7, device=gpu) for gpu in gpus]
        hosts = [torch.empty(10**7, pin_memory=True) for _ in gpus]
        for device in range(len(gpus)):
            torch.vgpu.synchronize(device)
        start_s = par.timing.now_s()
        for mine, there in zip(hosts, data, strict=True):
            mine.copy_(there, non_blocking=True)
        for device in range(len(gpus)):
            torch.vgpu.synchronize(device)
        return par.timing.now_s() - start_s


def test_copies_of_a_part_compete_as_those_of_the_whole(gpus):
    neighbours, apart = (read_at_once(EIGHT.only(numbers)) for numbers in ([2, 3], [2, 4]))
    assert neighbours == pytest.approx(2 * apart, rel=0.02)


def test_a_failed_call_does_not_yet_bind():
    code = """
for text in ("", "-1", "2,3", "1"):
    os.environ["D2LPAR_VISIBLE_DEVICES"] = text
    try:
        print(par.devices(1, machine="2x-v100-textbook", verbose=False))
    except RuntimeError as error:
        print(error)
"""
    lines = run(code)
    shows = "1 virtual GPUs were asked for, and D2LPAR_VISIBLE_DEVICES={} shows 0 of the 2 of "
    for line, text in zip(lines, ("''", "'-1'", "'2,3'"), strict=False):
        assert line.startswith(shows.format(text))
        assert line.endswith("change or unset the variable")
    assert lines[3] == "[device(type='vgpu', index=0)]"


# --- emulated CUDA --------------------------------------------------------------------------------


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch.set_num_threads(1)


def names():
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def test_emulated_cuda_heeds_its_variable_until_it_starts(unset):
    mixed = [machines.ACCELERATORS[name] for name in sorted(machines.ACCELERATORS)[:4]]
    machine = machines.Machine("mixed", tuple(mixed), EIGHT.host, EIGHT.host_link, EIGHT.peer)
    with par.emulate_cuda(4, machine, verbose=False) as devices:
        assert len(devices) == torch.cuda.device_count() == 4
        assert not torch.cuda.is_initialized()
        os.environ["CUDA_VISIBLE_DEVICES"] = "3,1"
        assert torch.cuda.device_count() == 2
        x = torch.ones(4, device="cuda:1")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        assert torch.cuda.is_initialized()
        assert names() == [f"{mixed[3].name} (virtual)", f"{mixed[1].name} (virtual)"]
        assert x.get_device() == 1
        net = nn.DataParallel(nn.Linear(4, 2).cuda())
        assert net.device_ids == [0, 1]
        assert net(x.to("cuda:0").expand(6, 4)).shape == (6, 2)
        with pytest.raises(RuntimeError, match=r"no cuda:2.* CUDA_VISIBLE_DEVICES='3,1' shows 2"):
            x.to("cuda:2")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    with par.emulate_cuda(4, machine, verbose=False):
        assert len(names()) == 4


STARTS = {
    "is_available": lambda: torch.cuda.is_available(),
    "init": lambda: torch.cuda.init(),
    "current_device": lambda: torch.cuda.current_device(),
    "a tensor": lambda: torch.ones(1).cuda(),
    "a module": lambda: nn.Linear(1, 1).to("cuda"),
    "a stream": lambda: torch.cuda.Stream(),
    "synchronize": lambda: torch.cuda.synchronize(),
    "name": lambda: torch.cuda.get_device_name(),
}
DOES_NOT = {
    "count": lambda: torch.cuda.device_count(),
    "seed": lambda: torch.manual_seed(0),
    "seed of cuda": lambda: torch.cuda.manual_seed_all(0),
    "device": lambda: torch.device("cuda:1"),
    "a module on the CPU": lambda: nn.Linear(1, 1)(torch.ones(2, 1)),
    "is_initialized": lambda: torch.cuda.is_initialized(),
}


@pytest.mark.parametrize("what", [*STARTS, *DOES_NOT])
def test_what_starts_cuda(unset, what):
    with par.emulate_cuda(4, "4x-titan-x", verbose=False):
        {**STARTS, **DOES_NOT}[what]()
        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        assert len(names()) == (4 if what in STARTS else 2)


@pytest.mark.parametrize("text", ["", "-1", "7"])
def test_without_visible_devices_programs_take_the_cpu(monkeypatch, capsys, text):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    with par.emulate_cuda(2) as devices:
        assert devices == []
        assert not torch.cuda.is_available()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        assert torch.ones(2, device=device).sum().item() == 2
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available: CUDA_VISIBLE_DEVICES="):
            torch.ones(1).cuda()
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            torch.cuda.current_device()
    assert "no device  ·  0 emulated" in capsys.readouterr().out
    assert os.environ["CUDA_VISIBLE_DEVICES"] == text


def test_the_clock_and_random_numbers_go_on_and_records_are_whole(unset):
    def draw():
        torch.manual_seed(5)
        time.sleep(3)
        return torch.rand(2, device="cuda:1").tolist()

    with par.emulate_cuda(4, "4x-titan-x", verbose=False):
        expected = draw()
    with par.emulate_cuda(4, "4x-titan-x", verbose=False):
        before = time.time()
        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        assert draw() == expected
        assert time.time() - before > 3
    with par.emulate_cuda(4, "4x-titan-x", shape_only=True, verbose=False):
        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        with par.record() as timeline:
            x = torch.empty(10**9, device="cuda:0") + 1
        assert timeline.devices == ["host", "cuda:0"]
        assert math.isnan(x[0].item())
    assert torch.vgpu.device_count() == 4


def test_without_the_block_nothing_changes(monkeypatch, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert par.devices(4, kind="virtual", verbose=False) == gpus
    assert torch.vgpu.device_count() >= 4
