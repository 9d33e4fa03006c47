"""Programs that hypothesis makes up, run twice step by step: on virtual GPUs and on the CPU.

Each tensor has a twin on the CPU. After every step both worlds must agree on values, layout, graph,
gradients, versions and on what shares memory; at the end the memory of every device is free again.
The twin of a copy to another device is a copy on the CPU.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import warnings
import weakref
from contextlib import ExitStack, nullcontext

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from torch.utils.checkpoint import checkpoint

import d2lpar as par
from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime
from d2lpar.vgpu.torch_backend.private import torch_tensors

HOST = -1  # the device of a tensor that both worlds have in the host's memory
LARGEST = 5000  # elements of what a program works with
DEVICE = r"vgpu:\d|cpu|\[(vgpu|torch\.)\w+"  # in what errors say
GRANULE = 512  # bytes, in which devices hand out memory
SIZES = [(16, 24), (24,), (16, 1), (), (0,), (2, 3)]
DTYPES = [torch.float32, torch.float64, torch.int64]
MODES = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
}
modes = st.sampled_from(["plain"] * 5 + ["no_grad"] * 2 + ["inference", "save_on_cpu"])
fills = st.sampled_from([False] * 5 + [True])
devices = st.integers(HOST, 3)

VIEWS = {
    "first": lambda x: x[0],
    "slice": lambda x: x[1:],
    "step": lambda x: x[..., ::2],
    "none": lambda x: x[:0],
    "ellipsis": lambda x: x[...],
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, -1),
    "flat": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(-1, 2),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.squeeze(),
    "expand": lambda x: x.expand(2, *x.shape),
    "detach": lambda x: None if x.is_inference() else x.detach(),
    "data": lambda x: None if x.is_inference() else x.data,
    "view_as": lambda x: x.view_as(x),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), x.storage_offset()),
    "diagonal": lambda x: x.diagonal(),
    "chunk": lambda x: x.chunk(2)[-1],
    "unbind": lambda x: x.unbind(-1)[0],
    "unfold": lambda x: x.unfold(0, 2, 1),
    "alias": lambda x: torch.ops.aten.alias(x),
}
UNARY = {
    "exp": lambda x: (x / 8).exp(),
    "square": lambda x: x * x,
    "sum": lambda x: x.sum(),
    "mean rows": lambda x: x.mean(0),
    "relu": torch.relu,
    "clone": torch.clone,
    "double": lambda x: x.double(),
    "contiguous": lambda x: x.contiguous(),
    "softmax": lambda x: x.softmax(-1),
    "index": lambda x: x[torch.tensor([0, 0])],
    "mask": lambda x: x[x > 0],
    "cat": lambda x: torch.cat([x, x]),
    "max": lambda x: x.max(0).values,
    "checkpoint": lambda x: checkpoint(lambda t: t.sin() * t, x, use_reentrant=False),
    "reentrant": lambda x: checkpoint(lambda t: t.sin() * t, x, use_reentrant=True),
    "zeros_like": torch.zeros_like,
    "new_ones": lambda x: x.new_ones(3),
    "bad shape": lambda x: x.view(7, 11),
    "bad index": lambda x: x[99],
    "bad dimension": lambda x: x.sum(9),
}
WRITES = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(2),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(torch.tensor(2)),
    "relu_": torch.relu_,
    "sigmoid_": lambda x: x.sigmoid_(),
    "clamp_": lambda x: x.clamp_(-1, 1),
    "cumsum_": lambda x: x.cumsum_(0),
    "[0] =": lambda x: x.__setitem__(0, 3),
    "[1:] =": lambda x: x.__setitem__(slice(1, None), 4),
    "[indices] =": lambda x: x.__setitem__(torch.tensor([0]), 5) if len(x) else None,
    "[mask] =": lambda x: x.__setitem__(x > 1, -1),
    "+=": lambda x: x.__iadd__(2),
    "normal_": lambda x: x.normal_(generator=torch.Generator().manual_seed(1)),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(),
    "transpose_": lambda x: x.transpose_(0, -1),
    "detach_": lambda x: x.detach_(),
    "as_strided_": lambda x: x.as_strided_((2, 2), (2, 1)),
    "resize_": lambda x: x.resize_(x.numel(), 1).fill_(1),
    "resize smaller": lambda x: x.resize_(2, 3).fill_(1),
    "resize larger": lambda x: x.resize_(40, 30).fill_(1),
    "bad shape": lambda x: x.add_(torch.ones(7, 11, device=x.device)),
    "foreach": lambda x: torch._foreach_mul_([x, x], 2),
    "foreach zero": lambda x: torch._foreach_zero_([x]),
    "data": lambda x: None if x.is_inference() else x.data.add_(1),
    "requires_grad_": lambda x: x.requires_grad_(),
    "requires_grad_(False)": lambda x: x.requires_grad_(False),
    "retain_grad": lambda x: x.retain_grad(),
    "no grad": lambda x: setattr(x, "grad", None),
    "zero grad": lambda x: x.grad.zero_(),
}
BINARY = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "matmul": lambda a, b: a @ b.t(),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "add_": lambda a, b: a.add_(b),
    "mul_": lambda a, b: a.mul_(b),
    "copy_": lambda a, b: a.copy_(b),
    "copy_ non-blocking": lambda a, b: a.copy_(b, non_blocking=True),
    "[0] =": lambda a, b: a.__setitem__(0, b),
    "[:] =": lambda a, b: a.__setitem__(slice(None), b),
    "[mask] =": lambda a, b: a.__setitem__(a > 0, b),
    "set_": lambda a, b: a.set_(b),
    "data =": lambda a, b: setattr(a, "data", b),
    "grad =": lambda a, b: setattr(a, "grad", b.detach()),
    "foreach add": lambda a, b: torch._foreach_add_([a], [b]),
    "foreach copy": lambda a, b: torch._foreach_copy_([a], [b]),
    "lerp_": lambda a, b: a.lerp_(b, 0.5),
}
OUTS = {
    "add": lambda a, b, out: torch.add(a, b, out=out),
    "mul": lambda a, b, out: torch.mul(a, b, out=out),
    "matmul": lambda a, b, out: torch.matmul(a, b.t(), out=out),
    "cat": lambda a, b, out: torch.cat([a, b], out=out),
    "sum": lambda a, b, out: torch.sum(a, 0, out=out),
}


def size_of(write, a, b, out):
    """The size to which an operator brings what it writes."""
    with torch.no_grad():
        return write(a, b, torch.empty_like(out)).shape


READS = {
    "tolist": lambda x: repr(x.tolist()),
    "item": lambda x: repr(x.item()),
    "bool": bool,
    "len": len,
    "repr": lambda x: re.sub(r",\s+device='vgpu:\d'|\s+", "", repr(x)),
    "sum": lambda x: repr(x.sum().item()),
    "numpy": lambda x: repr(x.numpy(force=True)),
    "cpu": lambda x: repr(x.detach().cpu()),
}


def fail(_):
    raise KeyError("in a hook")


HOOKS = {
    "see": lambda seen: lambda g: seen.append(repr(g.tolist())),
    "double": lambda seen: lambda g: g * 2,
    "fail": lambda seen: fail,
    "after": lambda seen: lambda t: seen.append(repr(t.grad.tolist())),
}


# --- what is compared -----------------------------------------------------------------------------


def values_of(tensor):
    return tensor.vgpu_values if hasattr(tensor, "vgpu_values") else tensor


def leaves_of(tensor):
    """How many leaves a tensor's gradient would reach; the way there differs from CPU to CUDA."""
    nodes, met = [tensor.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in met:
            met.add(node)
            nodes += [following for following, _ in node.next_functions]
    return sum(node.name().endswith("AccumulateGrad") for node in met)


# All that a program can find out about a tensor, but for its values and its device.
ABOUT = {
    "dtype": lambda t: t.dtype,
    "layout": lambda t: (t.shape, t.stride(), t.storage_offset()),
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "retains_grad": lambda t: t.retains_grad,
    "inference": lambda t: t.is_inference(),
    "is_view": lambda t: t._is_view(),
    "version": lambda t: None if t.is_inference() else t._version,
    "output_nr": lambda t: t.output_nr,
    "leaves": leaves_of,
}


def differences(ours, theirs):
    pairs = {name: (outcome(f, ours), outcome(f, theirs)) for name, f in ABOUT.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def check_no(differences):
    assert not differences, differences


def check_alike(ours, theirs):
    gradients = gradient_of(ours), gradient_of(theirs)
    check_no(differences(ours, theirs))
    values = values_of(ours)
    assert (values.shape, values.stride()) == (ours.shape, ours.stride())
    same = torch.testing.assert_close
    same(values.detach().cpu(), theirs.detach(), rtol=0, atol=0, equal_nan=True)
    assert [g is None for g in gradients] in ([True, True], [False, False])
    if gradients[0] is not None:
        check_alike_gradients(*gradients)


def check_alike_gradients(ours, theirs):
    found = differences(ours, theirs)
    # A gradient that crosses devices has memory of its own, in which others are added up.
    check_no({k: v for k, v in found.items() if k not in ("layout", "is_view", "version")})
    same = torch.testing.assert_close
    same(values_of(ours).detach(), theirs.detach(), rtol=0, atol=0, equal_nan=True)


def sharing(tensors):
    """For each tensor the first that is the same, that shares its memory, and that is its base."""
    storages = [values_of(t).untyped_storage()._cdata for t in tensors]
    bases = [id(base_of(t)) for t in tensors]
    known = [id(t) for t in tensors]
    return [
        (known.index(id(t)), storages.index(storage), (known + bases).index(base))
        for t, storage, base in zip(tensors, storages, bases, strict=True)
    ]


def base_of(tensor):
    return None if tensor.is_inference() else tensor._base


def gradient_of(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that of a tensor that is no leaf
        return tensor.grad


def has_graph(tensor):
    return tensor.grad_fn is not None


def equalize_versions(ours, theirs):
    """Forget how often tensors were written before a program has got hold of them.

    Where gradients meet, the CPU adds up in place; from tensors of inference it copies so.
    """
    for mine, twin in zip(ours, theirs, strict=True):
        if isinstance(twin, torch.Tensor) and not twin.is_inference():
            torch_tensors.set_version(mine, twin._version)


def with_gradients(tensors):
    """These tensors, their gradients, and those of what they are views of."""
    bases = [base for base in map(base_of, tensors) if base is not None]
    return [*tensors, *(g for g in map(gradient_of, [*tensors, *bases]) if g is not None)]


def held_bytes(tensors):
    """What these tensors' storages take of each device, by its number."""
    storages = {}
    for ours, theirs in tensors:
        storage = theirs.untyped_storage()
        storages[storage._cdata] = (ours.get_device(), storage.nbytes())
    held = {}
    for device, nbytes in storages.values():
        held[device] = held.get(device, 0) + -(-nbytes // GRANULE) * GRANULE
    return held


def outcome(program, *args):
    """What a program returns, or the error that it raises, in words that fit any device."""
    try:
        return program(*args), None
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, IndexError):
            return None, "IndexError"  # whose words are other ones on CUDA, too
        first = re.split(r"\.\s|\n", str(error))[0]
        return None, (type(error).__name__, re.sub(DEVICE, "", first).rstrip("."))


# --- the two worlds -------------------------------------------------------------------------------


class Worlds(RuleBasedStateMachine):
    tensors = Bundle("tensors")
    events = Bundle("events")
    hooks = Bundle("hooks")
    several = st.lists(tensors, min_size=1, max_size=3)

    def __init__(self):
        super().__init__()
        self.pairs = {}  # number: the tensor and its twin
        self.made = 0
        self.twins = []  # weak references to all that there were
        self.marks = {}
        self.handles = {}
        self.seen = ([], [])  # what hooks saw, in either world
        self.stack = ExitStack()

    @initialize(n=st.integers(1, 4), careful=st.booleans())
    def start(self, n, careful):
        self.n, self.careful = n, careful
        self.stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", UserWarning)
        self.hazards = self.stack.enter_context(par.hazards())
        self.stack.enter_context(par.simulate("2x-v100-textbook", n, with_values=True))
        self.streams = [torch.vgpu.default_stream(k) for k in range(n)]
        self.streams += [torch.vgpu.Stream(k) for k in range(n)]

    def place(self, device):
        return "cpu" if device == HOST else f"vgpu:{device % self.n}"

    def order(self):
        """Let nothing that follows overtake what was queued."""
        if self.careful:
            for k in range(self.n):
                torch.vgpu.synchronize(k)

    def both(self, program, *numbers, mode="plain", fill=False, gradients=False):
        """Run a program with tensors of both worlds; the numbers of the tensors that are new."""
        ours, theirs = ([self.pairs[i][world] for i in numbers] for world in (0, 1))
        if any(t.numel() > LARGEST for t in theirs):
            return multiple()
        self.order()
        with self.full(fill):
            try:
                found = self.run(program, ours, mode)
            except torch.OutOfMemoryError:
                assert fill
                return multiple()
        mixed = len({t.device for t in ours}) > 1
        if mixed and found[1] and re.search("device|set_data", str(found[1])):
            return multiple()  # the CPU has nothing against it
        sizes = [t.numel() for t in theirs]
        expected = self.run(program, theirs, mode)
        assert found[1] == expected[1], (found[1], expected[1])
        if expected[1]:
            grown = [i for i, n in zip(numbers, sizes, strict=True) if self.pairs[i][1].numel() > n]
            self.clear(grown)
        new = [self.new(r[0], ts) for r, ts in ((found, ours), (expected, theirs))]
        if gradients or any(t.is_inference() for t in theirs):
            equalize_versions(*new)
        return self.keep(*new)

    def run(self, program, tensors, mode):
        with MODES[mode]():
            return outcome(program, *tensors)

    def clear(self, numbers):
        """Write tensors that an operator made larger before it failed: nobody has done so yet."""
        for tensor in (t for i in numbers for t in self.pairs[i]):
            with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
                tensor.zero_()

    @staticmethod
    def new(result, tensors):
        """The tensors of a result, and for those that are arguments their place among them."""
        results = result if isinstance(result, (list, tuple)) else [result]
        known = [id(t) for t in tensors]
        return [
            known.index(id(r)) if id(r) in known else r
            for r in results
            if isinstance(r, torch.Tensor)
        ]

    def keep(self, ours, theirs):
        numbers = []
        for mine, twin in zip(ours, theirs, strict=True):
            assert isinstance(mine, int) == isinstance(twin, int)
            if isinstance(mine, int):
                assert mine == twin
            else:
                self.made += 1
                self.pairs[self.made] = (mine, twin)
                self.twins.append(weakref.ref(twin))
                numbers.append(self.made)
        return multiple(*numbers)

    def full(self, fill):
        """Devices without room for anything more, if `fill`."""
        stack = ExitStack()
        for memory in current_runtime().memories if fill else ():
            stack.callback(setattr, memory, "limit_bytes", memory.limit_bytes)
            memory.limit_bytes = memory.allocated_bytes
        return stack

    # --- steps ----------------------------------------------------------------------------------

    @rule(
        target=tensors,
        size=st.sampled_from(SIZES),
        dtype=st.sampled_from(DTYPES),
        device=devices,
        wants=st.booleans(),
    )
    def make(self, size, dtype, device, wants):
        wants &= dtype.is_floating_point
        values = torch.arange(torch.Size(size).numel()).sub(3).reshape(size).to(dtype)
        self.order()
        ours, theirs = (
            torch.empty(size, dtype=dtype, device=place).copy_(values).requires_grad_(wants)
            for place in (self.place(device), "cpu")
        )
        return self.keep([ours], [theirs])

    @rule(target=tensors, x=tensors, how=st.sampled_from(sorted(VIEWS)), mode=modes)
    def view(self, x, how, mode):
        twin = self.pairs[x][1]
        if how == "as_strided" and twin.requires_grad and twin._is_view():
            return multiple()  # what it reads beside the view has gradients if it is replayed so
        return self.both(VIEWS[how], x, mode=mode)

    @rule(target=tensors, x=tensors, how=st.sampled_from(sorted(UNARY)), mode=modes, fill=fills)
    def compute(self, x, how, mode, fill):
        return self.both(UNARY[how], x, mode=mode, fill=fill)

    @rule(x=tensors, how=st.sampled_from(sorted(WRITES)), mode=modes, fill=fills)
    def write(self, x, how, mode, fill):
        twin = self.pairs[x][1]
        if "resize" in how and (twin.is_inference() or not self.resizable(x)):
            return
        if ("resize" in how or how == "as_strided_") and self.is_replayed(x):
            return  # what inference mode lets pass: the views are replayed in other ways
        self.both(WRITES[how], x, mode=mode, fill=fill)

    @rule(target=tensors, a=tensors, b=tensors, how=st.sampled_from(sorted(BINARY)), mode=modes)
    def combine(self, a, b, how, mode):
        twins = [self.pairs[i][1] for i in (a, b)]
        if how == "set_" and twins[0]._is_view():
            return multiple()  # what the view was of is replayed in other ways
        if how == "data =" and (any(t.is_inference() for t in twins) or self.moves_graph(a, b)):
            return multiple()
        if how in ("[0] =", "[:] =") and not twins[0].is_floating_point() and twins[1].dim() == 0:
            # A number in the host's memory is filled in, by which integers come to require grad.
            wants = twins[1].requires_grad and self.pairs[b][0].device.type != "cpu"
            return multiple() if wants else self.both(BINARY[how], a, b, mode=mode)
        return self.both(BINARY[how], a, b, mode=mode)

    def moves_graph(self, a, b):
        """Whether `a.data = b` takes a view, what has views or a graph, to the host or from there.

        Tensors of the host and of devices are of two kinds: there, such a tensor is a new one.
        """
        places = {self.pairs[i][0].device.type for i in (a, b)}
        return len(places) == 2 and (self.in_views(a) or has_graph(self.pairs[a][1]))

    def is_replayed(self, x):
        """Whether a graph replays views of this tensor, or what this is a view of."""
        return self.pairs[x][1].requires_grad and self.in_views(x)

    def in_views(self, x):
        """Whether this is a view, or others are views of it."""
        twin = self.pairs[x][1]
        bases = (base_of(t) for _, t in self.pairs.values())
        return base_of(twin) is not None or any(base is twin for base in bases)

    @rule(a=tensors, b=tensors, out=tensors, how=st.sampled_from(sorted(OUTS)), mode=modes)
    def write_out(self, a, b, out, how, mode):
        storages = [self.pairs[i][1].untyped_storage()._cdata for i in (a, b, out)]
        places = {self.pairs[i][0].device for i in (a, b, out)}
        # Nobody says what it gives to read what is being written.
        if len(places) == 1 and storages[2] not in storages[:2] and self.resizable(out):
            twins = [self.pairs[i][1] for i in (a, b, out)]
            shape = twins[2].shape
            if self.is_replayed(out) and outcome(size_of, OUTS[how], *twins) != (shape, None):
                return  # as `resize_` above
            self.both(OUTS[how], a, b, out, mode=mode)
            if how == "matmul" and max(t.dim() for t in twins[:2]) > 2 and twins[2].shape != shape:
                # That it resizes what it writes is a write of its own on all devices but the CPU.
                equalize_versions([self.pairs[out][0]], [twins[2]])

    def resizable(self, x):
        """The CPU spoils a tensor that was loaded when it fails to make it larger."""
        return self.pairs[x][1].untyped_storage().resizable()

    @rule(target=tensors, x=tensors, device=devices, non_blocking=st.booleans(), mode=modes)
    def move(self, x, device, non_blocking, mode):
        places = iter((self.place(device), "cpu"))
        options = {"copy": True, "non_blocking": non_blocking}
        return self.both(lambda t: t.to(next(places), **options), x, mode=mode)

    @rule(target=tensors, x=tensors)
    def pin(self, x):
        ours, theirs = self.pairs[x]
        if ours.device.type != "cpu" or ours.is_pinned():
            return multiple()
        self.order()
        return self.keep([ours.detach().pin_memory()], [theirs.detach().clone()])

    @rule(target=tensors, x=tensors)
    def take_gradient(self, x):
        """From here on somebody looks at the gradient: its version must move as on the CPU."""
        ours, theirs = (gradient_of(t) for t in self.pairs[x])
        if ours is None or any(ours is t for t, _ in self.pairs.values()):
            return multiple()
        if "layout" in differences(ours, theirs):
            return multiple()
        equalize_versions([ours], [theirs])
        return self.keep([ours], [theirs])

    @rule(x=tensors, retain=st.booleans(), mode=modes)
    def backward(self, x, retain, mode):
        self.both(lambda t: t.sum().backward(retain_graph=retain), x, mode=mode)

    @rule(target=tensors, y=tensors, x=tensors, create=st.booleans())
    def gradient(self, y, x, create):
        def program(y, x):
            options = {"create_graph": create, "allow_unused": True}
            (found,) = torch.autograd.grad(y.sum(), x, **options)
            return None if found is None else found.clone(memory_format=torch.contiguous_format)

        return self.both(program, y, x, gradients=True)

    @rule(x=tensors, foreach=st.booleans())
    def train(self, x, foreach):
        self.both(lambda t: torch.optim.SGD([t], lr=0.5, foreach=foreach).step(), x)

    @rule(target=hooks, x=tensors, kind=st.sampled_from(["see", "double", "fail", "after"]))
    def hook(self, x, kind):
        handles = []
        for tensor, seen in zip(self.pairs[x], self.seen, strict=True):
            register = tensor.register_hook
            if kind == "after":
                register = tensor.register_post_accumulate_grad_hook
            handles.append(outcome(register, HOOKS[kind](seen)))
        (one, error), (other, expected) = handles
        assert error == expected
        if error:
            return multiple()
        self.handles[id(one)] = (one, other)
        return id(one)

    @rule(hook=consumes(hooks))
    def unhook(self, hook):
        for handle in self.handles.pop(hook):
            handle.remove()

    @rule(target=tensors, x=tensors)
    def shallow_copy(self, x):
        return self.both(copy.copy, x)

    @rule(target=tensors, xs=several)
    def deep_copy(self, xs):
        return self.both(lambda *ts: copy.deepcopy(ts), *xs)

    @rule(target=tensors, xs=several, device=devices)
    def save_and_load(self, xs, device):
        places = iter((self.place(device), "cpu"))

        def program(*tensors):
            file = io.BytesIO()
            torch.save(list(tensors), file)
            file.seek(0)
            return torch.load(file, map_location=next(places))

        empty = any(not self.pairs[x][1].untyped_storage().nbytes() for x in xs)
        return multiple() if empty else self.both(program, *xs)

    @rule(target=tensors, x=tensors)
    def dump_and_load(self, x):
        return self.both(lambda t: pickle.loads(pickle.dumps(t)), x)

    @rule(x=tensors, how=st.sampled_from(sorted(READS)))
    def read(self, x, how):
        self.order()
        ours, theirs = (outcome(READS[how], t) for t in self.pairs[x])
        assert ours == theirs

    @rule(x=consumes(tensors))
    def drop(self, x):
        self.order()
        del self.pairs[x]

    # --- streams ----------------------------------------------------------------------------------

    @rule(stream=st.integers(0, 7))
    def switch(self, stream):
        torch.vgpu.set_stream(self.streams[stream % len(self.streams)])

    @rule(target=events, stream=st.integers(0, 7))
    def record(self, stream):
        event = self.streams[stream % len(self.streams)].record_event()
        self.marks[id(event)] = event
        return id(event)

    @rule(event=events, stream=st.integers(0, 7))
    def wait(self, event, stream):
        self.streams[stream % len(self.streams)].wait_event(self.marks[event])

    @rule(event=events)
    def synchronize(self, event):
        self.marks[event].synchronize()
        assert self.marks[event].query()

    @rule(x=tensors, stream=st.integers(0, 7))
    def record_stream(self, x, stream):
        tensor = self.pairs[x][0]
        if tensor.device.type == "vgpu":
            tensor.record_stream(self.streams[stream % len(self.streams)])

    # --- after each step --------------------------------------------------------------------------

    @invariant()
    def agree(self):
        self.order()
        ours, theirs = ([pair[world] for pair in self.pairs.values()] for world in (0, 1))
        for mine, twin in zip(ours, theirs, strict=True):
            check_alike(mine, twin)
        assert sharing(with_gradients(ours)) == sharing(with_gradients(theirs))
        assert self.seen[0] == self.seen[1]
        if self.pairs and self.careful:
            assert not self.hazards

    @invariant()
    def hold_what_is_needed(self):
        """Unless a graph keeps more, or views what they are views of."""
        if self.kept_by_torch():
            return
        if any(outcome(has_graph, theirs) != (False, None) for _, theirs in self.pairs.values()):
            return
        kept = [with_gradients([pair[world] for pair in self.pairs.values()]) for world in (0, 1)]
        held = held_bytes(zip(*kept, strict=True))
        if self.pairs:
            for k in range(self.n):
                assert torch.vgpu.memory_allocated(k) == held.get(k, 0)

    def kept_by_torch(self):
        """Whether there are twins that the program has dropped: `y.mul_(y)` keeps y for ever."""
        known = {id(twin) for _, twin in self.pairs.values()}
        twins = [ref() for ref in self.twins]
        return any(twin is not None and id(twin) not in known for twin in twins)

    def teardown(self):
        self.pairs.clear()
        self.handles.clear()
        with self.stack:
            if any(map(torch.vgpu.memory_allocated, range(self.n))):
                gc.collect()  # an error that was caught knows its frames, and these know it
            held = [torch.vgpu.memory_allocated(k) for k in range(self.n)]
            assert held == [0] * self.n or self.kept_by_torch()


def run(**options):
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    torch.set_num_threads(1)
    limits = {
        "derandomize": True,
        "deadline": None,
        "stateful_step_count": 40,
        "suppress_health_check": checks,
    }
    gc.freeze()  # what was there before is looked through no more
    try:
        run_state_machine_as_test(Worlds, settings=settings(**limits, **options))
    finally:
        gc.unfreeze()


def test_programs_on_virtual_gpus_and_on_the_cpu_agree(gpus):
    run(max_examples=25)


@pytest.mark.slow
def test_many_programs_on_virtual_gpus_and_on_the_cpu_agree(gpus):
    run(max_examples=500)
