"""What torch offers for accelerators in general works on virtual GPUs, or refuses by name."""

import pytest
import torch

import d2lpar as par
from d2lpar.vgpu.torch_backend.module import streams


def test_the_device_module(gpus):
    module = torch.get_device_module("vgpu")
    assert module is torch.vgpu
    assert (module.device_count(), module.is_available(), module.current_device()) == (4, True, 0)
    assert module.get_device_name(1) == "V100-SXM2-16GB (virtual)"
    assert module.get_device_properties("vgpu:2").total_memory == int(15.78 * 2**30)
    for name in module.__all__:
        assert hasattr(module, name)
    with module.device(2):
        assert module.current_device() == 2
        with module.device(gpus[1]):
            assert module.current_device() == 1
        assert module.current_device() == 2
    assert module.current_device() == 0
    module.set_device(3)
    try:
        assert torch.zeros(1, device="vgpu").device == gpus[3]
    finally:
        module.set_device(0)
    with pytest.raises(ValueError, match="cpu doesn't match the current accelerator vgpu"):
        module.synchronize("cpu")


def test_the_accelerator_module(gpus):
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("vgpu")
    assert accelerator.device_count() == 4
    with accelerator.device_index(2):
        assert accelerator.current_device_index() == 2
    accelerator.synchronize()
    accelerator.synchronize(1)
    answered, refused = set(), {}
    for name in accelerator.__all__:
        if not hasattr(accelerator, name):
            continue
        try:
            getattr(accelerator, name)()
            answered.add(name)
        except NotImplementedError as error:
            refused[name] = str(error)
        except TypeError:  # it wants an argument
            answered.add(name)
    assert {"synchronize", "memory_allocated", "current_stream", "empty_cache"} <= answered
    assert refused == {
        name: f"torch.accelerator.{name} is not available on virtual GPUs" for name in refused
    }
    assert not refused.keys() & {"device_count", "set_stream"}


def test_the_accelerator_s_random_numbers(gpus):
    random = pytest.importorskip("torch.accelerator.random")
    torch.manual_seed(4)
    with torch.vgpu.device(1):
        torch.vgpu.manual_seed(5)
    assert (random.initial_seed(), random.initial_seed("vgpu:1")) == (4, 5)
    states = random.get_rng_state_all()
    assert [state[0] for state in states] == [4, 5, 4, 4]
    assert torch.equal(random.get_rng_state(1), torch.vgpu.get_rng_state(1))


def test_streams_and_events_are_torchs(gpus):
    stream = torch.Stream(device="vgpu:1")
    assert isinstance(stream, torch.Stream)
    assert (stream.device, stream.device_index) == (gpus[1], 1)
    assert stream == streams.Stream.existing(1, stream.stream_id)
    assert stream != torch.vgpu.Stream("vgpu:1")
    assert torch.vgpu.default_stream(1) == torch.vgpu.current_stream(1)
    with stream:
        assert torch.accelerator.current_stream() == stream
        assert torch.vgpu.current_device() == 1
    assert torch.vgpu.current_device() == 0
    with torch.vgpu.stream(None):
        assert torch.vgpu.current_stream() == torch.vgpu.default_stream()
    event = torch.Event(device="vgpu:0")
    assert isinstance(event, torch.Event)
    assert event.query()  # never recorded
    torch.ones(2, device=gpus[1]).record_stream(stream)


def test_events_measure_simulated_time(fresh_gpus):
    start, end = (torch.vgpu.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    a = torch.ones(1000, 1000, device=fresh_gpus[0])
    torch.vgpu.synchronize()
    with par.record() as timeline:
        start.record()
        a @ a
        end.record()
    (product,) = timeline.on(fresh_gpus[0], "compute")
    begin = timeline.start_s
    assert not end.query()
    with pytest.raises(RuntimeError, match=r"not ready: .* synchronize"):
        start.elapsed_time(end)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) == pytest.approx((product.end_s - begin) * 1e3)
    with pytest.raises(ValueError, match="enable_timing"):
        torch.vgpu.Event().elapsed_time(end)


def test_pinned_memory(gpus):
    x = torch.arange(3.0)
    pinned = x.pin_memory()
    assert (pinned.is_pinned(), x.is_pinned()) == (True, False)
    assert pinned[1:].is_pinned()
    assert pinned.pin_memory() is pinned
    pinned[0] = 7
    assert x[0] == 0
    assert x.pin_memory("vgpu").is_pinned()
    assert torch.ones(2, device=gpus[0]).to("cpu", non_blocking=True).is_pinned()
    assert not torch.ones(2, device=gpus[0]).is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin a tensor on vgpu:0"):
        torch.ones(2, device=gpus[0]).pin_memory()


@pytest.mark.parametrize(
    "refused",
    [
        lambda: torch.Event(device="vgpu:0", interprocess=True),
    ],
)
def test_what_is_not_there_raises(gpus, refused):
    with pytest.raises(NotImplementedError):
        refused()


@pytest.mark.parametrize("name", ["data", "grad"])
def test_an_attribute_that_is_ours_looks_like_torchs_to_dynamo(gpus, name):
    getter = getattr(torch.Tensor, name).__get__  # torch 2.11 reads both while it is imported
    assert getter.__self__.__objclass__ is torch._C.TensorBase
    assert getter.__self__.__name__ == name


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32])
def test_histograms_are_of_whole_numbers_too(gpus, dtype):
    """As CUDA has them, and mixtures of experts count them."""
    values = torch.tensor([0, 1, 2, 2, 3, 3, 3], dtype=dtype)
    found = torch.histc(values.to(gpus[1]), bins=4, min=0, max=4)
    assert found.dtype == dtype
    assert found.tolist() == torch.histc(values.float(), bins=4, min=0, max=4).tolist()


def test_what_is_refused_has_changed_nothing(gpus):
    values = torch.ones(2, 2, dtype=torch.long, device=gpus[0])
    with pytest.raises(NotImplementedError, match="CUDA"):
        values.addmm_(values, values)
    assert values.tolist() == [[1, 1], [1, 1]]
    assert (values[:0] @ values).shape == (0, 2)  # of nothing CUDA computes nothing
