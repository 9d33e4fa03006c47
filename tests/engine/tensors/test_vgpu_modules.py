"""Networks and optimizers on virtual GPUs do what they do on the CPU, and stay who they are."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import d2lpar as par


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.full((3,), float(i)), i


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def batch(device):
    return torch.linspace(-1, 1, 24).reshape(6, 4).to(device)


def state(net):
    return {name: value.cpu() for name, value in net.state_dict().items()}


# --- Module.to keeps parameters what they are -----------------------------------------------------


@pytest.mark.parametrize("target", ["vgpu:1", torch.float64, ("vgpu:0", torch.float64), "cpu"])
@pytest.mark.parametrize("start", ["cpu", "vgpu:2"])
def test_to_keeps_parameters_and_moves_gradients(gpus, start, target):
    net = small_net().to(start)
    net(batch(start)).sum().backward()
    before = dict(net.named_parameters())
    values = {n: (p.detach().cpu().clone(), p.grad.cpu().clone()) for n, p in before.items()}
    net.to(*target) if isinstance(target, tuple) else net.to(target)
    for name, p in net.named_parameters():
        assert p is before[name]
        assert isinstance(p, nn.Parameter)
        assert (p.is_leaf, p.requires_grad) == (True, True)
        assert p.grad.device == p.device
        assert p.grad.dtype == p.dtype
        assert_close((p.detach().cpu().float(), p.grad.cpu().float()), values[name])
    wanted = target[0] if isinstance(target, tuple) else target
    if isinstance(wanted, str):
        assert {str(t.device) for t in net.state_dict().values()} == {wanted}


def test_to_keeps_parameters_while_a_graph_holds_them(gpus):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    before = list(net.parameters())
    out = net(torch.ones(1, 4))
    net.to(gpus[0])
    assert [*map(id, net.parameters())] == [*map(id, before)]
    with pytest.raises(RuntimeError, match="before its parameters moved"):
        out.sum().backward()
    assert before[0].grad is None
    net(torch.ones(1, 4, device=gpus[0])).sum().backward()
    assert before[0].grad.device == gpus[0]


def test_tied_weights_stay_tied(gpus):
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    net = nn.Sequential(a, b).to(gpus[1])
    assert a.weight is b.weight
    assert len(list(net.parameters())) == 3
    net.to(gpus[2]).cpu()
    assert a.weight is b.weight


def test_hooks_and_attributes_move_along(gpus):
    net, seen = nn.Linear(2, 2), []
    handle = net.weight.register_hook(lambda g: seen.append("gradient"))
    net.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    net.weight.remark = "kept"
    net.to(gpus[0])
    net(torch.ones(1, 2, device=gpus[0])).sum().backward()
    assert seen == ["gradient", "accumulated"]
    assert net.weight.remark == "kept"
    handle.remove()
    net(torch.ones(1, 2, device=gpus[0])).sum().backward()
    assert seen[2:] == ["accumulated"]


def test_the_device_method_and_to_empty(gpus):
    assert nn.Linear(2, 2).vgpu(1).weight.device == gpus[1]
    net = nn.Linear(2, 2, device="meta").to_empty(device=gpus[2])
    net.reset_parameters()
    assert net.weight.abs().sum() > 0
    assert net.weight.device == gpus[2]


# --- training -------------------------------------------------------------------------------------


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "momentum, not foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    "Nesterov, foreach": lambda p: torch.optim.SGD(
        p, 0.1, momentum=0.9, nesterov=True, foreach=True
    ),
    "Adam": lambda p: torch.optim.Adam(p, 0.1),
    "Adam, foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "Adam, fused, a tensor's rate": lambda p: torch.optim.Adam(p, torch.tensor(0.1), fused=True),
    "SGD, fused, a rate of [1]": lambda p: torch.optim.SGD(p, torch.tensor([0.1]), fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


@pytest.mark.parametrize("early", [True, False], ids=["made before .to", "made after .to"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_the_cpu(gpus, name, early):
    results = []
    for device in ("cpu", gpus[1]):
        net = small_net()
        optimizer = OPTIMIZERS[name](net.parameters()) if early else None
        net.to(device)
        optimizer = optimizer or OPTIMIZERS[name](net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            net(batch(device)).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        results.append(state(net))
    assert_close(results[1], results[0])
    assert results[0]["1.num_batches_tracked"] == 3


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_steps_from_shapes_alone(gpus, name, lr):
    with par.shape_only():
        weight = nn.Parameter(torch.empty(2, 3, device=gpus[0]))
        optimizer = getattr(torch.optim, name)([weight], lr, fused=True)
        weight.square().sum().backward()
        with par.record() as timeline:
            optimizer.step()
    kernels = [span.name for span in timeline if span.kind == "compute"]
    assert f"_fused_{name.lower()}_" in kernels
    assert weight.shape == (2, 3)


def test_lbfgs(gpus):
    w = torch.zeros(2, device=gpus[0], requires_grad=True)
    optimizer = torch.optim.LBFGS([w])

    def closure():
        optimizer.zero_grad()
        loss = ((w - 1) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert_close(w.detach().cpu(), torch.ones(2))


def test_parameters_as_a_vector_and_clipping_across_devices(gpus):
    nets = nn.ModuleList([nn.Linear(3, 3).to(gpus[0]), nn.Linear(3, 3).to(gpus[1])])
    nets[1](nets[0](torch.ones(1, 3, device=gpus[0])).to(gpus[1])).sum().backward()
    norm = nn.utils.clip_grad_norm_(nets.parameters(), 1e-3).cpu()
    left = torch.stack([p.grad.cpu().norm() for p in nets.parameters()]).norm()
    assert norm > 1e-2
    assert_close(left, torch.tensor(1e-3))
    vector = nn.utils.parameters_to_vector(nets[0].parameters())
    nn.utils.vector_to_parameters(vector * 2, nets[0].parameters())
    doubled = nn.utils.parameters_to_vector(nets[0].parameters())
    assert_close(doubled.detach().cpu(), vector.detach().cpu() * 2)


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(gpus, workers, pin_memory):
    loader = torch.utils.data.DataLoader(
        Numbers(),
        5,
        num_workers=workers,
        pin_memory=pin_memory,
        multiprocessing_context=_fork(workers),
    )
    seen = []
    for X, y in loader:
        assert X.is_pinned() == y.is_pinned() == pin_memory
        there = X.to(gpus[0], non_blocking=True)
        assert_close(there.cpu(), X)
        seen += y.tolist()
    assert seen == [*range(20)]


def _fork(workers):
    return "fork" if workers else None


# --- layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_networks(gpus, kind):
    torch.manual_seed(0)
    net, x = kind(3, 4, num_layers=2, bidirectional=True), torch.randn(5, 2, 3)
    results = []
    for device in ("cpu", gpus[1]):
        net.to(device).zero_grad()
        out, _ = net(x.to(device))
        out.square().sum().backward()
        results.append([out.detach().cpu(), *(p.grad.cpu() for p in net.parameters())])
        with torch.inference_mode():
            assert_close(net(x.to(device))[0].cpu(), out.detach().cpu())
    assert_close(results[1], results[0])


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_packed_sequences(gpus, kind):
    torch.manual_seed(0)
    net, x = kind(3, 4), torch.randn(4, 2, 3)
    results = []
    for device in ("cpu", gpus[0]):
        there = x.to(device, copy=True).requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(there, [4, 2])
        out, lengths = nn.utils.rnn.pad_packed_sequence(net.to(device)(packed)[0])
        out.square().sum().backward()
        results.append([out.detach().cpu(), lengths, there.grad.cpu()])
    assert_close(results[1], results[0])


def test_attention(gpus):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
    x, mask = torch.randn(2, 5, 8), nn.Transformer.generate_square_subsequent_mask(5)
    results = []
    for device in ("cpu", gpus[0]):
        layer.to(device).zero_grad()
        there = x.to(device)
        out = layer(there, src_mask=mask.to(device))
        out.square().sum().backward()
        plain = F.scaled_dot_product_attention(there, there, there, is_causal=True)
        layer.eval()
        with torch.no_grad():
            quick = layer(there)
        layer.train()
        gradients = [p.grad.cpu() for p in layer.parameters()]
        results.append([out.detach().cpu(), plain.cpu(), quick.cpu(), *gradients])
    assert_close(results[1], results[0])


def test_embedding_and_one_hot(gpus):
    indices = torch.tensor([0, 2, 1, 2])
    assert_close(F.one_hot(indices.to(gpus[0])).cpu(), F.one_hot(indices))
    weights = [torch.ones(3, 2, device=device, requires_grad=True) for device in ("cpu", gpus[0])]
    for w in weights:
        F.embedding(indices.to(w.device), w).square().sum().backward()
    assert_close(weights[1].grad.cpu(), weights[0].grad)


def test_parametrizations(gpus):
    for wrap in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
        net = wrap(nn.Linear(3, 3)).eval()
        x = torch.ones(1, 3)
        expected = net(x).detach()
        assert_close(net.to(gpus[1])(x.to(gpus[1])).detach().cpu(), expected)


# --- lazy modules ---------------------------------------------------------------------------------


def lazy_net():
    return nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
    )


def test_lazy_modules_moved_before_the_first_batch(gpus):
    x, results = torch.linspace(-1, 1, 72).reshape(2, 1, 6, 6), []
    for device in ("cpu", gpus[1]):
        net = lazy_net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)  # made before there are shapes
        net.to(device)
        torch.manual_seed(0)
        net(x.to(device))
        assert {str(t.device) for t in net.state_dict().values()} == {str(device)}
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))
        net(x.to(device)).square().sum().backward()
        optimizer.step()
        results.append(state(net))
    assert_close(results[1], results[0])


@pytest.mark.parametrize(
    ("moves", "device", "dtype"),
    [
        (["vgpu:0", "vgpu:1"], "vgpu:1", torch.float32),
        (["vgpu:0", "cpu"], "cpu", torch.float32),
        (["vgpu:0", torch.float64], "vgpu:0", torch.float64),
        ([torch.float64, "vgpu:2"], "vgpu:2", torch.float64),
    ],
)
def test_lazy_modules_remember_their_last_move(gpus, moves, device, dtype):
    net = nn.LazyLinear(3)
    for move in moves:
        net.to(move)
    for twin in (copy.deepcopy(net), net):
        twin(torch.ones(1, 2, device=device, dtype=dtype)).sum().backward()
        assert (str(twin.weight.device), twin.weight.dtype) == (device, dtype)


def test_lazy_modules_made_on_a_device(gpus):
    with gpus[1]:
        inside = nn.LazyLinear(3)
    for net in (inside, nn.LazyLinear(3, device=gpus[1])):
        net(torch.ones(1, 2, device=gpus[1]))
        assert net.weight.device == gpus[1]


def test_lazy_modules_take_a_saved_state(gpus):
    filled = lazy_net()
    filled(torch.ones(1, 1, 5, 5))
    net = lazy_net().to(gpus[2])
    net.load_state_dict(filled.state_dict())
    assert net[0].weight.device == gpus[2]
    assert_close(state(net), state(filled))


def test_moved_parameters_keep_the_count_of_their_writes(gpus):
    net = nn.Linear(2, 2)
    before = [p._version for p in net.parameters()]
    net.to(gpus[0])
    assert [p._version for p in net.parameters()] == before == [1, 1]


@pytest.mark.parametrize("lengths_on_host", [True, False])
def test_ctc_loss_takes_lengths_of_the_host(gpus, lengths_on_host):
    """As on CUDA, where the host needs them in any case."""
    steps, batches, classes = 12, 2, 5
    scores = torch.randn(steps, batches, classes, dtype=torch.float64).log_softmax(2)
    targets = torch.tensor([[1, 2, 3], [4, 1, 0]])
    lengths = torch.tensor([12, 9]), torch.tensor([3, 2])
    places = lengths if lengths_on_host else tuple(n.to(gpus[0]) for n in lengths)
    found, expected = (scores.detach().to(d).requires_grad_() for d in (gpus[0], "cpu"))
    loss = F.ctc_loss(found, targets.to(gpus[0]), *places)
    loss.backward()
    theirs = F.ctc_loss(expected, targets, *lengths)
    theirs.backward()
    assert_close([loss.cpu(), found.grad.cpu()], [theirs, expected.grad])


# --- classes of parameters ------------------------------------------------------------------------


class Scaled(nn.Parameter):
    """A parameter that remembers a number, and counts what is done with it."""

    def __new__(cls, data, requires_grad=True, factor=1):
        parameter = super().__new__(cls, data, requires_grad)
        parameter.factor = factor
        return parameter

    def scaled(self):
        return self * self.factor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


calls = []


def train_scaled(where, made_there):
    start = torch.arange(4.0)
    model = nn.Module()
    model.weight = Scaled(start.to(where) if made_there else start, factor=3)
    model.other = nn.Parameter(torch.ones(4))
    model.to(where)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    calls.clear()
    model.weight.scaled().mul(model.other).sum().backward()
    optimizer.step()
    assert "mul" in calls
    again = copy.deepcopy(model).to("cpu")
    made = type(model.weight)(model.weight.detach(), factor=5)
    for parameter in (model.weight, again.weight, made):
        assert isinstance(parameter, Scaled)
        assert type(parameter).__name__ == "Scaled"
    assert type(again.weight) is Scaled
    for other in (copy.copy(model.weight), model.weight.detach()):  # as on the CPU
        assert not isinstance(other, Scaled)
    assert not isinstance(model.other, Scaled)
    return [model.weight, model.weight.grad, again.weight, made.scaled()]


@pytest.mark.parametrize("made_there", [False, True])
def test_parameters_keep_the_class_that_a_program_gives_them(made_there):
    found = train_scaled("vgpu:0", made_there)
    assert [t.device.type for t in found] == ["vgpu", "vgpu", "cpu", "vgpu"]
    for ours, theirs in zip(found, train_scaled("cpu", made_there), strict=True):
        assert torch.equal(ours.detach().cpu(), theirs.detach())


def test_parameters_made_by_torch_s_inner_function_keep_their_class():
    values = torch.arange(3.0)
    for tensor in (values.to("vgpu:0"), values):
        made = torch.Tensor._make_subclass(Scaled, tensor, True)
        assert isinstance(made, Scaled)
        assert (made.requires_grad, made.device) == (True, tensor.device)


def test_parameters_that_dispatch_themselves_are_refused_by_name():
    class Dispatching(nn.Parameter):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError

    with pytest.raises(NotImplementedError, match=r"Dispatching .*_make_wrapper_subclass"):
        Dispatching(torch.ones(1, device="vgpu:0"))


# --- errors of shapes without values --------------------------------------------------------------

WRONG_SHAPES = {
    "convolution": lambda z: F.conv2d(z(1, 4, 8, 8), z(8, 3, 3, 3)),
    "kernel larger than the image": lambda z: F.conv2d(z(1, 3, 2, 2), z(8, 3, 3, 3)),
    "linear": lambda z: F.linear(z(2, 7, 4), z(3, 5), z(3)),
    "product": lambda z: z(2, 3) @ z(4, 5),
    "products": lambda z: torch.bmm(z(2, 3, 4), z(2, 5, 6)),
    "cat": lambda z: torch.cat([z(2, 3), z(2, 4)]),
    "embedding": lambda z: F.embedding(z(2).long(), z(5)),
    "layer norm": lambda z: F.layer_norm(z(2, 3), (4,)),
    "batch norm": lambda z: F.batch_norm(z(2, 4, 5), z(3), z(3), training=True),
    "cross entropy": lambda z: F.cross_entropy(z(3, 4), z(2).long()),
    "classes of several": lambda z: F.cross_entropy(z(3, 4), z(3, 5).long()),
    "view of a transposed": lambda z: z(2, 3).t().view(6),
    "reshape": lambda z: z(2, 3).reshape(4, 2),
    "sum": lambda z: z(2, 3) + z(2, 4),
    "sum in place": lambda z: z(2, 3).add_(z(4, 2, 3)),
    "indices": lambda z: z(2, 3)[z(2).long(), z(3).long()],
    "gather": lambda z: torch.gather(z(2, 3), 1, z(2).long()),
    "dimension of softmax": lambda z: z(2, 3).softmax(3),
    "attention": lambda z: F.scaled_dot_product_attention(
        z(2, 2, 3, 4), z(2, 2, 5, 6), z(2, 2, 5, 6)
    ),
    "too large for this machine": lambda z: z(10**5, 10**3) @ z(10**3 + 1, 10**5),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_without_values_a_wrong_shape_is_named_as_kernels_name_it(name):
    """The first line: on CUDA others may follow, and kernels of `meta` have words of their own."""

    def error(device):
        with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
            WRONG_SHAPES[name](partial(torch.empty, device=device))
        return type(caught.value), str(caught.value).splitlines()[0]

    expected = error("cpu")
    with par.simulate("8x-h200-nvswitch", 1) as (gpu,):
        assert error(gpu) == expected
