"""`torch.cuda.comm` inside `emulate_cuda`: views, versions, sparse and complex tensors, errors."""

import re

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.cuda import comm
from torch.nn.parallel._functions import Gather, Scatter

import d2lpar as par


@pytest.fixture(autouse=True)
def cuda():
    torch.set_num_threads(1)
    with par.emulate_cuda(2, verbose=False) as devices:
        yield devices


def two(*shape):
    return [torch.randn(*shape, device=f"cuda:{i}") for i in range(2)]


def test_a_scattered_part_that_stays_is_a_view():
    whole = torch.arange(12.0, device="cuda:0").reshape(4, 3)
    for dim in (0, 1):
        first, second = comm.scatter(whole, [0, 1], dim=dim)
        assert first.data_ptr() == whole.data_ptr()
        assert torch.equal(comm.gather([first, second], dim, 0), whole)


def test_a_scattered_batch_keeps_its_memory_format():
    images = torch.randn(4, 3, 5, 5, device="cuda:0").to(memory_format=torch.channels_last)
    for part in comm.scatter(images, [0, 1]):
        assert part.is_contiguous(memory_format=torch.channels_last)


def test_parts_of_one_buffer_count_their_writes_by_themselves():
    here = [torch.randn(4, 3, device="cuda:0"), torch.randn(5, device="cuda:0")]
    there = comm.broadcast_coalesced(here, [0, 1])[1]
    there[0].add_(1)
    assert [t._version for t in there] == [1, 0]
    assert not there[1]._is_view()
    assert torch.equal(there[1].cpu(), here[1].cpu())


@pytest.mark.filterwarnings("ignore:Using -1:FutureWarning")  # by torch's own backward pass
def test_gradients_go_through_scatter_and_gather():
    for device in ("cuda:0", "cpu"):
        x = torch.randn(4, 4, dtype=torch.double, device=device, requires_grad=True)
        assert gradcheck(lambda y: Scatter.apply((0, 1), None, 0, y), (x,))
    parts = [t.double().requires_grad_() for t in two(4, 4)]
    for target in (0, "cpu"):
        assert gradcheck(lambda a, b, to=target: Gather.apply(to, 0, a, b), parts)


class ComplexLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 2, dtype=torch.cfloat))

    def forward(self, x):
        return x @ self.weight


def test_complex_parameters_have_replicas():
    net = ComplexLinear().cuda()
    x = torch.randn(4, 2, dtype=torch.cfloat, device="cuda:0")
    outputs = nn.DataParallel(net, [0, 1])(x)
    assert torch.allclose(outputs, net(x))
    outputs.abs().sum().backward()
    gradient, net.weight.grad = net.weight.grad, None
    net(x).abs().sum().backward()
    assert torch.allclose(gradient, net.weight.grad, atol=1e-5)


ERRORS = {
    "Expected all input tensors to be CUDA tensors, but tensor at index 0 has device cpu": (
        lambda a, b: comm.gather([a.cpu(), b])
    ),
    "Expected all input tensors to have the same number of dimensions, but tensor at index 1": (
        lambda a, b: comm.gather([a, b[0]])
    ),
    "Input tensor at index 1 has invalid shape [4, 2], but expected [4, 3]": (
        lambda a, b: comm.gather([a, b[:, :2]])
    ),
    "Expected at least one tensor to gather from": lambda a, b: comm.gather([]),
    "Expected at least one device to scatter to": lambda a, b: comm.scatter(a, []),
    "Expected devices and chunk_sizes to be of same length, but got len(devices) = 2": (
        lambda a, b: comm.scatter(a, [0, 1], [1, 1, 2])
    ),
    "Expected the device associated with the stream at index 1 (was 0) to match": (
        lambda a, b: comm.scatter(a, [0, 1], streams=[None, torch.cuda.Stream(0)])
    ),
    "All tensors must be on devices[0]: 0": lambda a, b: comm.broadcast_coalesced([b], [0, 1]),
    "reduce_add expects destination to be on the same GPU": (
        lambda a, b: comm.reduce_add([a, a.clone()], destination=1)
    ),
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_are_in_torch_s_words(text):
    with pytest.raises(RuntimeError, match=re.escape(text)):
        ERRORS[text](*two(4, 3))


def test_places_for_results_are_refused():
    a, b = two(4, 3)
    for call in (
        lambda: comm.broadcast(a, out=[b]),
        lambda: comm.scatter(a, out=[b]),
        lambda: comm.gather([a, b], out=torch.empty(8, 3, device="cuda:0")),
    ):
        with pytest.raises(NotImplementedError, match=r"leave it out, and copy_\(\) what is"):
            call()


def test_sums_need_one_shape_and_devices():
    a, b = two(4, 3)
    with pytest.raises(ValueError, match="input 1 has invalid size: got 3, but expected 4x3"):
        comm.reduce_add([a, b[0]])
    with pytest.raises(AssertionError, match="input 1 is on CPU"):
        comm.reduce_add([a, b.cpu()])
