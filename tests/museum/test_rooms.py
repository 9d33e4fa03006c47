"""The rooms of the museum: each shows its fault, and its check takes only what mends it.

The oracles: the same functions on real ranks over gloo, on one CPU, and what torch itself says.
"""

import ast
import contextlib
import re
import runpy
import weakref
from datetime import timedelta
from functools import cache
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
import warm_process
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import d2lpar as par
from d2lpar import checks
from d2lpar.checks import museum as oracle
from d2lpar.command import museum
from d2lpar.trials import museum as trials

ROOT = Path(__file__).parents[2]
ROOMS = {room.path.stem[:2]: room for room in museum.rooms(ROOT)}
SOLUTIONS = runpy.run_path(str(ROOT / "notebooks" / "solutions" / "museum.py"))
VISIT = (
    "from pathlib import Path; from d2lpar.command import museum; museum.Room.of(Path({!r})).run()"
)
LIMIT, PATIENCE = timedelta(seconds=2), timedelta(minutes=4)


def cell(room, tag):
    """The source of the room's cell with this tag."""
    notebook = nbformat.read(room.path, as_version=4)
    (found,) = [c.source for c in notebook.cells if tag in c.metadata.get("tags", [])]
    return found


def repaired_name(room):
    """The function that the visitor repairs."""
    return ast.parse(cell(room, "repair")).body[0].name


@cache
def broken(number):
    """The broken function of a room, with what it imports, under the repaired one's name."""
    room = ROOMS[number]
    namespace = {"__name__": f"room_{number}"}
    imports = [line for line in room.program.splitlines() if line.startswith(("import ", "from "))]
    exec("\n".join([*imports, cell(room, "broken")]), namespace)
    namespace["broken"].__name__ = repaired_name(room)
    return namespace["broken"]


def mended(number):
    return SOLUTIONS[repaired_name(ROOMS[number])]


def refused(function, name=None):
    """What the check says of a function that it must refuse."""
    function.__name__ = name or function.__name__
    verdict = par.check(function)
    assert verdict.status == checks.WRONG, verdict
    return verdict.text


def taken(function, name):
    function.__name__ = name
    verdict = par.check(function)
    assert verdict.status == checks.RIGHT, verdict


# The rooms themselves


def test_there_are_twelve_in_order():
    assert [room.number for room in ROOMS.values()] == [*range(1, 13)]
    assert [f"{room.number:02}" for room in ROOMS.values()] == [*ROOMS]


@pytest.mark.parametrize("number", ROOMS)
def test_a_room_tells_a_dated_public_report_and_a_short_program(number):
    room = ROOMS[number]
    assert re.search(r"\b20(1|2)\d\b", room.story)
    assert re.search(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+\)", room.story)
    assert 1 < len(room.shown) <= 15
    assert len([line for line in room.program.splitlines() if line.strip()]) <= 45


@pytest.mark.parametrize("number", ROOMS)
def test_what_the_visitor_repairs_is_the_program_that_he_has_seen_fail(number):
    stub, check = ast.parse(cell(ROOMS[number], "repair")).body
    (seen,) = ast.parse(cell(ROOMS[number], "broken")).body
    assert ast.unparse(check) == f"par.check({stub.name})"
    stub.name = seen.name
    assert ast.unparse(stub) == ast.unparse(seen)


@pytest.mark.parametrize("number", ROOMS)
def test_the_program_that_is_not_repaired_is_refused(number):
    assert refused(broken(number))


def test_the_plan_of_the_museum_names_all_rooms():
    plan = (ROOT / "notebooks" / "museum" / "README.md").read_text(encoding="utf-8")
    for room in ROOMS.values():
        row = f"| {room.number} | [{room.title}]({room.path.name}) | {room.line} |"
        assert row in plan


# What a visitor sees

SEEN = {
    "01": [r"barrier\(\) on rank 1, but broadcast\(.*root 0\) on rank 0"],
    "02": [r"'cat': 21\.0, 'dog': 12\.0", r"rank 0 waits in all_reduce.* for rank 1"],
    "03": [r"rank 0 waits in all_reduce.* for rank 1", r"rank 1 has returned"],
    "04": [r"finished reduction", r"heads\.masks\.weight"],
    "05": [r"Unexpected key.*module\.0\.weight", r"restored: False"],
    "11": [r"is right", r"may still write it"],
    "12": [
        r"gloo: weights \[1\.0.*\], biases \[2\.0",
        r"NCCL: weights \[2\.0.*\], biases \[1\.0",
    ],
}


def printed(number):
    """In a fresh process, as a visitor's."""
    done = warm_process.run(VISIT.format(str(ROOMS[number].path)))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("number", SEEN)
def test_the_program_shows_its_fault(number):
    said = printed(number)
    for pattern in SEEN[number]:
        assert re.search(pattern, said), said


def numbers_in(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def test_validation_takes_memory_for_every_batch():
    lines = [numbers_in(line) for line in printed("06").splitlines()]
    (_, one), (_, ten), (_, hundred) = lines
    assert (hundred - ten) / 90 == pytest.approx((ten - one) / 9, rel=0.05)
    assert hundred > 20 * one


def test_gpu_0_has_a_copy_for_every_rank():
    peaks = dict(numbers_in(line) for line in printed("07").splitlines())
    assert peaks[1] == peaks[2] == peaks[3] == 4  # MB, of 1000 x 1000 weights
    assert peaks[0] == pytest.approx(5 * peaks[1], abs=1)  # the last block of a segment is larger


@pytest.mark.parametrize(("number", "times"), [("08", None), ("09", 0.5)])
def test_the_gradient_is_another_than_that_of_one_gpu(number, times):
    one, two = (numbers_in(line) for line in printed(number).splitlines())
    if number == "09":  # there the loss is right
        assert one.pop(0) == pytest.approx(two.pop(0))
    one, two = torch.tensor(one), torch.tensor(two)
    if times is None:
        assert torch.cosine_similarity(one, two, dim=0) < 0.9
    else:
        torch.testing.assert_close(two, times * one, atol=1e-4, rtol=1e-3)


def test_every_epoch_has_the_order_of_the_first():
    orders = [numbers_in(line) for line in printed("10").splitlines() if "[" in line]
    assert orders == [orders[0]] * 3 + [orders[3]] * 3
    assert sorted(orders[0] + orders[3]) == [*range(12)]


# On real ranks

SAMPLES = [[("cat", 1.0), ("dog", 10.0)], [("dog", 20.0), ("cat", 2.0)]]
LESS = [SAMPLES[0], [("dog", 20.0)]]
TOKENS = ((6, 1), (3, 2))
CPU = torch.device("cpu")


def validate(function):
    net = DistributedDataParallel(trials.classifier())
    X = trials.random(dist.get_rank(), 8, 3)
    net(X).square().mean().backward()
    got = function(net.eval(), X, torch.arange(8) % 2)
    net.train()(X).square().mean().backward()
    return got


def sum_up(function, samples):
    return function(samples[dist.get_rank()], ["cat", "dog"], CPU)


def train(function):
    rank = dist.get_rank()
    net = DistributedDataParallel(trials.small_net(nn.Linear(3, 2)))
    batches = [trials.random(10 * rank + i, 4, 3) for i in range(3 - rank)]
    function(net, batches, torch.optim.SGD(net.parameters(), lr=0.1))
    return trials.parameters_of(net)


def train_heads(function):
    net = trials.with_numbers(trials.TwoHeads())
    function(net, trials.random(10 + dist.get_rank(), 4, 3), ["boxes", "masks", "boxes"])
    return {name: p.detach() for name, p in net.named_parameters()}


def accumulate(function):
    net = DistributedDataParallel(trials.small_net(nn.Linear(3, 4)))
    function(net, trials.pieces(TOKENS, dist.get_rank()))
    return [p.grad for p in net.parameters()]


def contrast(function):
    net = DistributedDataParallel(trials.small_net(nn.Linear(3, 2)))
    function(net(trials.random(dist.get_rank(), 4, 3))).backward()
    return [p.grad for p in net.parameters()]


def load_wrapped(function):
    wrapped = DistributedDataParallel(trials.with_numbers(trials.Nested()))
    net = trials.Nested()
    function(net, wrapped.state_dict())
    return net.state_dict(), wrapped.module.state_dict()


def hand_on(function):
    tensors = [torch.full((3,), float((i + 1) * (1 - dist.get_rank()))) for i in (0, 1)]
    function(*tensors)
    return tensors


PROGRAMS = {
    "01": validate,
    "02": lambda function: sum_up(function, SAMPLES),
    "02 less": lambda function: sum_up(function, LESS),
    "03": train,
    "04": train_heads,
    "05": load_wrapped,
    "08": accumulate,
    "09": contrast,
    "10": lambda function: function(range(12), 3),
    "12": hand_on,
}


def meet(store, rank, where):
    """Wait for the other rank for as long as a loaded machine may take."""
    store.set(f"{where} {rank}", "here")
    store.wait([f"{where} 0", f"{where} 1"], PATIENCE)


def on_gloo(rank, folder):
    torch.set_num_threads(1)
    found = {}
    for number, program in PROGRAMS.items():
        for kind in (broken, mended):
            name = f"{kind.__name__} {number}"
            store = dist.FileStore(f"{folder}/{name}", 2)
            # The other may still be in the last program, until its limit.
            meet(store, rank, "before")
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=PATIENCE)
            meet(store, rank, "connected")  # a program may end, and disconnect, at once
            dist.distributed_c10d._set_pg_timeout(LIMIT)  # as set_timeout in a newer torch
            try:
                found[name] = program(kind(number[:2]))
            except RuntimeError as error:
                found[name] = f"error: {error}"
            dist.destroy_process_group()
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """What both ranks got over gloo, or the errors that ended them."""
    folder = tmp_path_factory.mktemp("gloo")
    warm_process.run_on_ranks(on_gloo, str(folder), ranks=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def fails(found):
    return isinstance(found, str) and found.startswith("error: ")


@pytest.mark.parametrize("number", ["01", "02 less", "03", "04", "05"])
def test_real_ranks_do_not_come_through_either(real, number):
    assert any(fails(rank[f"broken {number}"]) for rank in real)
    assert not any(fails(rank[f"mended {number}"]) for rank in real), real


def test_real_ranks_add_cats_to_dogs(real):
    assert [rank["broken 02"] for rank in real] == [
        {"cat": 21.0, "dog": 12.0},
        {"cat": 12.0, "dog": 21.0},
    ]
    assert [rank["mended 02"] for rank in real] == [{"cat": 3.0, "dog": 30.0}] * 2


def test_real_ddp_speaks_of_the_head_that_was_not_used(real):
    assert "Expected to have finished reduction in the prior iteration" in real[0]["broken 04"]
    for rank in real:
        expected = oracle._trained_heads(["boxes", "masks", "boxes"])
        torch.testing.assert_close(rank["mended 04"], expected)


def test_real_ranks_that_join_have_equal_parameters(real):
    torch.testing.assert_close(*(rank["mended 03"] for rank in real))


def test_real_ddp_puts_a_module_before_each_name(real):
    assert '"module.module.weight"' in real[0]["broken 05"]
    torch.testing.assert_close(*real[0]["mended 05"])


@pytest.mark.parametrize("number", ["08", "09"])
def test_real_gradients_are_those_of_virtual_ranks(real, number):
    trial = trials.backward_over_tokens if number == "08" else trials.contrasted
    argument = TOKENS if number == "08" else 2
    whole = oracle._backward_over_tokens(TOKENS) if number == "08" else oracle._contrasted(2)
    virtual = trial(broken(number), argument)["ranks"][0]
    for rank in real:
        torch.testing.assert_close(rank[f"broken {number}"], [seen.values for seen in virtual])
        torch.testing.assert_close(rank[f"mended {number}"], whole)


def test_real_ranks_see_the_same_orders(real):
    for kind in (broken, mended):
        virtual = trials.orders_seen(kind("10"), 12, 3)["ranks"]
        assert virtual == [rank[f"{kind.__name__} 10"] for rank in real]


def test_over_gloo_tags_are_obeyed_and_torch_says_that_nccl_has_none(real):
    expected = [torch.full((3,), 1.0), torch.full((3,), 2.0)]
    torch.testing.assert_close(real[1]["broken 12"], expected)
    torch.testing.assert_close(real[1]["mended 12"], expected)
    for call in (dist.isend, dist.irecv, dist.send, dist.recv):
        assert "``tag`` is not supported with the NCCL backend" in call.__doc__


# On the CPU, and by torch's own rules


class Kept:
    """What a graph holds of one tensor."""

    def __init__(self, tensor):
        self.tensor = tensor


def tensors_kept(function, batches):
    """How many tensors the graphs hold that are left when the function has returned."""
    held = []

    def pack(tensor):
        held.append(weakref.ref(kept := Kept(tensor)))
        return kept

    net = trials.small_net(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    data = [(trials.random(i, 4, 8), torch.arange(4)) for i in range(batches)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        result = function(net, data)
    kept = sum(each() is not None for each in held)
    assert result is not None
    return kept


def test_torch_itself_keeps_the_activations_of_every_batch():
    one, ten = (tensors_kept(broken("06"), n) for n in (1, 10))
    assert one > 0
    assert ten >= 10 * one
    assert tensors_kept(mended("06"), 10) == 0


def test_torch_itself_wants_to_load_onto_the_gpu_that_the_tensors_were_on(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with par.emulate_cuda(2, verbose=False):
        torch.save(nn.Linear(2, 2).cuda(1).state_dict(), path)
    tags = []
    torch.load(path, map_location=lambda storage, tag: (tags.append(tag), storage)[1])
    assert set(tags) == {"cuda:1"}
    assert "moved to the device they were saved from" in " ".join(torch.load.__doc__.split())
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
            torch.load(path)


def test_torch_says_that_a_copy_may_be_under_way():
    said = " ".join(torch.Tensor.to.__doc__.split())
    assert "asynchronously with respect to the host" in said
    assert "caution is advised when using this feature" in said


# Repairs that do not hold, and others that do


def test_room_1():
    def without_barrier(net, X, y):
        if dist.get_rank() == 0:
            with torch.no_grad():
                return F.cross_entropy(net(X), y).item()
        return None

    def barrier_first(net, X, y):
        dist.barrier()
        return without_barrier(net, X, y)

    def nobody(net, X, y):
        return 0.0

    def all_ranks(net, X, y):
        with torch.no_grad():
            return F.cross_entropy(net(X), y).item()

    for wrong in (without_barrier, barrier_first):
        assert "do not come through" in refused(wrong, "validated")
    assert "expected the loss" in refused(nobody, "validated")
    taken(all_ranks, "validated")


def test_room_2():
    def summed_by_class(samples, classes, device, order=sorted):
        totals = {}
        for label, loss in samples:
            totals[label] = totals.get(label, 0.0) + loss
        for label in order(totals):
            total = torch.tensor(totals[label], device=device)
            dist.all_reduce(total)
            totals[label] = total.item()
        return totals

    def by_objects(samples, classes, device):
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, samples)
        every = [sample for own in gathered for sample in own]
        return {name: sum(x for label, x in every if label == name) for name in classes}

    assert "rank" in refused(summed_by_class)  # sorted: right only while all have all classes
    taken(by_objects, "summed_by_class")


def test_room_3():
    def barrier_at_the_end(net, batches, optimizer):
        broken("03")(net, batches, optimizer)
        dist.barrier()

    def alone_from_then_on(net, batches, optimizer):
        with net.no_sync():
            broken("03")(net, batches, optimizer)

    def nothing(net, batches, optimizer):
        pass

    def only_the_first(net, batches, optimizer):
        broken("03")(net, batches[:1], optimizer)

    def as_many_as_the_shortest(net, batches, optimizer):
        count = torch.tensor(len(batches), device=next(net.parameters()).device)
        dist.all_reduce(count, dist.ReduceOp.MIN)
        broken("03")(net, batches[: int(count)], optimizer)

    assert "do not come through" in refused(barrier_at_the_end, "trained_on_all")
    assert "different parameters" in refused(alone_from_then_on, "trained_on_all")
    assert "what they were" in refused(nothing, "trained_on_all")
    assert "used 1" in refused(only_the_first, "trained_on_all")
    taken(as_many_as_the_shortest, "trained_on_all")


def heads(net, X, tasks, *, wrap, loss=lambda ddp, out: out.square().mean()):
    ddp = wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for task in tasks:
        optimizer.zero_grad()
        loss(ddp, ddp(X, task)).backward()
        optimizer.step()


def test_room_4():
    def unwrapped(net, X, tasks):
        heads(net, X, tasks, wrap=lambda net: net)

    def static(net, X, tasks):
        heads(net, X, tasks, wrap=lambda net: DistributedDataParallel(net, static_graph=True))

    def swallowed(net, X, tasks):
        with contextlib.suppress(RuntimeError):
            broken("04")(net, X, tasks)

    def none_at_zero(ddp, out):
        return out.square().mean() + 0 * sum(p.sum() for p in ddp.parameters())

    def all_in_the_loss(net, X, tasks):
        heads(net, X, tasks, wrap=DistributedDataParallel, loss=none_at_zero)

    for wrong in (unwrapped, swallowed):
        assert "differs from that of one GPU" in refused(wrong, "trained_heads")
    assert "graph has changed" in refused(static, "trained_heads")
    taken(all_in_the_loss, "trained_heads")


def test_room_5():
    def not_strict(net, checkpoint):
        net.load_state_dict(checkpoint, strict=False)

    def every_module(net, checkpoint):
        bare = {name.replace("module.", ""): t for name, t in checkpoint.items()}
        net.load_state_dict(bare, strict=False)

    def wrapped_for_a_moment(net, checkpoint):
        nn.DataParallel(net, device_ids=[next(net.parameters()).device]).load_state_dict(checkpoint)

    said = refused(not_strict, "restored")
    assert "module.weight" in said
    assert "head.weight" in said
    said = refused(every_module, "restored")
    assert "module.weight" in said
    assert "head.weight" not in said
    taken(wrapped_for_a_moment, "restored")


def test_room_6():
    def in_eval_mode(net, batches):
        return broken("06")(net.eval(), batches)

    def only_the_last(net, batches):
        return broken("06")(net, batches[-1:]).item()

    def as_numbers(net, batches):
        return sum(F.cross_entropy(net(X), y).item() for X, y in batches) / len(batches)

    assert "times the memory" in refused(in_eval_mode, "validation_loss")
    assert "expected" in refused(only_the_last, "validation_loss")
    taken(as_numbers, "validation_loss")


def test_room_7():
    def deleted_at_once(net, path):
        checkpoint = torch.load(path)
        net.load_state_dict(checkpoint)
        del checkpoint
        torch.cuda.empty_cache()

    def only_rank_0(net, path):
        if next(net.parameters()).device.index == 0:
            net.load_state_dict(torch.load(path))

    def to_its_own(net, path):
        device = next(net.parameters()).device
        net.load_state_dict(torch.load(path, map_location=device))

    assert "on GPU 0" in refused(deleted_at_once, "resumed")
    assert "does not have the parameters" in refused(only_rank_0, "resumed")
    taken(to_its_own, "resumed")


def test_room_8():
    def own_tokens_only(net, pieces):
        tokens = sum(int((y != -100).sum()) for _, y in pieces)
        for X, y in pieces:
            (F.cross_entropy(net(X), y, reduction="sum") / tokens).backward()

    def not_times_the_ranks(net, pieces):
        tokens = sum((y != -100).sum() for _, y in pieces)
        dist.all_reduce(tokens)
        for X, y in pieces:
            (F.cross_entropy(net(X), y, reduction="sum") / tokens).backward()

    name = "backward_over_tokens"
    assert "another direction" in refused(own_tokens_only, name)
    assert "0.5 times" in refused(not_times_the_ranks, name)


class Gathered(torch.autograd.Function):
    """An all-gather that gradients pass through, summed over the ranks that used them."""

    @staticmethod
    def forward(ctx, features):
        parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, features)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]


def test_room_9():
    def without_its_own(features):
        parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, features)
        return (torch.cat(parts) @ torch.cat(parts).T).square().mean()

    def only_its_own(features):
        return (features @ features.T).square().mean()

    def with_gradients(features):
        every = Gathered.apply(features).flatten(0, 1)
        return (every @ every.T).square().mean()

    assert "does not require grad" in refused(without_its_own, "contrasted")
    assert "gradient after DDP's average is wrong" in refused(only_its_own, "contrasted")
    taken(with_gradients, "contrasted")


def test_room_10():
    def a_seed_for_each_rank(data, epochs):
        sampler = DistributedSampler(data, shuffle=True, seed=dist.get_rank())
        orders = []
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            orders.append([*sampler])
        return orders

    def shuffled_within(data, epochs):
        own = [*DistributedSampler(data)]
        return [own[epoch:] + own[:epoch] for epoch in range(epochs)]

    def a_sampler_for_each_epoch(data, epochs):
        return [[*DistributedSampler(data, seed=epoch)] for epoch in range(epochs)]

    assert "each sample once" in refused(a_seed_for_each_rank, "orders_seen")
    taken(shuffled_within, "orders_seen")
    taken(a_sampler_for_each_epoch, "orders_seen")


def test_room_11():
    def synchronized_before_the_copy(scores):
        torch.get_device_module(scores.device).synchronize()
        return scores.to("cpu", non_blocking=True).sum().item()

    def into_pinned_memory(scores):
        on_host = torch.empty(scores.shape, pin_memory=True)
        on_host.copy_(scores, non_blocking=True)
        return on_host.sum().item()

    def synchronized_after_it(scores):
        on_host = scores.to("cpu", non_blocking=True)
        torch.get_device_module(scores.device).synchronize()
        return on_host.sum().item()

    for wrong in (synchronized_before_the_copy, into_pinned_memory):
        assert "right by luck" in refused(wrong, "read_back")
    taken(synchronized_after_it, "read_back")


def test_room_12():
    def blocking(weights, biases):
        if dist.get_rank() == 0:
            dist.send(weights, 1, tag=1)
            dist.send(biases, 1, tag=2)
        else:
            dist.recv(biases, 0, tag=2)
            dist.recv(weights, 0, tag=1)

    def broadcast(weights, biases):
        for tensor in (weights, biases):
            dist.broadcast(tensor, 0)

    assert "whatever their tags" in refused(blocking, "handed_on")
    taken(broadcast, "handed_on")
