"""Inside `emulate_cuda` a program sees CUDA devices; outside nothing has changed."""

import copy
import inspect
import io
import operator
import pickle
import subprocess
import sys
import threading
import time
import timeit
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import d2lpar as par
from d2lpar.vgpu.cuda.mode import CudaMode
from d2lpar.vgpu.torch_backend.module import streams
from d2lpar.vgpu.torch_backend.tensors.tensor import VirtualTensor


@pytest.fixture
def cuda():
    """Two emulated devices."""
    torch.set_num_threads(1)
    with par.emulate_cuda(2, verbose=False) as devices:
        yield devices


# --- every spelling of a device -------------------------------------------------------------------

MADE_ON_1 = {
    "text": lambda: torch.ones(2, device="cuda:1"),
    "device": lambda: torch.ones(2, device=torch.device("cuda", 1)),
    "number": lambda: torch.ones(2, device=1),
    "device of a number": lambda: torch.ones(2, device=torch.device(1)),
    "to(text)": lambda: torch.ones(2).to("cuda:1"),
    "to(device)": lambda: torch.ones(2).to(torch.device("cuda:1"), non_blocking=True),
    "to(number)": lambda: torch.ones(2).to(1),
    "to(device=)": lambda: torch.ones(2).to(device="cuda:1", dtype=torch.float32),
    "to(device, dtype)": lambda: torch.ones(2).double().to("cuda:1", torch.float32),
    "to(tensor)": lambda: torch.ones(2).to(torch.empty(1, device="cuda:1")),
    "cuda(number)": lambda: torch.ones(2).cuda(1),
    "cuda(device)": lambda: torch.ones(2).cuda(torch.device("cuda:1"), non_blocking=True),
    "tensor": lambda: torch.tensor([1.0, 1.0], device="cuda:1"),
    "as_tensor": lambda: torch.as_tensor([1.0, 1.0], device="cuda:1"),
    "like": lambda: torch.ones_like(torch.zeros(2), device="cuda:1"),
    "new": lambda: torch.zeros(2).new_ones(2, device="cuda:1"),
    "new of another": lambda: torch.empty(0, device="cuda:1").new_ones(2),
    "module": lambda: nn.Linear(2, 1).cuda(1).weight.data.fill_(1.0)[0],
    "module.to": lambda: nn.Linear(2, 1).to("cuda:1").weight.data.fill_(1.0)[0],
    "module.to(number)": lambda: nn.Linear(2, 1).to(1).weight.data.fill_(1.0)[0],
    "module(device=)": lambda: nn.Linear(2, 1, device="cuda:1").weight.data.fill_(1.0)[0],
    "to_empty": lambda: (
        nn.Linear(2, 1, device="meta").to_empty(device="cuda:1").weight.data.fill_(1.0)[0]
    ),
    "copy": lambda: torch.empty(2, device="cuda:1").copy_(torch.ones(2, device="cuda:0")),
}


@pytest.mark.parametrize("spelling", MADE_ON_1)
def test_a_device_may_be_spelt_in_any_way(cuda, spelling):
    made = MADE_ON_1[spelling]()
    assert made.device == torch.device("cuda:1") == cuda[1]
    assert (made.device.type, made.device.index, made.get_device()) == ("cuda", 1, 1)
    assert made.is_cuda
    assert made.cpu().tolist() == [1.0, 1.0]
    assert not made.cpu().is_cuda
    assert "device='cuda:1'" in repr(made.detach())


def on_current():
    return {
        str(made.device)
        for made in (
            torch.ones(1, device="cuda"),
            torch.ones(1).cuda(),
            torch.ones(1).to("cuda"),
            torch.ones(1).to(torch.device("cuda")),
            nn.Linear(1, 1).cuda().weight,
            torch.cuda.FloatTensor([1.0]),
        )
    }


def test_without_a_number_the_current_device_is_meant(cuda):
    assert on_current() == {"cuda:0"}
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        assert on_current() == {"cuda:1"}
        with torch.cuda.device_of(torch.ones(1, device="cuda:0")):
            assert on_current() == {"cuda:0"}
    assert on_current() == {"cuda:0"}
    torch.cuda.set_device("cuda:1")
    assert on_current() == {"cuda:1"}
    with torch.cuda.device(-1), torch.cuda.device(None):
        assert on_current() == {"cuda:1"}


def test_a_default_device(cuda):
    def made():
        layer = nn.Linear(1, 1)
        return {str(t.device) for t in (torch.ones(1), torch.tensor([1]), layer.weight)}

    with torch.device("cuda:1"):
        assert made() == {"cuda:1"}
        assert str(torch.zeros(1, device="cpu").device) == "cpu"
    torch.set_default_device("cuda")
    assert made() == {"cuda:0"}
    assert torch.get_default_device() == torch.device("cuda:0")
    torch.set_default_device(None)
    assert made() == {"cpu"}


def test_moving_to_where_it_is_changes_nothing(cuda):
    x = torch.ones(2, device="cuda")
    assert x.to("cuda:0") is x
    assert x.cuda() is x
    assert x.to("cuda", copy=True) is not x
    assert x.to(x.device, torch.float64).dtype is torch.float64


def test_types_of_cuda_tensors(cuda):
    x = torch.ones(2).type(torch.cuda.DoubleTensor)
    assert x.type() == "torch.cuda.DoubleTensor"
    assert isinstance(x, torch.cuda.DoubleTensor)
    assert not isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.DoubleTensor)
    assert torch.ones(1).type("torch.cuda.LongTensor").dtype is torch.int64
    assert torch.ones(1).type("torch.LongTensor").type() == "torch.LongTensor"
    assert torch.cuda.ByteTensor(2, 3).shape == (2, 3)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
def test_the_default_type_is_that_of_torch_tensor():
    """A default device is not: `torch.Tensor(2)` stays on the CPU then, as on CUDA."""
    with par.emulate_cuda(1, verbose=False):
        torch.set_default_device("cuda")
        assert torch.Tensor(2).device.type == "cpu"
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        made = (torch.Tensor(2, 3), torch.Tensor([1, 2]), nn.Parameter(torch.Tensor(2)))
        assert {str(tensor.device) for tensor in made} == {"cuda:0"}
        assert made[0].shape == (2, 3)
        assert made[1].tolist() == [1, 2]
        assert torch.Tensor(torch.ones(2, device="cpu")).device.type == "cpu"
        torch.set_default_tensor_type(torch.FloatTensor)
        assert torch.Tensor(2).device.type == "cpu"
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
    assert torch.Tensor(2).device.type == "cpu"


def test_types_of_tensors_take_tensors_of_their_own_kind_only():
    with par.emulate_cuda(1, verbose=False):
        on_cuda, on_cpu = torch.ones(2, device="cuda"), torch.ones(2)
        shared = torch.cuda.FloatTensor(on_cuda)
        shared += 1
        assert on_cuda.tolist() == [2, 2]
        for make, argument in (
            (torch.FloatTensor, on_cuda),
            (torch.cuda.FloatTensor, on_cpu),
            (torch.cuda.LongTensor, on_cuda),
        ):
            with pytest.raises(TypeError, match="expected TensorOptions"):
                make(argument)
        assert isinstance(on_cpu.double().type(torch.FloatTensor), torch.FloatTensor)


@pytest.mark.parametrize("name", ["Tensor", "FloatTensor", "LongTensor", "cuda.FloatTensor"])
def test_types_of_tensors_take_lists_of_numbers_on_cuda(cuda, name):
    """Such as losses of several steps; torch ended in an internal error."""
    kind = operator.attrgetter(name)(torch)
    one, two = torch.tensor(1, device="cuda"), torch.tensor([2], device="cuda")
    made = kind([one, two, 3])
    assert made.is_cuda == name.startswith("cuda.")
    assert made.tolist() == [1, 2, 3]
    assert kind([(one, two)]).shape == (1, 2)
    with pytest.raises((TypeError, ValueError), match="str"):
        kind(["no number"])


def test_dynamo_may_be_imported_inside():
    """It looks at `torch.Tensor.__new__`, and at its arguments."""
    code = (
        "import sys, torch, d2lpar as par\n"
        "for kind in ('torch.cuda.FloatTensor', 'torch.FloatTensor'):\n"
        "    with par.emulate_cuda(1, verbose=False):\n"
        "        torch.set_default_tensor_type(kind)\n"
        "        import torch._dynamo\n"
        "        print(torch.Tensor([torch.ones(1, device='cuda')]).device)\n"
        "print(torch.Tensor(1).device, torch._dynamo.is_compiling())"
    )
    run = subprocess.run(  # a warm process may have imported it
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.stdout.splitlines() == ["cuda:0", "cpu", "cpu False"], run.stderr


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
def test_the_default_type_may_be_one_of_cuda(cuda):
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert torch.ones(1).is_cuda
    torch.set_default_tensor_type(torch.FloatTensor)
    assert not torch.ones(1).is_cuda


def test_generators(cuda):
    generator = torch.Generator(device="cuda:1")
    assert isinstance(generator, torch.Generator)
    assert generator.device == torch.device("cuda:1")
    drawn = [
        torch.rand(3, device="cuda:1", generator=generator.manual_seed(seed)) for seed in (5, 5, 6)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.Generator().device.type == "cpu"


def test_parameters_move_by_their_data(cuda):
    net = nn.Linear(3, 2)
    weight = net.weight
    for device in ("cuda:1", "cuda:0", "cpu"):
        for p in net.parameters():
            p.data = p.data.to(device)
        assert net.weight is weight
        assert isinstance(weight, nn.Parameter)
        assert {str(p.device) for p in net.parameters()} == {device}
        net(torch.ones(1, 3, device=device)).sum().backward()
        net.zero_grad()


def test_lazy_modules_are_made_where_they_are_sent(cuda):
    net = nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    net.cuda(1)
    assert next(net.parameters()).device == torch.device("cuda:1")
    net(torch.rand(2, 1, 5, 5, device="cuda:1"))
    assert {str(t.device) for t in [*net.parameters(), *net.buffers()]} == {"cuda:1"}
    assert nn.LazyLinear(2, device="cuda:1").weight.device == torch.device("cuda:1")


# --- code that torch calls ------------------------------------------------------------------------


class Twice(torch.autograd.Function):
    seen: ClassVar[list[torch.device]] = []

    @staticmethod
    def forward(ctx, x):
        Twice.seen.append(x.device)
        return x * torch.full((1,), 2.0, device="cuda")

    @staticmethod
    def backward(ctx, gradient):
        Twice.seen.append(gradient.device)
        return gradient * torch.full((1,), 2.0).cuda() + torch.zeros(1, device=gradient.device)


def test_the_users_code_in_a_backward_pass_sees_cuda(cuda):
    Twice.seen.clear()
    x = torch.ones(3, device="cuda", requires_grad=True)
    x.register_hook(lambda gradient: Twice.seen.append(gradient.device))
    Twice.apply(x).sum().backward()
    torch.autograd.backward(Twice.apply(x).sum())
    assert set(Twice.seen) == {torch.device("cuda:0")}
    assert x.grad.tolist() == [4.0] * 3


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_code_is_run_again_on_cuda(cuda, use_reentrant):
    net, runs = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda(), []

    def forward(x):
        runs.append(x.device)
        return net(x) + torch.ones(4, device="cuda").to("cuda:0")

    x = torch.ones(2, 4, device="cuda", requires_grad=True)
    checkpoint(forward, x, use_reentrant=use_reentrant).sum().backward()
    assert runs == [cuda[0]] * 2


def test_python_functions_of_torch_make_tensors_inside(cuda):
    attention = nn.MultiheadAttention(8, 2, add_zero_attn=True, batch_first=True).cuda(1)
    x = torch.rand(2, 3, 8, device="cuda:1", requires_grad=True)
    attention(x, x, x)[0].sum().backward()
    assert x.grad.device == cuda[1]
    lstm = nn.LSTM(8, 4, batch_first=True).to("cuda:1")
    lstm.flatten_parameters()
    assert lstm(x)[0].is_cuda


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_scripts_may_make_tensors(cuda):
    scripted = torch.jit.script(two_ones)
    assert scripted(torch.zeros(2)).tolist() == [1.0, 1.0]


def two_ones(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(2)


def test_compiling_changes_no_value(cuda):
    net = nn.Linear(2, 2).cuda()
    x = torch.ones(1, 2, device="cuda")
    compiled = torch.compile(net, mode="reduce-overhead")
    assert torch.equal(compiled(x), net(x))
    assert [*compiled.state_dict()] == ["_orig_mod.weight", "_orig_mod.bias"]

    @torch.compile(fullgraph=True)
    def double(x):
        return 2 * x

    assert double(torch.ones(1, device="cuda")).item() == 2.0
    net.compile()
    assert net(torch.ones(1, 2, device="cuda")).is_cuda


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"capturable": True}])
def test_optimizers(cuda, options):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    twin = copy.deepcopy(net).cuda()
    for module, chosen, device in ((net, {}, "cpu"), (twin, options, "cuda")):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1, **chosen)
        for _ in range(3):
            module(torch.ones(2, 3, device=device)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(twin.weight.cpu(), net.weight, rtol=1e-3, atol=1e-5)


# --- threads and loaders --------------------------------------------------------------------------


def test_threads_see_cuda(cuda):
    def work(index):
        with torch.cuda.device(index):
            return str(torch.ones(1, device="cuda").device), torch.device(1), time.time()

    before = time.time()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, [0, 1]))
    assert [name for name, _, _ in found] == ["cuda:0", "cuda:1"]
    assert {device for _, device, _ in found} == {torch.device("cuda:1")}
    assert all(before <= now < before + 1 for _, _, now in found)  # simulated, not since 1970


def test_a_thread_that_outlives_the_block_sees_none():
    entered, left, found = threading.Event(), threading.Event(), []

    def work():
        entered.set()
        left.wait(60)
        found.append(torch.ones(1, device="cpu").device)
        found.append(torch.device(0).type)

    with par.emulate_cuda(2, verbose=False):
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait(60)
    left.set()
    thread.join()
    assert found == [torch.device("cpu"), torch.device(0).type]


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_pin_their_batches(cuda, workers):
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    total = 0.0
    for x, y in loader:
        assert x.is_pinned()
        assert y.is_pinned()
        total += x.to("cuda:1", non_blocking=True).sum().item()
    assert total == 28.0


class Normalized(torch.utils.data.Dataset):
    """Items that a worker makes on the processor by its name, as torchvision's transforms do."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        x = torch.full((2,), float(i))
        return x.to(x.device).sub_(torch.as_tensor([1.0, 2.0], device=x.device))


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_of_loaders_may_name_the_processor(cuda, workers):
    batches = list(DataLoader(Normalized(), batch_size=4, num_workers=workers))
    assert batches[0].tolist() == [[i - 1.0, i - 2.0] for i in range(4)]


# --- what is not there ----------------------------------------------------------------------------

NAMED = {
    "a device that is not there": (lambda: torch.ones(1, device="cuda:2"), "there is no cuda:2"),
    "a number that is not there": (lambda: torch.ones(1).cuda(7), "there is no cuda:7"),
    "setting it": (lambda: torch.cuda.set_device(2), r"emulate_cuda\(n\)"),
    "two devices": (
        lambda: torch.ones(1, device="cuda:0") + torch.ones(1, device="cuda:1"),
        "at least two devices, cuda:0 and cuda:1",
    ),
    "device and host": (
        lambda: nn.Linear(1, 1)(torch.ones(1, 1, device="cuda")),
        "at least two devices, cuda:0 and cpu",
    ),
    "numpy": (lambda: torch.ones(1, device="cuda:1").numpy(), "can't convert cuda:1 device"),
    "no cuda device": (lambda: torch.ones(1).cuda("cpu"), "must be cuda device: cpu"),
    "no cuda device to wait for": (lambda: torch.cuda.synchronize("cpu"), "but got: cpu"),
    "a module elsewhere": (
        lambda: nn.DataParallel(nn.Linear(1, 1).cuda(1))(torch.ones(2, 1)),
        r"on device cuda:0 \(device_ids\[0\]\) but found one of them on device: cuda:1",
    ),
}


@pytest.mark.parametrize("mistake", NAMED)
def test_mistakes_are_told_as_cuda_tells_them(cuda, mistake):
    call, text = NAMED[mistake]
    with pytest.raises((RuntimeError, TypeError, ValueError), match=text) as found:
        call()
    assert "vgpu" not in str(found.value)


REFUSED = {
    r"torch.cuda.cudart\(\).cudaHostRegister": lambda: torch.cuda.cudart().cudaHostRegister(
        0, 8, 0
    ),
    "torch.cuda.utilization": lambda: torch.cuda.utilization(),
    "torch.cuda.nccl.all_reduce": lambda: torch.cuda.nccl.all_reduce([torch.ones(1).cuda()]),
    "torch.backends.cuda.cufft_plan_cache": lambda: torch.backends.cuda.cufft_plan_cache.clear(),
    "torch.cuda.MemPool": lambda: torch.cuda.MemPool(),
    "torch.nn.parallel.DistributedDataParallel": lambda: nn.parallel.DistributedDataParallel(
        nn.Linear(1, 1).cuda()
    ),
    "torch.distributed with NCCL": lambda: torch.distributed.init_process_group("nccl"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_emulated_says_so_by_name(cuda, name):
    with pytest.raises(NotImplementedError, match=f"{name} is not emulated: "):
        REFUSED[name]()


def test_a_block_leaves_no_mode_of_waits_behind():
    with par.emulate_cuda(1, verbose=False):
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            torch.ones(2, device="cuda").tolist()
    assert torch.ones(2, device="vgpu").tolist() == [1, 1]


def test_every_function_of_torch_cuda_is_emulated_or_refused():
    theirs = {name: getattr(torch.cuda, name) for name in torch.cuda.__all__}
    with par.emulate_cuda(1, verbose=False):
        kept = {name for name, value in theirs.items() if getattr(torch.cuda, name) is value}
    called = {name for name in kept if callable(theirs[name]) and not name.endswith("Storage")}
    # Of `memory_snapshot`, what it asks of C++ is replaced: see test_emulation_memory.py; of
    # `make_graphed_callables`, the graphs and streams that it is written with: see
    # test_cuda_graphs.py; of the summary and of old names, what they call: see
    # test_emulation_cuda.py.
    left_alone = {"CudaError", "DeferredCudaCallError", "check_error", "cudaStatus"}
    left_alone |= {"memory_summary", "max_memory_cached", "memory_cached"}
    left_alone |= {"cudart", "get_gencode_flags"}
    left_alone |= {"get_sync_debug_mode", "set_sync_debug_mode"}
    left_alone |= {"reset_max_memory_allocated", "reset_max_memory_cached"}
    assert called <= {*left_alone, "make_graphed_callables", "memory_snapshot"}


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_warning_of_torchs_names_the_line_that_calls_torch(device):
    torch.set_warn_always(True)  # otherwise torch says it once a process
    try:
        with warnings.catch_warnings(record=True) as found, par.emulate_cuda(1, verbose=False):
            weight = nn.Parameter(torch.ones((), device=device))
            line = inspect.currentframe().f_lineno + 1
            float(weight)
    finally:
        torch.set_warn_always(False)
    places = [(w.filename, w.lineno) for w in found if "to a scalar" in str(w.message)]
    assert set(places) == {(__file__, line)}


def test_models_may_be_asked_whether_they_are_distributed(cuda):
    kinds = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    assert isinstance(nn.DataParallel(nn.Linear(1, 1)), kinds)
    assert not isinstance(nn.Linear(1, 1), kinds)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_running_out_of_memory(cuda, kind):
    words = (
        r"CUDA out of memory\. Tried to allocate 931\.32 GiB\. GPU 1 has a total capacity "
        r"of 15\.78 GiB of which .* is free\. [\s\S]*Use a smaller batch"
    )
    with pytest.raises(kind, match=words):
        torch.empty(250 * 10**9, device="cuda:1")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(10**12, device="cuda:1")


def test_a_limit_of_the_process_is_named_beside_the_capacity(cuda):
    """As c10/cuda/CUDACachingAllocator.cpp: the device's own figures, and what is allowed."""
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    words = r"capacity of 15\.78 GiB of which 15\.\d+ GiB is free\. 7\.89 GiB allowed; "
    try:
        with pytest.raises(torch.OutOfMemoryError, match=words) as found:
            torch.empty(10**10, device="cuda:1", dtype=torch.uint8)
        assert str(pickle.loads(pickle.dumps(found.value))).count("are allowed") == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 1)
    with pytest.raises(torch.OutOfMemoryError) as found:
        torch.empty(10**12, device="cuda:1")
    assert "allowed" not in str(found.value)


# --- leaving --------------------------------------------------------------------------------------


def snapshot():
    """What every attribute is of everything that the block may touch."""
    roots = ("torch", "time", "timeit", "threading", "d2lpar")
    owners = [m for name, m in list(sys.modules.items()) if name.split(".")[0] in roots]
    owners += [torch.Tensor, nn.Module, VirtualTensor, streams.Stream, streams.Event]
    owners += [
        timeit.Timer,
        threading.Thread,
        torch.autocast,
        torch.Generator,
        torch.UntypedStorage,
    ]
    owners += [nn.parallel.DistributedDataParallel, nn.UninitializedParameter]
    owners += [sys.modules[__name__]]
    found = {
        (id(owner), name): value for owner in owners for name, value in list(vars(owner).items())
    }
    for function in (timeit.timeit, timeit.repeat, timeit.Timer.__init__):
        found[id(function), "defaults"] = function.__defaults__
    return found


def differences(before, after):
    kept = {key for key in before.keys() & after.keys() if before[key] is after[key]}
    changed = (before.keys() | after.keys()) - kept
    counters = {"_count", "_made"}
    return {name for _, name in changed} - counters


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_leaving_restores_everything(error):
    global now_of_time
    from time import time as now_of_time  # a name bound before

    with par.emulate_cuda(2, verbose=False):
        torch.ones(1, device="cuda")
    before = snapshot()
    try:
        with par.emulate_cuda(2, verbose=False):
            inside = differences(before, snapshot())
            torch.set_default_device("cuda:1")
            torch.cuda.set_device(1)
            torch.cuda.set_stream(torch.cuda.Stream())
            if error:
                raise error
    except ZeroDivisionError:
        pass
    assert {"is_available", "zeros", "to", "perf_counter", "device", "now_of_time"} <= inside
    assert differences(before, snapshot()) == set()
    assert torch.ones(1).device.type == "cpu"
    assert torch.vgpu.current_device() == 0
    assert torch.vgpu.current_stream().stream_id == 0


def test_names_bound_inside_do_what_they_did_outside():
    with par.emulate_cuda(1, verbose=False):
        kept = (torch.cuda.is_available, torch.zeros, time.perf_counter, timeit.default_timer)
        assert kept[0]()
    is_available, zeros, perf_counter, default_timer = kept
    assert is_available() == torch.cuda.is_available()
    assert zeros(2).tolist() == [0.0, 0.0]
    for clock in (perf_counter, default_timer):
        assert abs(clock() - time.perf_counter()) < 60


def test_tensors_that_leave_are_on_virtual_gpus():
    with par.emulate_cuda(2, verbose=False):
        x = torch.ones(2, device="cuda:1", requires_grad=True)
        net = nn.Linear(2, 1).cuda(1)
    assert str(x.device) == "vgpu:1"
    assert not x.is_cuda
    net(x).sum().backward()
    assert x.grad.device == x.device
    with par.emulate_cuda(2, verbose=False):
        assert net.weight.is_cuda
        assert (x + torch.ones(2, device="cuda:1")).tolist() == [2.0, 2.0]


def test_blocks_cannot_be_nested(cuda):
    with pytest.raises(RuntimeError, match="cannot be nested"), par.emulate_cuda(1):
        pass
    assert torch.cuda.device_count() == 2


def test_another_machine_for_a_while(gpus, capsys):
    before = par.clock_name()
    x = torch.ones(10**6, device=gpus[0])
    clock_s = par.timing.now_s()
    with par.emulate_cuda(3, "8x-a100-nvswitch"):
        assert torch.cuda.device_count() == 3
        assert "A100" in torch.cuda.get_device_name()
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.mem_get_info()[1] == int(39.56 * 2**30)
        assert torch.cuda.memory_allocated(0) >= 4 * 10**6  # what x holds stays held
        assert time.time() < 1e-3  # a clock of its own
    assert "cuda:0, cuda:1, cuda:2" in capsys.readouterr().out
    assert par.clock_name() == before
    assert par.timing.now_s() == pytest.approx(clock_s)
    assert torch.vgpu.mem_get_info()[1] == int(15.78 * 2**30)
    assert x.sum().item() == 10**6


def test_wrong_machines_and_numbers():
    with pytest.raises(ValueError, match="whole number"), par.emulate_cuda(0):
        pass
    with pytest.raises(ValueError, match="no machine is called"), par.emulate_cuda(1, "8x-b1000"):
        pass
    assert torch.ones(1).device.type == "cpu"


def test_real_gpus_cannot_be_seen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a real one")
    with par.emulate_cuda(2, verbose=False):
        assert torch.cuda.device_count() == 2
        assert "virtual" in torch.cuda.get_device_name()
        outputs = nn.DataParallel(nn.Linear(2, 1).cuda())(torch.ones(4, 2))
        assert outputs.device == torch.device("cuda:0")
    assert torch.cuda.device_count() == 8


def test_shapes_only():
    with par.emulate_cuda(2, verbose=False, shape_only=True):
        x = torch.rand(20_000, 20_000, device="cuda")
        start = time.perf_counter()
        y = x @ x
        torch.cuda.synchronize()
        assert time.perf_counter() - start > 2 * 20_000**3 / 15.7e12
        assert y.shape == (20_000, 20_000)
    assert torch.vgpu.device_count() >= 2


# --- saving ---------------------------------------------------------------------------------------


def test_a_checkpoint_is_what_cuda_would_have_written():
    file = io.BytesIO()
    with par.emulate_cuda(2, verbose=False):
        torch.save({"there": torch.ones(2, device="cuda:1"), "here": torch.ones(3)}, file)
        file.seek(0)
        loaded = torch.load(file)
        assert loaded["there"].device == torch.device("cuda:1")
        assert loaded["here"].device.type == "cpu"
    file.seek(0)
    assert torch.load(file, map_location="cpu")["there"].tolist() == [1.0, 1.0]
    with par.emulate_cuda(1, verbose=False):
        file.seek(0)
        with pytest.raises(RuntimeError, match="Attempting to deserialize object on CUDA device 1"):
            torch.load(file)


# --- d2lpar itself --------------------------------------------------------------------------------


def test_d2lpars_own_functions_take_and_name_cuda_devices(cuda, capsys):
    x = torch.ones(500, 500, device="cuda:1")
    with par.record() as timeline:
        x @ x
        x.to("cuda:0")
    assert timeline.devices == ["host", "cuda:0", "cuda:1"] or timeline.devices == [
        "host",
        "cuda:1",
    ]
    assert [span.name for span in timeline.on(x.device, "compute")] == ["mm"]
    assert not any("vgpu" in span.name for span in timeline)
    timer = par.Timer("cuda:1")
    x @ x
    product_s = 2 * 500**3 / 15.7e12
    assert timer.stop() > product_s
    assert par.measure(lambda: x @ x, devices=cuda).median_s > product_s
    assert par.clock_name(cuda).startswith("simulated")
    assert par.devices(2) == cuda
    assert capsys.readouterr().out.startswith("cuda:0, cuda:1")
    parts = [torch.full((4,), i + 1.0, device=device) for i, device in enumerate(cuda)]
    par.collectives.all_reduce_ring(parts)
    assert [part.tolist() for part in parts] == [[3.0] * 4] * 2


def test_hazards_and_waits_name_cuda_devices(cuda):
    x = torch.ones(1000, 1000, device="cuda:1")
    side = torch.cuda.Stream("cuda:1")
    with par.hazards() as found, par.syncs() as waits:
        with torch.cuda.stream(side):
            y = x @ x
        y.sum().item()
    side.synchronize()  # so that later tests may have the memory
    assert "cuda:1" in str(found[0])
    assert "torch.cuda." in str(found[0])
    assert "vgpu" not in str(found)
    assert {wait.device for wait in waits} == {"cuda:1"}


def test_folders_keep_their_names_in_messages():
    def fails():
        with par.emulate_cuda(2, verbose=False):
            raise RuntimeError("on vgpu:1, in /d2lpar/vgpu/sim.py")

    with pytest.raises(RuntimeError, match=r"on cuda:1, in /d2lpar/vgpu/sim\.py"):
        fails()


class Seen(TorchFunctionMode):
    """Notes what is called, as a program's own mode may."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_gradients_are_read_past_our_function_mode_and_not_past_others(cuda, monkeypatch):
    parameter = nn.Parameter(torch.ones(2, device="cuda"))
    parameter.sum().backward()
    asked, theirs = [], CudaMode.__torch_function__

    def noting(mode, func, *args, **kwargs):
        asked.append(func)
        return theirs(mode, func, *args, **kwargs)

    monkeypatch.setattr(CudaMode, "__torch_function__", noting)
    assert parameter.grad.tolist() == [1, 1]
    assert not any(getattr(func, "__name__", "") == "__get__" for func in asked)
    with Seen() as seen:
        assert parameter.grad is not None
    assert seen.names == ["__get__"]


def test_dynamo_knows_torchs_functions_again_when_a_block_has_ended():
    rules = pytest.importorskip("torch._dynamo.trace_rules")
    with par.emulate_cuda(1, verbose=False):
        assert torch.ones in rules.get_torch_obj_rule_map()
    assert torch.ones in rules.get_torch_obj_rule_map()
