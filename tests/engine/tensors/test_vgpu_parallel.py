"""`nn.DataParallel`, torch's own, on virtual GPUs: equal to one device, and as long each time."""

import copy
import itertools
import os
import random
import threading
import time

import pytest
import torch
import warm_process
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import d2lpar as par
from d2lpar.machines.collective_cost import collective_s, fabric_of


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def make_batch(n=10):
    torch.manual_seed(1)
    return torch.randn(n, 4, dtype=torch.float64), torch.randn(n, 3, dtype=torch.float64)


def outputs_and_gradients(forward, net, X, y):
    net.zero_grad()
    out = forward(X)
    (out - y.to(out.device)).square().sum().backward()
    return [out.detach().cpu(), *(p.grad.cpu() for p in net.parameters())]


@pytest.mark.parametrize("device_ids", [None, [0, 1, 2, 3], [0, 1], [0], [0, 2, 3]])
@pytest.mark.parametrize("n", [16, 10, 3, 1])
def test_it_equals_one_device(gpus, device_ids, n):
    X, y = make_batch(n)
    net = make_net()
    expected = outputs_and_gradients(net, net, X, y)
    net.to(gpus[0])
    parallel = nn.DataParallel(net, device_ids=device_ids)
    assert_close(outputs_and_gradients(parallel, net, X, y), expected)


def test_several_steps_of_training_equal_one_device(gpus):
    X, y = make_batch()
    states = []
    for device_ids in ([0], [0, 1, 2, 3]):
        net = make_net().to(gpus[0])
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
        parallel = nn.DataParallel(net, device_ids)
        for _ in range(4):
            outputs_and_gradients(parallel, net, X, y)
            optimizer.step()
        states.append([p.detach().cpu() for p in net.parameters()])
    assert_close(states[1], states[0])


def test_shards_are_as_even_as_torch_makes_them(gpus):
    seen = {}

    class Spy(nn.Module):
        def forward(self, X):
            seen[X.device] = len(X)
            return X

    X, _ = make_batch(10)
    nn.DataParallel(Spy(), [0, 1, 2, 3])(X)
    assert seen == dict(zip(gpus, [3, 3, 3, 1], strict=True))


def test_output_device_and_other_first_devices(gpus):
    X, _ = make_batch(4)
    net = make_net().to(gpus[0])
    assert nn.DataParallel(net, [0, 1], output_device=1)(X).device == gpus[1]
    net.to(gpus[2])
    assert nn.DataParallel(net, [gpus[2], gpus[3]])(X).device == gpus[2]


def test_a_net_on_another_device_is_refused(gpus):
    with pytest.raises(RuntimeError, match=r"on device vgpu:0 .* on device: cpu"):
        nn.DataParallel(make_net())(make_batch()[0])


def test_keywords_dictionaries_and_nested_outputs(gpus):
    class Net(nn.Module):
        def forward(self, pair, *, scale, names):
            total = pair["a"] + pair["b"][0]
            return {"sum": total * scale, "rest": [total.sum(1), (total * len(names),)]}

    a, b = torch.arange(12.0).reshape(6, 2), torch.ones(6, 2)
    out = nn.DataParallel(Net(), [0, 1, 2])({"a": a, "b": [b]}, scale=2, names=["x", "y"])
    assert_close(out["sum"].cpu(), (a + b) * 2)
    assert_close(out["rest"][0].cpu(), (a + b).sum(1))
    assert_close(out["rest"][1][0].cpu(), (a + b) * 2)
    assert out["sum"].device == gpus[0]


def test_batch_norm_equals_one_device_running_the_shards_one_by_one(gpus):
    X, _ = make_batch(12)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    twins = [copy.deepcopy(net) for _ in range(4)]
    expected = torch.cat([twin(shard) for twin, shard in zip(twins, X.chunk(4), strict=True)])
    expected.square().sum().backward()
    gradients = [
        sum(p.grad for p in ps) for ps in zip(*(t.parameters() for t in twins), strict=True)
    ]
    net.to(gpus[0])
    out = nn.DataParallel(net, [0, 1, 2, 3])(X)
    out.square().sum().backward()
    assert_close(out.detach().cpu(), expected.detach())
    assert_close([p.grad.cpu() for p in net.parameters()], gradients)
    assert_close({name: b.cpu() for name, b in net.named_buffers()}, dict(twins[0].named_buffers()))


def test_every_device_really_works(fresh_gpus):
    X, y = make_batch(16)
    net = make_net().to(fresh_gpus[0])
    torch.vgpu.reset_peak_memory_stats()
    with par.record() as timeline:
        outputs_and_gradients(nn.DataParallel(net), net, X, y)
    for i, device in enumerate(fresh_gpus):
        assert {"addmm", "tanh"} <= {span.name for span in timeline.on(device, "compute")}
        assert torch.vgpu.max_memory_allocated(i) > 0
    assert timeline.on("vgpu:0", "copy").spans


class Failing(nn.Module):
    def __init__(self, fail):
        super().__init__()
        self.fail = fail

    def forward(self, x):
        return self.fail(x)


@pytest.mark.parametrize(
    "fail",
    [lambda x: x.nothing, lambda x: torch.empty(2**40, device=x.device), lambda x: x @ x.cpu()],
    ids=["attribute", "memory", "devices"],
)
def test_the_error_of_a_replica_is_told_without_frames_of_the_engine(gpus, fail):
    net = nn.DataParallel(Failing(fail).to(gpus[0]), gpus)
    with pytest.raises((RuntimeError, AttributeError)) as raised:
        net(torch.ones(4, 4, device=gpus[0]))
    text = str(raised.value)
    assert "Original Traceback" in text
    assert "return self.fail(x)" in text
    lines = [line for line in text.splitlines() if line.lstrip().startswith("File ")]
    assert not [line for line in lines if f"d2lpar{os.sep}vgpu" in line]


def test_an_error_in_a_replica_is_raised_and_all_goes_on(gpus):
    class Faulty(nn.Module):
        def forward(self, X):
            if X.device == gpus[2]:
                raise KeyError("only here")
            return X * 2

    X, _ = make_batch(8)
    with pytest.raises(KeyError, match="replica 2 on device 2"):
        nn.DataParallel(Faulty())(X)
    net = make_net().to(gpus[0])
    assert_close(nn.DataParallel(net)(X).cpu(), net.cpu()(X))


def test_dropout_is_the_same_in_every_run(gpus):
    net = nn.Sequential(make_net(), nn.Dropout(0.5)).to(gpus[0])
    X, _ = make_batch(16)
    runs = []
    for _ in range(3):
        torch.manual_seed(5)
        runs.append(nn.DataParallel(net)(X).tolist())
    assert runs[0] == runs[1] == runs[2]


def test_replicas_work_under_autocast(gpus):
    net = nn.Linear(4, 2).to(gpus[0])
    X = torch.ones(8, 4)
    with torch.autocast("vgpu", dtype=torch.bfloat16):
        out = nn.DataParallel(net)(X)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert net.weight.grad.dtype == torch.float32
    with torch.autocast("vgpu", enabled=False):
        assert nn.DataParallel(net)(X).dtype == torch.float32


def test_replicas_inside_replicas_and_functions_of_the_package(gpus):
    X, _ = make_batch(8)
    net = make_net().to(gpus[0])
    expected = net(X.to(gpus[0])).detach().cpu()
    assert_close(nn.parallel.data_parallel(net, X, [0, 1]).detach().cpu(), expected)
    replicas = nn.parallel.replicate(net, [0, 3])
    outs = nn.parallel.parallel_apply(replicas, [X.to(gpus[0]), X.to(gpus[3])], devices=[0, 3])
    assert [out.device for out in outs] == [gpus[0], gpus[3]]
    assert_close(outs[1].detach().cpu(), expected)
    nested = nn.DataParallel(nn.DataParallel(net, [0]), [0])
    assert_close(nested(X).detach().cpu(), expected)


# --- time -----------------------------------------------------------------------------------------


def step_time_s(sleep=False):
    """Simulated seconds of one training step, whatever the threads do."""
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 3))
    with par.simulate("2x-v100-textbook", 4, with_values=True) as devices:
        net.to(devices[0])
        parallel = nn.DataParallel(net)
        if sleep:
            net[1].register_forward_hook(lambda *_: time.sleep(random.random() * 0.01))
        X, y = torch.ones(12, 4), torch.zeros(12, dtype=torch.long, device=devices[0])
        watch = par.Timer()
        F.cross_entropy(parallel(X), y).backward()
        torch.vgpu.synchronize()
        return watch.stop()


def test_a_step_takes_the_same_time_however_threads_are_scheduled(gpus):
    times = {step_time_s(sleep=i % 2 == 1) for i in range(10)}
    assert len(times) == 1
    assert times.pop() > 1e-4


def test_a_step_takes_the_same_time_in_another_process_and_thread(gpus):
    code = "from test_vgpu_parallel import step_time_s\nprint(repr(step_time_s()))"
    run = warm_process.run(code)
    assert run.returncode == 0, run.stderr
    found = []
    thread = threading.Thread(target=lambda: found.append(step_time_s()))
    thread.start()
    thread.join()
    assert float(run.stdout) == step_time_s() == found[0]


def test_the_clock_cannot_be_read_in_a_replica(gpus):
    class Curious(nn.Module):
        def forward(self, X):
            par.Timer()
            return X

    with pytest.raises(RuntimeError, match="inside a replica"):
        nn.DataParallel(Curious())(torch.ones(4, 1))


def test_replicas_share_one_lane_of_the_host(fresh_gpus):
    net = nn.Linear(4, 4).to(fresh_gpus[0])
    X = torch.ones(8, 4, device=fresh_gpus[0])
    with torch.no_grad(), par.record() as timeline:
        nn.DataParallel(net)(X)
    products = [s for s in timeline if s.name == "addmm" and s.kind == "dispatch"]
    assert [s.device for s in products] == ["host"] * 4
    assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(products))
    on_devices = [s.device for s in timeline if s.name == "addmm" and s.kind == "compute"]
    assert on_devices == [str(device) for device in fresh_gpus]


# --- machines that have real accelerators too -----------------------------------------------------


@pytest.mark.parametrize("fake", ["one CUDA GPU", "MPS"])
def test_beside_a_real_accelerator_all_virtual_ones_work(gpus, monkeypatch, fake):
    if fake == "MPS":
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    else:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert par.devices(4, verbose=False) == gpus
    X, y = make_batch(16)
    net = make_net()
    expected = outputs_and_gradients(net, net, X, y)
    net.to(gpus[0])
    parallel = nn.DataParallel(net)
    assert parallel.device_ids == [0, 1, 2, 3]
    with par.record() as timeline:
        found = outputs_and_gradients(parallel, net, X, y)
    assert_close(found, expected)
    assert {str(device) for device in gpus} < set(timeline.devices)
    assert torch.ones(2).pin_memory().is_pinned()
    torch.accelerator.synchronize()


# --- with NCCL and without ------------------------------------------------------------------------


def step_on_eight(n, machine="8x-v100-pcie"):
    """The timeline of a step, of shapes only, whose parameters fill several buffers."""
    with par.simulate(machine, n, with_values=False) as gpus:
        net = nn.Sequential(nn.Linear(2000, 2000), nn.Tanh(), nn.Linear(2000, 2000)).to(gpus[0])
        X = torch.zeros(4 * n, 2000, device=gpus[0])
        with par.record() as timeline:
            nn.DataParallel(net)(X).sum().backward()
            par.timing.synchronize(gpus)
    return timeline


def test_parameters_and_gradients_go_by_nccl():
    timeline = step_on_eight(8)
    fabric = fabric_of(par.machines.machine("8x-v100-pcie"), 8)
    for name in ("broadcast", "reduce"):
        spans = [s for s in timeline if s.kind == "collective" and s.name == name]
        assert {s.device for s in spans} == {f"vgpu:{i}" for i in range(8)}
        times = {(s.start_s, s.end_s) for s in spans}
        assert len(spans) == 8 * len(times)  # on all devices at once
        biggest = max(spans, key=lambda s: s.bytes)
        assert biggest.duration_s == pytest.approx(collective_s(name, biggest.bytes, fabric))
        # One thread launches for all devices, one after the other.
        launches = [s for s in timeline if s.kind == "dispatch" and s.name == name]
        by_thread = {s.stream for s in launches}
        assert (len(launches), len(by_thread)) == (len(spans), 1)
    moved = sum(s.bytes for s in timeline if s.kind == "copy")
    assert moved < 10 * 4 * 2000 * 32  # inputs and outputs, no parameters


def test_without_nccl_a_device_gets_its_copy_after_the_other():
    with par.without_nccl():
        without = step_on_eight(8)
    kinds = {s.kind for s in without}
    assert "collective" not in kinds
    weights = [s for s in without if s.kind == "copy" and s.bytes > 10**7]
    assert len({s.target for s in weights if s.device == "vgpu:0"}) == 7
    assert without.duration_s > 2 * step_on_eight(8).duration_s
    assert "collective" in {s.kind for s in step_on_eight(2)}


def test_both_ways_have_the_same_values(gpus):
    X, y = make_batch(16)
    net = make_net().to(gpus[0])
    found = outputs_and_gradients(nn.DataParallel(net), net, X, y)
    with par.without_nccl():
        assert_close(outputs_and_gradients(nn.DataParallel(net), net, X, y), found)


def test_without_nccl_ends_with_its_block():
    with pytest.raises(KeyError), par.without_nccl():
        raise KeyError
    assert "collective" in {s.kind for s in step_on_eight(2)}


def test_what_nccl_does_not_take_is_copied(gpus):
    odd = torch.arange(6.0).reshape(2, 3).to(gpus[0]).t()
    first, second = torch.nn.parallel.comm.broadcast(odd, [0, 1])
    assert first is odd
    assert_close(second.cpu(), odd.cpu())
    twice = torch.nn.parallel.comm.broadcast(odd.contiguous(), [1, 1])
    assert [t.device for t in twice] == [gpus[1]] * 2
    with par.record() as timeline:
        total = torch.nn.parallel.comm.reduce_add([odd, second.clone()], 0)
    assert_close(total.cpu(), 2 * odd.cpu())
    assert {s.kind for s in timeline if s.device != "host"} == {"copy", "compute"}
