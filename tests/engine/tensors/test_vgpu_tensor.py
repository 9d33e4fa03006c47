"""A tensor on a virtual GPU is what a CUDA user knows; the CPU is the oracle for values."""

import copy
import functools
import pickle
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import d2lpar as par


def on_host(value):
    return value.detach().cpu()


# --- devices and memory of their own --------------------------------------------------------------


def test_a_copy_to_another_device_shares_nothing(gpus):
    a = torch.ones(3, device=gpus[0])
    b = a.to(gpus[1])
    a += 1
    assert (b.device, b.tolist()) == (gpus[1], [1, 1, 1])
    assert a.tolist() == [2, 2, 2]


def test_a_copy_from_and_to_the_host_shares_nothing(gpus):
    host = torch.ones(3)
    there = host.to(gpus[0])
    back = there.cpu()
    host += 1
    there += 4
    assert (there.tolist(), back.tolist()) == ([5, 5, 5], [1, 1, 1])
    array = np.ones(3)
    there = torch.as_tensor(array, device=gpus[0])
    array[:] = 7
    assert there.tolist() == [1, 1, 1]


def test_to_the_same_device_copies_nothing_unless_asked(gpus):
    a = torch.ones(3, device=gpus[1])
    assert a.to(gpus[1]) is a
    assert a.to("vgpu:1", torch.float32) is a
    twin = a.to(gpus[1], copy=True)
    twin.zero_()
    assert a.tolist() == [1, 1, 1]


def test_to_changes_device_and_type_at_once(gpus):
    a = torch.tensor([1.5, 2.5]).to(gpus[2], torch.int32)
    assert (a.device, a.dtype, a.tolist()) == (gpus[2], torch.int32, [1, 2])
    assert a.to("cpu", torch.float64).dtype == torch.float64


def test_to_meta_is_on_meta(gpus):
    assert torch.ones(2, device=gpus[0]).to("meta").is_meta


def test_copy_goes_between_all_devices_and_types(gpus):
    source = torch.arange(4.0)
    first = torch.zeros(4, device=gpus[0]).copy_(source)
    second = torch.zeros(4, device=gpus[1], dtype=torch.float64).copy_(first)
    assert torch.zeros(4).copy_(second).tolist() == [0, 1, 2, 3]
    first[1:3].copy_(second[2:])
    assert first.tolist() == [0, 2, 3, 3]
    assert first.copy_(torch.tensor(5.0)).tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: a.add_(b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.stack([a, b]),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: F.linear(a, b),
        lambda a, b: F.conv1d(a[None, None], b[None, None]),
        lambda a, b: F.embedding(a.long(), b[:, None]),
        lambda a, b: F.cross_entropy(a[None], b.softmax(0)[None]),
        lambda a, b: F.batch_norm(a[:, None], b[:1], b[:1].clone()),
        lambda a, b: torch.addmm(a, a[None].T, b[None]),
        lambda a, b: a.index_put_((torch.tensor([0]),), b[:1]),
    ],
)
@pytest.mark.parametrize("other", ["vgpu:1", "cpu"])
def test_mixing_devices_raises_and_names_both(gpus, mix, other):
    a, b = torch.ones(3, device=gpus[0]), torch.ones(3, device=other)
    with pytest.raises(RuntimeError, match="same device") as error:
        mix(a, b)
    assert "vgpu:0" in str(error.value)
    assert other in str(error.value)


def test_an_index_may_not_come_from_another_device(gpus):
    with pytest.raises(RuntimeError, match=r"vgpu:0.*vgpu:1"):
        torch.ones(3, device=gpus[0])[torch.tensor([1], device=gpus[1])]


def test_the_same_mixtures_work_on_one_device(gpus):
    a = torch.ones(3, device=gpus[0])
    assert (a + a).tolist() == [2, 2, 2]
    assert torch.cat([a, a]).device == gpus[0]


def test_scalars_and_indices_of_the_host_join_in(gpus):
    a = torch.arange(3.0, device=gpus[1])
    assert (a + torch.tensor(2.0)).tolist() == [2, 3, 4]
    assert (torch.tensor(2.0) * a).tolist() == [0, 2, 4]
    assert a[torch.tensor([2, 0])].tolist() == [2, 0]
    a[torch.tensor([0])] = 9.0
    assert a.tolist() == [9, 1, 2]


def test_a_tensor_of_the_host_is_not_indexed_by_one_of_a_device(gpus):
    with pytest.raises(RuntimeError, match=r"vgpu:0.*cpu"):
        torch.arange(3.0)[torch.tensor([1], device=gpus[0])]


def test_every_way_to_make_a_tensor_knows_its_device(gpus):
    device = gpus[2]
    made = [
        torch.empty(2, device=device),
        torch.zeros(2, device=device),
        torch.full((2,), 3.0, device=device),
        torch.tensor([1.0, 2.0], device=device),
        torch.as_tensor(np.ones(2), device=device),
        torch.arange(2, device=device),
        torch.linspace(0, 1, 2, device=device),
        torch.eye(2, device=device),
        torch.rand(2, device=device),
        torch.randint(3, (2,), device=device),
        torch.ones(2).vgpu(2),
        torch.ones(2).to("vgpu:2"),
        torch.zeros_like(torch.ones(2), device=device),
        torch.ones(2, device=device).new_zeros(2),
        torch.empty_strided((2, 2), (1, 2), device=device),
    ]
    assert {t.device for t in made} == {device}
    assert {t.get_device() for t in made} == {2}
    assert all(t.is_vgpu and not t.is_cpu for t in made)


def test_the_type_says_the_device(gpus):
    assert torch.ones(1, device=gpus[0]).type() == "torch.vgpu.FloatTensor"


def test_default_devices(gpus):
    with torch.device("vgpu:1"):
        assert torch.randn(3).device == torch.tensor([1]).device == gpus[1]
        assert nn.Linear(2, 2).weight.device == gpus[1]
    torch.set_default_device("vgpu:2")
    try:
        assert torch.arange(3).device == gpus[2]
    finally:
        torch.set_default_device(None)
    with torch.vgpu.device(3):
        assert torch.zeros(1, device="vgpu").device == gpus[3]
        assert torch.zeros(1).vgpu().device == gpus[3]
    assert torch.zeros(1, device="vgpu").device == gpus[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, device="vgpu:99"),
        lambda: torch.ones(2).to("vgpu:99"),
        lambda: torch.tensor([1.0], device="vgpu:99"),
        lambda: nn.Linear(2, 2).to("vgpu:99"),
        lambda: torch.vgpu.synchronize(99),
    ],
)
def test_a_device_that_does_not_exist(gpus, make):
    with pytest.raises(RuntimeError, match="there is no vgpu:99"):
        make()


# --- looking at values ----------------------------------------------------------------------------


def test_printing_shows_values_device_and_graph(gpus):
    a = torch.tensor([1.0, 2.0], device=gpus[1])
    assert repr(a) == "tensor([1., 2.], device='vgpu:1')"
    assert str(a) == f"{a}" == repr(a)
    a.requires_grad_()
    assert repr(a) == "tensor([1., 2.], device='vgpu:1', requires_grad=True)"
    assert repr(a * 2) == "tensor([2., 4.], device='vgpu:1', grad_fn=<MulBackward0>)"
    parameter = nn.Parameter(torch.zeros(1, device=gpus[0]))
    assert repr(parameter) == (
        "Parameter containing:\ntensor([0.], device='vgpu:0', requires_grad=True)"
    )
    assert "..." in repr(torch.zeros(5000, device=gpus[0]))
    assert "dtype=torch.float16, device='vgpu:0'" in repr(
        torch.zeros(1, device=gpus[0], dtype=torch.float16)
    )


def test_values_for_python(gpus):
    a = torch.tensor([[1, 2], [3, 4]], device=gpus[0])
    assert a.tolist() == [[1, 2], [3, 4]]
    assert a[1, 0].item() == int(a[1, 0]) == 3
    assert [row.tolist() for row in a] == [[1, 2], [3, 4]]
    assert f"{a[0, 1] / 4:.2f}" == "0.50"
    assert 4 in a
    assert len(a) == 2
    assert bool(a[0, 0])


@pytest.mark.parametrize("convert", [np.asarray, lambda a: a.numpy()])
def test_numpy_needs_a_copy_on_the_host(gpus, convert):
    a = torch.ones(2, device=gpus[1])
    with pytest.raises(TypeError, match=r"vgpu:1.*Tensor\.cpu\(\)"):
        convert(a)
    assert a.numpy(force=True).tolist() == [1, 1]


def test_addresses_tell_what_shares_memory(gpus):
    a = torch.ones(4, device=gpus[0])
    assert a.data_ptr() == a.view(2, 2).data_ptr() == a[1:].data_ptr() - a.element_size()
    assert a.data_ptr() != a.clone().data_ptr() != a.to(gpus[1]).data_ptr()
    assert a.untyped_storage().data_ptr() == a[2:].untyped_storage().data_ptr()


def test_bytes_of_storages_are_copied_in_simulated_time(gpus):
    x = torch.arange(4.0, device=gpus[0])
    storage, host = x.untyped_storage(), torch.UntypedStorage(16)
    start_s = par.timing.now_s(gpus)
    host.copy_(storage)
    assert par.timing.now_s(gpus, wait=False) > start_s
    assert torch.empty(0).set_(host).tolist() == [0.0, 1.0, 2.0, 3.0]
    storage.copy_(torch.arange(4.0, 8.0).untyped_storage(), non_blocking=True)
    assert x.tolist() == [4.0, 5.0, 6.0, 7.0]


def test_the_type_of_a_storage_makes_storages_of_the_host(gpus):
    kind = type(torch.ones(2, device=gpus[0]).untyped_storage())
    for made in (kind(8, device="cpu"), kind(8), kind._new_shared(8)):
        assert type(made) is torch.UntypedStorage
        assert (made.device.type, made.nbytes()) == ("cpu", 8)


def test_shapes_alone_are_no_sparse_tensor():
    with par.simulate("1x-v100-nvswitch", with_values=False) as (gpu,):
        for places in (torch.zeros(2, 5, dtype=torch.long, device=gpu), torch.ones(2, 5).long()):
            with pytest.raises(NotImplementedError, match="run it with values"):
                torch.sparse_coo_tensor(places, torch.ones(5, device=places.device)).to(gpu)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors(gpus):
    a = torch.eye(3, device=gpus[0]).to_sparse()
    assert (a.layout, a.device, a.is_sparse) == (torch.sparse_coo, gpus[0], True)
    assert a.coalesce().to_dense().tolist() == torch.eye(3).tolist()
    embedding = nn.Embedding(4, 2, sparse=True).to(gpus[0])
    before = on_host(embedding.weight).clone()
    embedding(torch.tensor([1, 1], device=gpus[0])).sum().backward()
    torch.optim.SGD(embedding.parameters(), lr=1).step()
    before[1] -= 2
    assert_close(on_host(embedding.weight), before)
    b = torch.randn(3, 4, device=gpus[0], requires_grad=True)
    for product in (torch.sparse.mm, torch.spmm, torch.matmul):
        (2 * product(a, b)).sum().backward()
        assert_close(on_host(product(a, b).detach()), on_host(b.detach()))
        assert_close(on_host(b.grad), torch.full((3, 4), 2.0))
        b.grad = None
    wants = torch.eye(3, device=gpus[0]).to_sparse().requires_grad_()
    for product in (torch.sparse.mm, torch.matmul):
        with pytest.raises(NotImplementedError, match="gradient of a sparse matrix"):
            product(wants, b)
        with torch.no_grad():
            assert_close(on_host(product(wants, b)), on_host(b.detach()))
    with pytest.raises(NotImplementedError, match="compressed"):
        torch.eye(2).to_sparse_csr().to(gpus[0]) @ torch.ones(2, device=gpus[0])


# --- views, writing in place ----------------------------------------------------------------------


def test_views_share_memory(gpus):
    a = torch.zeros(6, device=gpus[0])
    a.view(2, 3)[1] += 1
    a[:2].fill_(5)
    a.detach()[2] = 7
    a.data[5] = 9
    assert a.tolist() == [5, 5, 7, 1, 1, 9]
    b = copy.copy(a)
    b[0] = 0
    assert a[0] == 0


def write_through_views(x):
    y = x * 2
    part = y[1:, ::2]
    part.mul_(3)
    part[0] = 1.0
    y.t()[0].add_(x[:, 1])
    y.unsqueeze_(0)
    y.transpose_(1, 2)
    y[0, 1, torch.tensor([0, 2])] = 4.0
    y[y > 20] = 0
    return y.pow(2).sum()


def test_writing_through_views_reaches_the_gradient(gpus):
    results = []
    for device in ("cpu", gpus[1]):
        x = torch.arange(12.0).reshape(3, 4).to(device).requires_grad_()
        loss = write_through_views(x)
        loss.backward()
        results.append((on_host(loss), on_host(x.grad)))
    assert_close(results[1], results[0])


def test_assignment_by_every_kind_of_index(gpus):
    results = []
    for device in ("cpu", gpus[0]):
        x = torch.zeros(3, 3, device=device)
        x[1, torch.tensor([0, 2])] = 5
        x[x > 3] = 1
        x[[0, 1], [1, 1]] = torch.tensor([2.0, 3.0], device=device)
        x[..., 0] = torch.ones(3)
        x[2, ::2] = torch.tensor(8.0)
        results.append(on_host(x))
    assert_close(results[1], results[0])


def test_changing_what_backward_needs_is_an_error(gpus):
    x = torch.ones(3, device=gpus[0], requires_grad=True)
    y = x.exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_resizing_in_place_and_out(gpus):
    x = torch.empty(0, device=gpus[0])
    torch.add(torch.ones(3, device=gpus[0]), 1, out=x)
    assert (x.shape, x.tolist()) == ((3,), [2, 2, 2])
    x.resize_(2, 2)
    assert x.shape == (2, 2)
    x.set_(torch.ones(5, device=gpus[0]))
    assert x.tolist() == [1] * 5


def test_data_can_be_replaced_also_by_that_of_another_device(gpus):
    """As on CUDA: the parameter stays the object that optimizers know."""
    p = nn.Parameter(torch.ones(2, device=gpus[0]))
    p.data = torch.zeros(3, device=gpus[0])
    assert p.tolist() == [0, 0, 0]
    p.data += 2
    assert p.tolist() == [2, 2, 2]
    before, on_host = id(p), torch.ones(2)
    p.data = on_host
    assert (id(p), p.device.type, p.is_leaf, p.requires_grad) == (before, "cpu", True, True)
    on_host.add_(1)  # its memory is shared
    assert p.tolist() == [2, 2]


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter])
@pytest.mark.parametrize("moves_to_host", [True, False])
def test_data_of_another_device_are_written_apart(gpus, kind, moves_to_host):
    """As on one device, the tensors share memory and count the writes to it each by itself."""

    def versions(device, other_device):
        with torch.no_grad():
            x, other = kind(torch.ones(2, device=device)), torch.zeros(2, device=other_device)
            x.add_(1).add_(1)
            x.data = other
            found = [(x._version, other._version)]
            for written in (x, other, other):
                written.add_(1)
                found.append((x._version, other._version))
            assert x.tolist() == other.tolist() == [3, 3]
        return found

    devices = (gpus[0], "cpu") if moves_to_host else ("cpu", gpus[0])
    assert versions(*devices) == versions("cpu", "cpu")


def test_a_gradient_s_data_can_be_those_of_another_device(gpus):
    """As on CUDA, where FSDP does so: the gradient stays the object that it was."""
    for home, other in (("cpu", gpus[0]), (gpus[0], "cpu")):
        p = nn.Parameter(torch.ones(2, device=home))
        p.square().sum().backward()
        p.grad.data = p.grad.data.to(other)
        grad = p.grad
        assert (grad.device, grad.tolist()) == (torch.device(other), [2, 2])
        grad.add_(1)
        assert p.grad is grad
        p.grad.data = torch.zeros(3, device=other)
        assert p.grad.tolist() == [0, 0, 0]
        p.grad.data = torch.full((2,), 5.0, device=home)
        assert (p.grad is grad, p.grad.device, p.grad.tolist()) == (True, p.device, [5, 5])
        p.square().sum().backward()
        assert p.grad.tolist() == [7, 7]


def test_a_gradient_whose_data_have_moved_goes_with_its_parameter_s(gpus):
    p = nn.Parameter(torch.ones(1000))
    before = torch.vgpu.memory_allocated(gpus[0])
    p.grad = torch.zeros(1000)
    p.grad.data = torch.zeros(1000, device=gpus[0])
    assert torch.vgpu.memory_allocated(gpus[0]) > before
    p.grad = None
    assert p.grad is None
    assert torch.vgpu.memory_allocated(gpus[0]) == before


def test_data_of_another_device_have_a_gradient_if_the_tensor_has(gpus):
    x = torch.ones(2, device=gpus[0], requires_grad=True)
    with pytest.raises(RuntimeError, match="must be floating point or complex"):
        x.data = torch.ones(2, dtype=torch.int64)
    assert (x.device, x.tolist()) == (gpus[0], [1, 1])


def test_sgd_by_hand_keeps_the_leaf(gpus):
    w = torch.ones(2, device=gpus[0], requires_grad=True)
    (w * 3).sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad.zero_()
    assert w.is_leaf
    assert_close(on_host(w), torch.full((2,), 0.7))
    assert w.grad.tolist() == [0, 0]


# --- autograd -------------------------------------------------------------------------------------


def test_gradients_flow_across_devices(gpus):
    x = torch.ones(3, requires_grad=True)
    y = (x.to(gpus[0]) * 2).to(gpus[1]) * torch.arange(3.0, device=gpus[1])
    y.sum().cpu().backward()
    assert x.grad.tolist() == [0, 2, 4]


def test_backward_with_explicit_gradients(gpus):
    x = torch.ones(3, device=gpus[2], requires_grad=True)
    (x * 2).backward(torch.arange(3.0, device=gpus[2]))
    assert (x.grad.device, x.grad.tolist()) == (gpus[2], [0, 2, 4])
    a = torch.ones(2, device=gpus[1], requires_grad=True)
    (found,) = torch.autograd.grad((a * 3).to(gpus[0]), a, torch.ones(2, device=gpus[0]))
    assert (found.device, found.tolist()) == (gpus[1], [3, 3])


@pytest.mark.parametrize("device", [0, 3])
def test_backward_from_another_thread(gpus, device):
    x = torch.ones(3, device=gpus[device], requires_grad=True)
    y = (x * x).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert x.grad.tolist() == [2, 2, 2]


def test_double_backward(gpus):
    x = torch.tensor(3.0, device=gpus[1], requires_grad=True)
    (first,) = torch.autograd.grad(x**3, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (27, 18)


def test_gradcheck(gpus):
    x = torch.randn(3, dtype=torch.float64, device=gpus[1], requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t.sin() * t.to(gpus[0]).to(gpus[1])).sum(), x)


def test_a_function_of_ones_own(gpus):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    x = torch.arange(3.0, device=gpus[1], requires_grad=True)
    Square.apply(x).sum().backward()
    assert x.grad.tolist() == [0, 2, 4]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_recomputes_with_the_same_random_numbers(gpus, use_reentrant):
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1)).to(gpus[1])
    x = torch.randn(8, 4, device=gpus[1], requires_grad=True)
    gradients = []
    for forward in (net, lambda x: checkpoint(net, x, use_reentrant=use_reentrant)):
        torch.manual_seed(7)
        net.zero_grad()
        forward(x).sum().backward()
        gradients.append([on_host(p.grad) for p in net.parameters()])
    assert_close(gradients[1], gradients[0])


def test_modes_without_gradients(gpus):
    x = torch.ones(2, device=gpus[0], requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        y[0] += 1
        assert (y.is_inference(), y.tolist()) == (True, [3, 2])
        assert not x[:1].is_inference()  # a view of a normal tensor
    with pytest.raises(RuntimeError, match="Inference tensors"):
        (x * y).sum()


def test_hooks(gpus):
    seen = []
    net = nn.Linear(2, 2).to(gpus[0])
    net.register_forward_hook(lambda module, args, out: seen.append(out.device))
    net.register_full_backward_hook(lambda module, gi, go: seen.append(go[0].device))
    net.weight.register_hook(lambda g: seen.append(g.device))
    net.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device))
    net(torch.ones(1, 2, device=gpus[0], requires_grad=True)).sum().backward()
    assert seen == [gpus[0]] * 4


@pytest.mark.parametrize("device", ["cpu", "vgpu:1"])
def test_an_error_in_a_hook_is_raised_by_backward(gpus, device):
    def fail(*_):
        raise KeyError("in a hook")

    def on_tensor(x, net):
        y = x * 2
        y.register_hook(fail)
        return y

    def on_parameter(x, net):
        net.weight.register_post_accumulate_grad_hook(fail)
        return net(x)

    def on_module(x, net):
        net.register_full_backward_hook(fail)
        return net(x)

    def on_node(x, net):
        y = net(x)
        y.grad_fn.register_prehook(fail)
        return y

    def in_recomputation(x, net):
        attempts = iter([net, fail])
        return checkpoint(lambda x: next(attempts)(x), x, use_reentrant=False)

    for attempt in (on_tensor, on_parameter, on_module, on_node, in_recomputation):
        net, x = nn.Linear(2, 2).to(device), torch.ones(1, 2, device=device, requires_grad=True)
        loss = attempt(x, net).sum()
        with pytest.raises(KeyError, match="in a hook"):
            loss.backward()
    x = torch.ones(2, device=device, requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


@pytest.mark.parametrize("device", ["cpu", "vgpu:1"])
def test_writes_to_a_copy_of_a_tensor_of_inference_are_counted_in_lists(gpus, device):
    with torch.inference_mode():
        made = torch.ones(2, device=device)
    x = copy.copy(made)
    before = x._version
    torch._foreach_mul_([x, x], 2)
    assert (x._version - before, x.tolist()) == (2, [4, 4])


def test_an_error_in_a_hook_is_raised_while_a_debugger_looks_on(gpus):
    """Whatever Python calls while an exception is pending fails, and torch ended the process."""

    def fail(_):
        raise KeyError("in a hook")

    def trace(frame, event, arg):
        time.perf_counter()
        return trace

    x = torch.ones(2, device=gpus[1], requires_grad=True)
    x.register_hook(fail)
    loss, before = x.sum(), sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyError, match="in a hook"):
            loss.backward()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is trace


def test_functional_transforms(gpus):
    x = torch.arange(3.0, device=gpus[0])
    net = nn.Linear(3, 2).to(gpus[0])
    weights = {name: p * 2 for name, p in net.named_parameters()}
    assert_close(on_host(functional_call(net, weights, x)), on_host(net(x)) * 2)
    assert vmap(lambda row: row * row.sum())(x.expand(2, 3)).tolist() == [[0, 3, 6]] * 2
    assert grad(lambda t: (t**2).sum())(x).tolist() == [0, 2, 4]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_torch_compile_makes_runs_on_virtual_devices(gpus):
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    x = torch.arange(3.0)
    for _ in range(2):
        assert_close(on_host(compiled(x.to(gpus[0]))), x.sin() + 1)


@pytest.mark.parametrize("name", ["tensor", "as_tensor"])
def test_lists_of_numbers_on_a_device_become_tensors(gpus, name):
    make = getattr(torch, name)
    numbers = [torch.tensor(float(i), dtype=torch.float64, device=gpus[0]) for i in range(3)]
    on_host = make(numbers)
    assert on_host.device.type == "cpu"
    assert on_host.dtype == torch.float64
    assert on_host.tolist() == [0, 1, 2]
    assert make([numbers, numbers], device=gpus[1]).tolist() == [[0, 1, 2]] * 2
    with pytest.raises(ValueError, match="str"):
        make(["no number"])


@pytest.mark.parametrize("name", ["new_tensor", "new"])
def test_lists_of_numbers_on_a_device_become_tensors_beside_another(gpus, name):
    x = torch.ones(2, device=gpus[1])
    one, two = torch.tensor(1.0, device=gpus[0]), torch.tensor([2.0], device=gpus[1])
    made = getattr(x, name)([[one, two], (two, 3.0)])
    assert (made.device, made.tolist()) == (gpus[1], [[1.0, 2.0], [2.0, 3.0]])


# --- what autograd knows of writes and views ------------------------------------------------------


def versions(program, *devices):
    """What a program returns on each device, given a function that brings tensors there."""
    return [
        program(lambda values, device=device: values.to(device, copy=True)) for device in devices
    ]


@pytest.mark.parametrize("fused", [False, True])
def test_writes_to_lists_of_tensors_are_counted(gpus, fused):
    def program(place):
        a, b = place(torch.ones(2)), place(torch.ones(2))
        torch._foreach_mul_([a, a, b, b[:1], b.data], 2)
        torch._foreach_zero_([a])
        weight = place(torch.ones(2)).requires_grad_()
        weight.grad = place(torch.ones(2))
        options = {"fused": True} if fused else {"foreach": True}
        torch.optim.Adam([weight], **options).step()
        return a._version, b._version, weight._version, a.tolist(), b.tolist()

    on_cpu, virtual = versions(program, "cpu", gpus[1])
    assert virtual == on_cpu


def test_changing_a_list_that_backward_needs_is_an_error(gpus):
    x = torch.ones(3, device=gpus[0], requires_grad=True)
    y = x.exp()
    with torch.no_grad():
        torch._foreach_mul_([y], 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_views_in_inference_mode_are_what_they_are_on_the_cpu(gpus):
    def program(place):
        with torch.inference_mode():
            inference = place(torch.ones(2, 3))
        x = place(torch.ones(2, 3))
        with torch.inference_mode():
            views = [x.view_as(x), x.chunk(2)[0], x.narrow(0, 0, 1), x.reshape(-1), x[0]]
            views[0].add_(1)
        views += [inference[0], inference.chunk(2)[0], inference.t()]
        return x._version, [(v._is_view(), v.is_inference()) for v in views], views[4].tolist()

    on_cpu, virtual = versions(program, "cpu", gpus[1])
    assert virtual == on_cpu


def test_results_in_inference_mode_stay_normal_tensors(gpus):
    x = torch.ones(2, 3, device=gpus[0])
    out = torch.empty(0, device=gpus[0])
    with torch.inference_mode():
        torch.sum(x, 0, out=out)
    assert not out.is_inference()
    assert out.tolist() == [2, 2, 2]


def test_a_failed_operation_in_inference_mode_raises_torchs_own_error(gpus):
    x = torch.tensor(1.0, device=gpus[0])
    with torch.inference_mode(), pytest.raises(RuntimeError, match="at least 1D"):
        x @ x


def test_a_result_that_was_resized_before_the_error_has_its_new_shape(gpus):
    def program(place):
        out = place(torch.tensor(-3.0))
        with pytest.raises(IndexError):
            torch.index_select(place(torch.zeros(0)), 0, place(torch.zeros(1).long()), out=out)
        return out.shape, out._version

    on_cpu, virtual = versions(program, "cpu", gpus[0])
    assert virtual == on_cpu


def test_tensors_with_the_same_data_have_layouts_of_their_own(gpus):
    x, y = torch.zeros(2, 3, device=gpus[0]), torch.ones(2, 3, device=gpus[0])
    x.data = y
    x.t_()
    assert (x.shape, y.shape, y.sum(0).tolist()) == ((3, 2), (2, 3), [2, 2, 2])


@pytest.mark.parametrize("like", [torch.zeros_like, torch.ones_like])
def test_a_tensor_of_the_host_like_one_without_values(gpus, like):
    with par.shape_only():
        x = torch.empty(2, 3, dtype=torch.float64, device=gpus[0]).t()
        assert torch.equal(like(x, device="cpu"), like(torch.empty(3, 2, dtype=torch.float64)))
        assert torch.empty_like(x, device="cpu").shape == (3, 2)


def test_its_type_equals_that_of_a_tensor_of_the_host(gpus):
    x, y = torch.ones(2, device=gpus[0]), torch.ones(2)
    assert type(x) == torch.Tensor  # noqa: E721  # as programs ask
    assert type(y) == type(x)  # noqa: E721
    assert type(x) in (int, torch.Tensor)
    assert type(x) != nn.Parameter  # noqa: E721
    assert not isinstance(y, type(x))
    assert (str(type(x)), type(x).__name__) == (str(type(y)), type(y).__name__)
    assert pickle.loads(pickle.dumps(type(x))) is torch.Tensor


class Scale(nn.Parameter):
    """A program's own class of parameters."""


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter, Scale])
def test_programs_find_its_type_in_tables_by_types(gpus, kind):
    x = torch.ones(2, device=gpus[0])
    x = x if kind is torch.Tensor else kind(x)
    others = {torch.Tensor, nn.Parameter, Scale} - {kind}
    assert type(x) == kind  # noqa: E721  # as programs ask
    assert kind == type(x)  # noqa: E721
    assert type(x) in {kind}
    assert type(x) not in others
    assert {kind: "a rule"}[type(x)] == {type(x): "a rule"}[kind] == "a rule"
    assert weakref.WeakKeyDictionary({kind: 1})[type(x)] == 1
    assert pickle.loads(pickle.dumps(type(x))) is kind
    assert copy.deepcopy([type(x)])[0] == kind
    assert issubclass(type(x), kind)
    assert type(copy.deepcopy(x)) == kind  # noqa: E721

    @functools.singledispatch
    def name(thing):
        return "another"

    name.register(kind)(lambda thing: kind.__name__)
    assert name(x) == kind.__name__
    assert name(2) == "another"


def test_the_type_of_a_parameter_makes_parameters(gpus):
    """As libraries do that put another tensor in a parameter's place."""
    p = nn.Parameter(torch.ones(2, device=gpus[0]))
    kind = type(p)
    on_host, on_device = kind(torch.ones(3)), kind(torch.ones(3, device=gpus[1]), False)
    assert type(on_host) is nn.Parameter
    assert (on_device.device, on_device.requires_grad) == (gpus[1], False)
    again = nn.Parameter(p, requires_grad=False)
    for made in (on_device, again, copy.copy(p)):
        assert type(made) == kind == nn.Parameter  # noqa: E721
    again.fill_(3)
    assert p.tolist() == [3, 3]
    net = nn.Linear(2, 2)
    for device in (gpus[0], gpus[1], "cpu", gpus[0]):
        assert {type(p) for p in net.to(device).parameters()} == {nn.Parameter}


MADE_OF_DATA = {
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "new_tensor of a number": lambda x: x.new_tensor(data=3.0),
    "new": lambda x: x.new([1.0, 2.0]),
    "new of sizes": lambda x: x.new(2, 3),
    "new of nothing": lambda x: x.new(),
}


@pytest.mark.parametrize("name", MADE_OF_DATA)
def test_data_comes_to_the_device_of_the_tensor_that_reads_it(gpus, name):
    for device in gpus:
        x = torch.ones(3, device=device, dtype=torch.float64)
        made = MADE_OF_DATA[name](x)
        plain = MADE_OF_DATA[name](torch.ones(3, dtype=torch.float64))
        assert (made.device, made.dtype, made.shape) == (device, x.dtype, plain.shape)
        if "sizes" not in name:
            assert torch.equal(made.cpu(), plain)
    assert x.new_tensor([1.0], device=gpus[0]).device == gpus[0]
    assert x.new_tensor([1.0], device="cpu").device.type == "cpu"
    assert x.new(x).data_ptr() == x.data_ptr()


def test_several_copies_at_once_may_go_to_other_devices_and_to_the_host(gpus):
    first, second = (torch.arange(3.0, device=gpu) + 1 for gpu in gpus[:2])
    on_host = [torch.zeros(3), torch.zeros(3)]
    torch._foreach_copy_(on_host, [first, 2 * second])
    assert [each.tolist() for each in on_host] == [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]
    torch._foreach_copy_([first, second], [on_host[1], first], non_blocking=True)
    assert (first.tolist(), second.tolist()) == ([2.0, 4.0, 6.0], [2.0, 4.0, 6.0])
    torch._foreach_copy_([first], [3 * first])
    assert first.tolist() == [6.0, 12.0, 18.0]


@pytest.mark.parametrize("device", ["cpu", "vgpu"])
def test_a_deep_copy_of_a_parameter_has_no_gradient_and_no_attributes(device, gpus):
    parameter = torch.nn.Parameter(torch.ones(2, device=device))
    parameter.sum().backward()
    parameter.note = "mine"
    twin = copy.deepcopy(parameter)
    assert isinstance(twin, torch.nn.Parameter)
    assert (twin.tolist(), twin.requires_grad, twin.grad) == ([1.0, 1.0], True, None)
    assert not hasattr(twin, "note")
