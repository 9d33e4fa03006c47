"""`torch.cuda`, torch.nn.parallel and automatic mixed precision inside `emulate_cuda`."""

import copy
import functools
import pickle
import traceback

import pytest
import torch
from torch import nn
from torch.cuda import comm
from torch.testing._internal.two_tensor import TwoTensor

import d2lpar as par


@pytest.fixture(autouse=True)
def cuda():
    torch.set_num_threads(1)
    with par.emulate_cuda(2, "2x-v100-textbook", verbose=False) as devices:
        yield devices


def test_devices():
    assert torch.cuda.is_available()
    assert torch.cuda.is_initialized()
    torch.cuda.init()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_name(1) == "V100-SXM2-16GB (virtual)"
    assert torch.cuda.get_device_capability("cuda:1") == (7, 0)
    found = torch.cuda.get_device_properties(0)
    assert (found.major, found.minor, found.multi_processor_count) == (7, 0, 80)
    assert found.total_memory == int(15.78 * 2**30)
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.cuda.is_bf16_supported()
    assert not torch.cuda.is_bf16_supported(including_emulation=False)
    assert torch.backends.cuda.is_built()
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.get_device_module("cuda") is torch.cuda
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == torch.cuda.device_count()


def test_what_is_not_known_of_an_accelerator_is_said_when_it_is_asked_for():
    from d2lpar.vgpu.cuda.torch_cuda.capability import CudaDeviceProperties

    found = CudaDeviceProperties("something else", 10**9, None)
    assert found.total_memory == 10**9
    with pytest.raises(NotImplementedError, match="something else is not known"):
        _ = found.major


@pytest.mark.parametrize(
    "name",
    [n for n, gpu in par.machines.ACCELERATORS.items() if gpu.architecture not in ("", "cdna3")],
)
def test_the_catalogue_s_gpus_have_a_compute_capability(name):
    from d2lpar.machines.compute_capability import known_capability

    assert known_capability(par.machines.ACCELERATORS[name])


def test_memory():
    torch.cuda.reset_peak_memory_stats(1)
    before = torch.cuda.memory_allocated(1)
    x = torch.empty(10**6, device="cuda:1")
    assert torch.cuda.memory_allocated("cuda:1") - before == pytest.approx(4e6, rel=1e-3)
    del x
    assert torch.cuda.memory_allocated(1) == before
    assert torch.cuda.max_memory_allocated(torch.device("cuda:1")) >= before + 4_000_000
    assert torch.cuda.memory_reserved(1) >= before
    free, total = torch.cuda.mem_get_info(1)
    assert 0 < free <= total == int(15.78 * 2**30)
    stats = torch.cuda.memory_stats(1)
    assert stats["allocated_bytes.all.current"] == before
    assert "memory summary, device ID 1 " in torch.cuda.memory_summary("cuda:1", abbreviated=True)
    assert "GPU reserved segments" in torch.cuda.memory_summary()
    torch.cuda.empty_cache()


def test_old_names_say_that_they_are_old():
    with pytest.warns(FutureWarning, match="resets /all/ peak memory stats"):
        torch.cuda.reset_max_memory_allocated(1)
    with pytest.warns(FutureWarning, match="renamed to `torch.cuda.memory_reserved`"):
        assert torch.cuda.memory_cached(1) == torch.cuda.memory_reserved(1)


def test_random_numbers():
    def draw(i=0):
        return torch.rand(4, device=f"cuda:{i}")

    torch.cuda.manual_seed(3)
    first = draw()
    state = torch.cuda.get_rng_state()
    second = draw()
    torch.cuda.set_rng_state(state)
    assert torch.equal(draw(), second)
    torch.cuda.manual_seed_all(3)
    assert torch.equal(draw(), first)
    states = torch.cuda.get_rng_state_all()
    assert len(states) == 2
    on_1 = draw(1)
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(draw(1), on_1)
    torch.manual_seed(3)
    assert torch.equal(draw(), first)


def test_streams_and_events():
    side = torch.cuda.Stream(device="cuda:1", priority=-1)
    assert isinstance(side, torch.cuda.Stream)
    assert side.device == torch.device("cuda:1")
    assert "torch.cuda.Stream device=cuda:1" in repr(side)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert isinstance(begin, torch.cuda.Event)
    x = torch.rand(300, 300, device="cuda:1")
    with torch.cuda.stream(side):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == side
        side.wait_stream(torch.cuda.default_stream(1))
        begin.record()
        for _ in range(100):
            x @ x
        end.record()
    x.record_stream(side)
    assert torch.cuda.current_stream("cuda:1") == torch.cuda.default_stream("cuda:1") != side
    assert not end.query()
    torch.cuda.current_stream(1).wait_event(end)
    end.synchronize()
    assert end.query()
    assert side.query()
    assert begin.elapsed_time(end) > 100 * 2 * 300**3 / 15.7e12 * 1e3
    with torch.cuda.stream(None):
        assert torch.cuda.current_device() == 0
    assert isinstance(torch.Stream(device="cuda:1"), torch.cuda.Stream)
    assert torch.Event(device="cuda") is not None


def test_communication():
    x = torch.arange(8.0).cuda()
    for devices in ([0, 1], ["cuda:0", torch.device("cuda:1")]):
        copies = comm.broadcast(x, devices)
        assert [str(copy.device) for copy in copies] == ["cuda:0", "cuda:1"]
    assert copies[0] is x
    parts = comm.scatter(x, [0, 1], chunk_sizes=[3, 5])
    assert [len(part) for part in parts] == [3, 5]
    assert torch.equal(comm.gather(parts, destination="cuda:0"), x)
    assert comm.gather(parts, destination="cpu").device.type == "cpu"
    assert torch.equal(comm.reduce_add(copies, destination=1).cpu(), 2 * x.cpu())
    assert comm.broadcast_coalesced([x, x], [0, 1])[1][0].device == torch.device("cuda:1")


def test_the_parts_of_data_parallel():
    net = nn.Linear(3, 2).cuda()
    inputs = torch.rand(6, 3)
    shards = nn.parallel.scatter(inputs, [0, 1])
    assert [str(shard.device) for shard in shards] == ["cuda:0", "cuda:1"]
    replicas = nn.parallel.replicate(net, ["cuda:0", "cuda:1"])
    outputs = nn.parallel.gather(nn.parallel.parallel_apply(replicas, shards), "cuda:1")
    assert outputs.device == torch.device("cuda:1")
    expected = net.cpu()(inputs)
    torch.testing.assert_close(outputs.cpu(), expected)
    net.cuda()
    at_once = nn.parallel.data_parallel(net, inputs.cuda(), device_ids=[0, 1])
    torch.testing.assert_close(at_once.cpu(), expected)


def test_data_parallel_may_begin_elsewhere():
    net = nn.DataParallel(nn.Linear(3, 2).cuda(1), device_ids=["cuda:1", 0], output_device=0)
    outputs = net(torch.rand(4, 3, device="cuda:1"))
    assert outputs.device == torch.device("cuda:0")
    outputs.sum().backward()
    assert net.module.weight.grad.device == torch.device("cuda:1")


def test_autocast_by_all_its_names():
    net, x = nn.Linear(4, 4).cuda(), torch.rand(2, 4, device="cuda")
    assert not torch.is_autocast_enabled()
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert net(x).dtype is torch.get_autocast_dtype("cuda") is torch.float16
        with torch.amp.autocast("cuda", enabled=False):
            assert net(x).dtype is torch.float32
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert net(x).dtype is torch.bfloat16
    with pytest.warns(FutureWarning), torch.cuda.amp.autocast():
        assert net(x).dtype is torch.float16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(x).dtype is torch.float32


def test_autocast_reaches_replicas():
    net = nn.DataParallel(nn.Linear(4, 4).cuda())
    with torch.autocast("cuda"):
        assert net(torch.rand(4, 4)).dtype is torch.float16


def test_functions_of_ones_own_choose_their_precision():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, a, b):
            assert not torch.is_autocast_enabled("cuda")
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            return gradient @ b.t(), a.t() @ gradient

    a, b = (torch.rand(3, 3, device="cuda", requires_grad=True) for _ in range(2))
    with torch.autocast("cuda"):
        out = Product.apply(a.half(), b)
    assert out.dtype is torch.float32
    out.sum().backward()
    assert a.grad.is_cuda


def test_what_events_and_types_say():
    event = torch.cuda.Event()
    assert repr(event) == "<torch.cuda.Event uninitialized>"
    event.record()
    assert repr(event).startswith("<torch.cuda.Event 0x")
    assert event.device == torch.device("cuda:0")
    assert torch.cuda.FloatTensor([1, 2], device="cuda:1").device == torch.device("cuda:1")


@pytest.mark.parametrize(("fraction", "error"), [(1, TypeError), (1.5, ValueError)])
def test_fractions_of_memory_are_checked_as_torch_does(fraction, error):
    with pytest.raises(error, match="Invalid"):
        torch.cuda.set_per_process_memory_fraction(fraction)


def test_the_version_of_nccl_is_known_for_torch_puts_it_into_errors():
    assert len(torch.cuda.nccl.version()) >= 2


def test_the_version_of_cudnn_is_that_of_the_build():
    """Newer ones do not support the V100, and torch says so only when it meets one."""
    version = torch.backends.cudnn.version()
    assert version is None or version > 8000


def test_cudnn_takes_what_it_takes_on_cuda():
    x = torch.ones(2, device="cuda")
    in_build = torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.is_acceptable(x) == in_build
    assert torch.backends.cudnn.is_acceptable(x.half()) == in_build
    assert not torch.backends.cudnn.is_acceptable(x.long())
    assert not torch.backends.cudnn.is_acceptable(x.cpu())
    with torch.backends.cudnn.flags(enabled=False):
        assert not torch.backends.cudnn.is_acceptable(x)


def test_recurrent_networks_keep_their_weights_where_they_are():
    x = torch.randn(3, 2, 4)
    net = nn.LSTM(4, 5)
    torch.testing.assert_close(net.cuda()(x.cuda())[0].cpu(), net.cpu()(x)[0])


def test_properties_tell_devices_apart_and_say_what_is_not_known():
    first, second = (torch.cuda.get_device_properties(i) for i in range(2))
    again = torch.cuda.get_device_properties(0)
    assert str(first.uuid) == str(again.uuid) != str(second.uuid)
    assert len(first.uuid.bytes) == 16
    assert copy.deepcopy(first) == pickle.loads(pickle.dumps(first)) == first != second
    with pytest.raises(AttributeError, match=r"the clock_rate of V100.* is not emulated"):
        _ = first.clock_rate
    assert getattr(first, "memory_clock_rate", None) is None


@pytest.mark.parametrize("options", [{}, {"use_reentrant": True}, {"use_reentrant": False}])
def test_dropout_in_checkpoints_forgets_the_same_when_it_is_computed_again(options):
    """The mask is the gradient of its sum, and what it makes of ones."""
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="cuda", requires_grad=True)
    y = x
    for _ in range(2):
        drop = functools.partial(nn.functional.dropout, p=0.3)
        y = checkpoint(drop, y, **options) if options else drop(y)
    y.sum().backward()
    assert y.count_nonzero() > 0
    assert torch.equal(x.grad, y)


def test_memory_is_shared_with_no_other_library():
    x = torch.rand(2, device="cuda:1")
    with pytest.raises(BufferError, match="the memory of cuda:1"):
        torch.from_dlpack(x)
    with pytest.raises(NotImplementedError, match="to_dlpack is not emulated"):
        torch.utils.dlpack.to_dlpack(x)


def test_sleep_keeps_a_stream_busy_for_cycles_of_the_clock():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(1_380_000)  # a V100 has 1.38 GHz: 14.1 TFLOP/s, 80 x 64 lanes
    assert not torch.cuda.current_stream().query()
    end.record()
    end.synchronize()
    rate = par.machines.ACCELERATORS["V100-SXM2-16GB"].rate("float32")
    assert begin.elapsed_time(end) == pytest.approx(1380 / (rate / (2 * 80 * 64) / 1e6), rel=0.05)


def test_a_sleeping_stream_leaves_the_device_to_others():
    """The kernel has one thread; programs stand for communication by it, and expect an overlap."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(13_800_000)
    torch.cuda._sleep(13_800_000)
    torch.cuda.current_stream().wait_stream(side)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(10, rel=0.1)


def test_streams_and_events_have_numbers_for_libraries():
    first, second = torch.cuda.Stream(0), torch.cuda.Stream(1)
    assert len({first._cdata, second._cdata, torch.cuda.default_stream()._cdata}) == 3
    assert first._cdata == torch.cuda.Stream.existing(0, first.stream_id)._cdata
    event = torch.cuda.Event()
    assert event.cuda_event == 0
    event.record()
    assert repr(event) == f"<torch.cuda.Event {event.cuda_event:#x}>"


def test_a_fraction_of_memory_can_be_read():
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    torch.cuda.set_per_process_memory_fraction(0.5, "cuda:1")
    assert torch.cuda.get_per_process_memory_fraction(1) == 0.5
    torch.cuda.set_per_process_memory_fraction(1.0, 1)
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.set_per_process_memory_fraction(0.5, "cpu")


def test_what_becomes_of_compiling_is_said_once(capsys):
    for _ in range(2):
        f = torch.compile(lambda x: torch.sin(x) + 1)
        f(torch.ones(3, device="cuda"))
    said = capsys.readouterr().err
    assert said.count("torch.compile") == 1
    assert "nothing is compiled" in said


def test_non_blocking_pays_for_small_pageable_tensors():
    """The first experiment of PyTorch's tutorial on pinned memory, whose text reports a gain."""
    tensors = [torch.ones(1000) for _ in range(200)]

    def ms(**options):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for tensor in tensors:
            tensor.to("cuda", **options)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    assert ms(non_blocking=True) < 0.8 * ms()


def test_functions_below_torch_cuda():
    side = torch.cuda.Stream(1)
    before = torch._C._cuda_exchangeDevice(1)
    torch._C._cuda_setStream(side.stream_id, side.device_index, side.device_type)
    assert torch.cuda.current_stream() == side
    assert torch._C._cuda_getCurrentStream(1)[:2] == (side.stream_id, 1)
    assert torch._C._cuda_getCurrentRawStream(1) == side.cuda_stream
    key = {"stream_id": side.stream_id, "device_index": 1, "device_type": side.device_type}
    assert torch.cuda.Stream(**key) == side
    assert torch._C._cuda_getDefaultStream(1)[0] == 0
    torch._C._cuda_setDevice(before)
    assert torch._C._cuda_getDevice() == torch.cuda.current_device() == 0
    torch._C._cuda_synchronize()
    assert torch._C._cuda_getDeviceCount() == 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_memory_functions_take_the_context_manager_of_a_device():
    x = torch.ones(1000, device="cuda:1")
    assert torch.cuda.memory_allocated(torch.cuda.device(1)) >= x.nbytes
    assert torch.cuda.get_allocator_backend() == "native"


def test_a_checkpoint_of_more_devices_says_how_to_load_it(tmp_path):
    torch.save(torch.ones(2, device="cuda:1"), tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes().replace(b"cuda:1", b"cuda:7")
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(RuntimeError, match=r"on CUDA device 7 .* map_location"):
        torch.load(tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", map_location="cuda:0").device == torch.device("cuda:0")


def test_objects_on_their_way_have_checksums():
    hash_tensors = torch._C._distributed_c10d._hash_tensors
    x = torch.arange(8, dtype=torch.float16)
    assert hash_tensors([x.cuda()]) == hash_tensors([x.clone().cuda()])
    assert hash_tensors([x.cuda()]) != hash_tensors([(x + 1).cuda()])


def test_default_generators_are_the_random_numbers_of_each_device(cuda):
    generators = torch.cuda.default_generators
    assert [g.device for g in generators] == [torch.device("cuda", i) for i in range(2)]
    torch.cuda.manual_seed_all(7)
    begin = generators[1].get_state()
    first = torch.rand(3, device="cuda:1")
    assert not generators[1].get_state().equal(begin)
    assert generators[0].get_state().equal(begin)
    generators[1].set_state(begin)
    assert torch.rand(3, device="cuda:1", generator=generators[1]).equal(first)
    assert generators[0].manual_seed(11).device == torch.device("cuda", 0)
    assert (generators[0].initial_seed(), generators[1].initial_seed()) == (11, 7)
    torch.cuda.manual_seed(11)
    again = torch.rand(3, device="cuda:0")
    generators[0].manual_seed(11)
    assert torch.empty(3, device="cuda:0").uniform_(generator=generators[0]).equal(again)
    with pytest.raises(IndexError):
        generators[2]


@pytest.mark.parametrize(
    "name", ["_cuda_getCheckpointState", "_cuda_init", "_cuda_cudaCachingAllocator_enable"]
)
@pytest.mark.skipif(not hasattr(torch._C, "_cuda_init"), reason="this build of torch has no CUDA")
def test_what_asks_the_driver_is_refused_by_its_name(name):
    """Without a driver the first of them ended the process."""
    with pytest.raises(NotImplementedError, match=f"torch._C.{name} is not emulated: it asks CUDA"):
        getattr(torch._C, name)(0, (0, 0))


def test_guards_of_torch_s_own_choose_a_device():
    with torch.cuda._DeviceGuard(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda._maybe_exchange_device(1) == 0
    assert torch.cuda._exchange_device(0) == 1


def test_the_time_between_events_of_two_devices_is_refused():
    events = []
    for device in range(2):
        with torch.cuda.device(device):
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            events[-1].synchronize()
    with pytest.raises(RuntimeError, match="one event was recorded on cuda:0, the other on cuda:1"):
        events[0].elapsed_time(events[1])


def test_what_makes_the_host_wait_is_warned_of_or_refused():
    x = torch.ones(3, device="cuda")
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.cuda.set_sync_debug_mode("warn")
    for wait in (x[0].item, x.nonzero, x.cpu, torch.cuda.current_stream().synchronize):
        with pytest.warns(UserWarning, match="^called a synchronizing CUDA operation$"):
            wait()
    torch.cuda.set_sync_debug_mode("error")
    for wait in (x[0].item, x.cpu, lambda: torch.ones(3).cuda()):
        with pytest.raises(RuntimeError, match=r"^called a synchronizing CUDA operation$"):
            wait()
    torch.cuda.synchronize()
    torch.cuda.current_stream().record_event().synchronize()
    x.to("cpu", non_blocking=True)
    torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    torch.ones(3).to("cuda", non_blocking=True)
    torch.cuda.set_sync_debug_mode("default")
    assert x.sum().item() == 3


def test_other_modes_are_refused():
    with pytest.raises(RuntimeError, match="expected one of `default`, `warn`, `error`"):
        torch.cuda.set_sync_debug_mode("all")
    with pytest.raises(RuntimeError, match="debug_mode is 0, 1 or 2, not 3"):
        torch.cuda.set_sync_debug_mode(3)


def test_a_profiler_is_told_where_to_begin_and_to_end():
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaProfilerStart())
    with torch.cuda.profiler.profile():
        torch.ones(2, device="cuda")
    assert runtime.cudaProfilerStop() == runtime.cudaError.success
    assert runtime.cudaMemGetInfo(1) == torch.cuda.mem_get_info(1)
    for number, text in {2: "out of memory", 719: "launch failure", 9999: "unrecognized"}.items():
        with pytest.raises(torch.cuda.CudaError, match=text):
            torch.cuda.check_error(number)


def test_what_other_libraries_would_share_is_refused():
    """Streams of theirs, and memory without a tensor: nothing else runs on these devices."""
    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.ExternalStream is not emulated"):
        torch.cuda.ExternalStream(0)
    with pytest.raises(NotImplementedError, match=r"torch\.cuda\.caching_allocator_alloc"):
        torch.cuda.caching_allocator_alloc(1)
    with pytest.raises(NotImplementedError, match="leave out external=True"):
        torch.cuda.Event(external=True)


def test_what_is_asked_of_the_driver_and_known():
    assert torch.cuda.get_gencode_flags() == "-gencode compute=compute_70,code=sm_70"
    x = torch.empty(2 * 2**20, dtype=torch.uint8, device="cuda:1")
    free, total = torch.cuda.mem_get_info(1)
    assert torch.cuda.device_memory_used(1) == total - free >= 2 * 2**20
    for ask in (torch.cuda.utilization, torch.cuda.clock_rate):
        with pytest.raises(NotImplementedError, match="no such sensor here"):
            ask()
    del x


ON_DEVICE = {
    "factory": lambda g: torch.rand(2, device="cuda", generator=g),
    "number": lambda g: torch.randperm(2, device=1, generator=g),
    "method": lambda g: torch.ones(2, device="cuda:1").uniform_(generator=g),
    "function": lambda g: torch.multinomial(torch.ones(2).cuda(), 1, generator=g),
    "initialization": lambda g: nn.init.normal_(torch.ones(2).cuda(), generator=g),
}


@pytest.mark.parametrize("name", ON_DEVICE)
def test_a_device_draws_from_no_generator_of_the_host(name):
    expected = "Expected a 'cuda' device type for generator but found 'cpu'"
    with pytest.raises(RuntimeError, match=expected):
        ON_DEVICE[name](torch.Generator())
    assert len(ON_DEVICE[name](torch.Generator("cuda:1")))


def test_the_host_draws_from_no_generator_of_a_device():
    generator, host = torch.Generator("cuda"), torch.Generator()
    expected = "Expected a 'cpu' device type for generator but found 'cuda'"
    for draw in (
        torch.rand,
        torch.randperm,
        lambda n, generator: torch.ones(n).bernoulli_(generator=generator),
    ):
        with pytest.raises(RuntimeError, match=expected):
            draw(3, generator=generator)
        assert len(draw(3, generator=host)) == 3
    loader = torch.utils.data.DataLoader(range(4), shuffle=True, generator=host)
    assert sorted(int(x) for x in loader) == [0, 1, 2, 3]


def test_statistics_of_equal_batches_are_gathered():
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)).cuda()
    parts = [torch.batch_norm_stats(half, 1e-5) for half in x.chunk(2)]
    mean, invstd = (torch.stack(each) for each in zip(*parts, strict=True))
    found = torch.batch_norm_gather_stats(x, mean, invstd, None, None, 0.1, 1e-5, 10)
    for got, expected in zip(found, torch.batch_norm_stats(x, 1e-5), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_lazy_module_must_be_initialized_before_it_has_replicas():
    lazy = nn.LazyLinear(2).to(0)
    assert lazy.weight.is_cuda
    with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
        nn.DataParallel(lazy)(torch.ones(4, 4, device=0))


def seed_and_offset(state):
    return state[:16].view(torch.int64).tolist()


def test_random_numbers_have_a_seed_and_an_offset_as_on_cuda():
    torch.cuda.manual_seed(7)
    assert seed_and_offset(torch.cuda.get_rng_state()) == [7, 0]
    torch.rand(5, device="cuda")
    # 80 multiprocessors have 640 blocks of 256 threads, which draw 4 numbers a call.
    torch.rand(640 * 256 * 4, device="cuda")
    assert seed_and_offset(torch.cuda.get_rng_state()) == [7, 8]
    torch.nn.functional.dropout(torch.ones(640 * 256 * 4 + 1, device="cuda"))
    state = torch.cuda.get_rng_state()
    assert seed_and_offset(state) == [7, 16]
    expected = torch.rand(3, device="cuda")
    torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def test_states_that_cuda_has_saved_are_taken():
    saved = torch.tensor([5, 0]).view(torch.uint8)
    torch.cuda.set_rng_state(saved)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.rand(3, device="cuda").cpu(), expected)
    later = torch.tensor([5, 400]).view(torch.uint8)
    draws = []
    for _ in range(2):
        torch.cuda.set_rng_state(later)
        draws.append(torch.rand(3, device="cuda"))
    assert torch.equal(*draws)
    state = torch.cuda.get_rng_state()
    state[8:16] = torch.tensor([400]).view(torch.uint8)  # as programs do that count offsets
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), draws[0])
    state[8:16] = torch.tensor([3]).view(torch.uint8)
    with pytest.raises(RuntimeError, match="must be a multiple of 4"):
        torch.cuda.set_rng_state(state)
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.cuda.set_rng_state(state[:20])
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        torch.cuda.set_rng_state(state.float())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_generators_are_copied_with_their_state(again):
    generator = torch.Generator("cuda:1").manual_seed(4)
    torch.rand(3, device="cuda:1", generator=generator)
    copied = again(generator)
    assert copied.device == torch.device("cuda:1")
    assert seed_and_offset(copied.get_state()) == [4, 4]
    draws = [torch.randn(3, device="cuda:1", generator=g) for g in (generator, copied)]
    assert torch.equal(*draws)
    assert torch.cuda.default_generators[1].get_state() is not None


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_of_types_are_made_converted_and_saved(tmp_path):
    made = torch.cuda.IntStorage(3).fill_(2)
    assert isinstance(made, torch.cuda.IntStorage)
    assert (made.get_device(), made.tolist()) == (0, [2, 2, 2])
    moved = torch.arange(3.0).storage().cuda(1)
    assert moved.clone().get_device() == moved.get_device() == 1
    assert isinstance(moved.double(), torch.cuda.DoubleStorage)
    assert isinstance(moved.cpu(), torch.FloatStorage)
    x = torch.arange(3.0, device="cuda:1")
    torch.save([x, x.storage()], tmp_path / "both.pt")
    tensor, storage = torch.load(tmp_path / "both.pt", weights_only=False)
    tensor.fill_(5)
    assert (storage.get_device(), storage.tolist()) == (1, [5, 5, 5])


def test_tensors_that_wrap_others_say_where_these_are():
    weight = torch.ones(2, 2, device="cuda:1")
    wrapped = TwoTensor(weight, weight.clone())
    parameter = nn.Parameter(wrapped + wrapped)
    for tensor in (wrapped, parameter):
        assert (tensor.device, tensor.is_cuda) == (torch.device("cuda:1"), True)
    assert torch.zeros(1, device=wrapped.device).device == torch.device("cuda:1")
    apart = wrapped.cpu()
    assert (apart.device, apart.is_cuda) == (torch.device("cpu"), False)


def test_texts_of_autograd_name_types_of_tensors_as_cuda_does():
    for dtype, name in ((torch.float32, "FloatTensor"), (torch.float16, "HalfTensor")):
        y = torch.ones(8, device="cuda", dtype=dtype, requires_grad=True).exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match=rf"\[torch\.cuda\.{name} \[8\]\]"):
            y.sum().backward()


def test_out_of_memory_is_torchs_error_by_name_also_after_a_pickle():
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried") as caught:
        torch.empty(10**12, device="cuda")
    again = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, again):
        last = traceback.format_exception_only(error)[0]
        assert last.startswith("torch.OutOfMemoryError: ")
    assert again.asked_bytes == caught.value.asked_bytes


@pytest.mark.filterwarnings("error")
def test_autocast_takes_any_type_of_data_as_cudas_does():
    """torch asks devices of other makers which types they have, and warns of others."""
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda", dtype=torch.float64):
        assert (x @ x).dtype == torch.float64
