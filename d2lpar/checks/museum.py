"""The museum of bugs: whether a visitor's repair holds, against the same program on one device.

What a right repair gives is computed here, on the CPU and in one process; the tests show besides
what real ranks over gloo do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..trials import museum as trials
from ..trials.calling import Called
from ..trials.plain import shown
from .verdict import Wrong, exercise, few, is_number, is_tensor, largest_difference, values_of

TOLERANCE = 1e-4  # of a loss, gradient or parameter
WAITING = ("  rank ", "collective ")  # lines of an error that name who called what


def _on_all(found: dict[str, Any]) -> list[Any]:
    """What each rank has brought. Raises `Wrong` where they do not come through together."""
    if found["stuck"]:
        raise Wrong(f"the ranks do not come through: {_who(found['stuck'])}")
    return found["ranks"]


def _who(text: str) -> str:
    """The lines of a hang that say who waits where; of other errors the first sentence."""
    first, *others = text.splitlines()
    waiting = [line.strip() for line in others if line.startswith(WAITING)]
    return "; ".join([first, *waiting]) if waiting else first.partition(". ")[0]


def _is_near(got: object, expected: float) -> bool:
    """Whether it is that number, or a tensor of it alone."""
    if is_tensor(got) and values_of(got).numel() == 1:
        got = values_of(got).item()
    return is_number(got) and abs(got - expected) <= TOLERANCE * max(1.0, abs(expected))


def _are_near(got: Sequence[Any], expected: Sequence[torch.Tensor]) -> bool:
    return len(got) == len(expected) and all(
        is_tensor(g) and largest_difference(g, e) <= TOLERANCE
        for g, e in zip(got, expected, strict=True)
    )


def _times(got: Sequence[Any], expected: Sequence[torch.Tensor]) -> str:
    """How much longer the gradient is than it should be, or that it points elsewhere."""
    if not all(map(is_tensor, got)):
        return "there is none: was backward called?"
    mine, right = (torch.cat([values_of(t).cpu().flatten() for t in ts]) for ts in (got, expected))
    if mine.shape != right.shape:
        return "it has another shape"
    ratio = (mine @ right / (right @ right)).item()
    if largest_difference(mine, ratio * right) <= TOLERANCE:
        return f"it is {ratio:.3g} times that of one GPU with all of the data"
    return "it points in another direction than that of one GPU with all of the data"


@exercise(on_clock=True, gives_a_value=False)
def validated(answer: Called) -> str:
    """`validated(net, X, y)`: rank 0 returns the loss, and training goes on afterwards."""
    for images in (6, 7):
        found = answer.tried(trials.validated, images)
        first = _on_all(found)[0]
        net = trials.classifier().eval()
        net.load_state_dict({name: values_of(t) for name, t in first["state"].items()})
        expected = F.cross_entropy(net(values_of(found["X"])), values_of(found["y"])).item()
        if not _is_near(first["got"], expected):
            raise Wrong(f"rank 0: expected the loss {expected:.4f}, got {shown(first['got'])}")
    return "rank 0 has the loss, nobody waits for ever, and the next training step runs"


@exercise(on_clock=True)
def summed_by_class(answer: Called) -> str:
    """`summed_by_class(samples, classes, device)`: {class: sum over all samples of all ranks}."""
    for samples in (
        [[("cat", 1.0), ("dog", 10.0)], [("dog", 20.0), ("cat", 2.0)]],
        [[("dog", 1.0), ("cat", 2.0)], [("cat", 4.0)], [("bird", 8.0), ("dog", 16.0)]],
    ):
        classes = ["bird", "cat", "dog"]
        for rank, got in enumerate(_on_all(answer.tried(trials.summed_by_class, samples, classes))):
            if not isinstance(got, dict):
                raise Wrong(f"expected a dict from class to sum, got {shown(got)}")
            for name in classes:
                expected = sum(loss for own in samples for label, loss in own if label == name)
                if not _is_near(got.get(name, 0.0), expected):
                    raise Wrong(
                        f"rank {rank}, {name!r}: expected {expected:g}, got "
                        f"{shown(got.get(name))}. The n-th all-reduce of a rank meets the n-th of "
                        "the others, whatever each thinks that it sums"
                    )
    return "every rank has the same sums, whatever it saw first, or not at all"


@exercise(on_clock=True, gives_a_value=False)
def trained_on_all(answer: Called) -> str:
    """`trained_on_all(net, batches, optimizer)`: ranks have different numbers of batches."""
    for counts in ((3, 2), (2, 4, 3)):
        ranks = _on_all(answer.tried(trials.trained_on_all, counts))
        first = [values_of(p) for p in ranks[0]["after"]]
        if not all(_are_near(rank["after"], first) for rank in ranks):
            raise Wrong(
                "nobody hangs, but the ranks have different parameters afterwards: some took a "
                "step without the gradients of the others"
            )
        if _are_near(ranks[0]["before"], first):
            raise Wrong("nobody hangs, but the parameters are what they were: nothing was trained")
        for rank, count in zip(ranks, counts, strict=True):
            if rank["passes"] < min(counts):
                raise Wrong(
                    f"ranks have {[*counts]} batches, so that all can use {min(counts)}, but one "
                    f"with {count} used {rank['passes']}"
                )
    return "nobody hangs, and all ranks have the same parameters at the end"


@exercise(on_clock=True, gives_a_value=False)
def trained_heads(answer: Called) -> str:
    """`trained_heads(net, X, tasks)`: a step of SGD for each task, under DDP."""
    for tasks in (("boxes", "masks", "boxes"), ("masks", "masks")):
        expected = _trained_heads(tasks)
        for rank in _on_all(answer.tried(trials.trained_heads, tasks)):
            for name, value in expected.items():
                if not _are_near([rank[name]], [value]):
                    raise Wrong(
                        f"after {[*tasks]}, {name} differs from that of one GPU with the images of "
                        f"both ranks: expected {few(value)}, got {few(rank[name])}"
                    )
    return "the steps of one GPU with the images of all ranks, whichever head was used"


def _trained_heads(tasks: Sequence[str]) -> dict[str, torch.Tensor]:
    net = trials.with_numbers(trials.TwoHeads())
    optimizer = torch.optim.SGD(net.parameters(), lr=trials.RATE)
    X = torch.cat([trials.random(10 + rank, 4, 3) for rank in (0, 1)])
    for task in tasks:
        optimizer.zero_grad()
        net(X, task).square().mean().backward()
        optimizer.step()
    return {name: p.detach() for name, p in net.named_parameters()}


@exercise(on_clock=True, gives_a_value=False)
def restored(answer: Called) -> str:
    """`restored(net, checkpoint)`: the parameters of a wrapped network, in a bare one."""
    found = answer.tried(trials.restored)
    got, saved = found["got"], found["saved"]
    wrong = [name for name in saved if not _are_near([got[name]], [values_of(saved[name])])]
    if wrong:
        raise Wrong(
            f"no error, but {wrong} are not those that were saved: the network starts from random "
            "numbers there. Only the first `module.` of a name is the wrapper's"
        )
    return "every parameter is the one that was saved"


@exercise(on_clock=True)
def validation_loss(answer: Called) -> str:
    """`validation_loss(net, batches)`: the mean of the losses, in the memory of one batch."""
    few_batches, many = (answer.tried(trials.validation_loss, n) for n in (2, 12))
    for found, n in ((few_batches, 2), (many, 12)):
        expected = _validation_loss(n)
        if not _is_near(found["got"], expected):
            raise Wrong(f"{n} batches: expected {expected:.4f}, got {shown(found['got'])}")
    more = many["bytes"] / few_batches["bytes"]
    if more > 1.5:
        raise Wrong(
            f"12 batches took {more:.1f} times the memory of 2: the losses are still part of their "
            "graphs, which keep the activations of every batch"
        )
    return "the right mean, and 12 batches take no more memory than 2"


def _validation_loss(n: int) -> float:
    net = trials.small_net(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 4))
    y = torch.arange(64) % 4
    return sum(F.cross_entropy(net(trials.random(i, 64, 8)), y).item() for i in range(n)) / n


@exercise(on_clock=True, gives_a_value=False)
def resumed(answer: Called) -> str:
    """`resumed(net, path)`: the parameters saved on GPU 0, on whatever GPU the network is."""
    found = answer.tried(trials.resumed)
    saved = [p.detach() for p in trials.small_net(nn.Linear(64, 64)).parameters()]
    if not _are_near(found["got"], saved):
        raise Wrong("the network does not have the parameters that were saved")
    if found["bytes"]:
        raise Wrong(
            f"the rank of GPU 1 took {found['bytes']:,} bytes on GPU 0, where the tensors were "
            "when they were saved. With 8 ranks, GPU 0 holds 8 copies"
        )
    return "the parameters are right, and the rank of GPU 1 took nothing on GPU 0"


@exercise(on_clock=True, gives_a_value=False)
def backward_over_tokens(answer: Called) -> str:
    """`backward_over_tokens(net, pieces)`: the mean over all real tokens of all ranks."""
    for tokens in (((6, 1), (3, 2)), ((5, 5, 2), (1, 1, 6), (4, 2, 3))):
        expected = _backward_over_tokens(tokens)
        for gradients in _on_all(answer.tried(trials.backward_over_tokens, tokens)):
            if not _are_near(gradients, expected):
                raise Wrong(
                    f"ranks with {[*map(list, tokens)]} tokens: the gradient is wrong: "
                    f"{_times(gradients, expected)}. Every token is to count once"
                )
    return "every token counts the same, in whatever micro-batch and on whatever rank it is"


def _backward_over_tokens(tokens: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """On one device, all at once."""
    net = trials.small_net(nn.Linear(3, 4))
    batches = [piece for rank in range(len(tokens)) for piece in trials.pieces(tokens, rank)]
    X, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    F.cross_entropy(net(X), y).backward()
    return _gradients(net)


def _gradients(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


@exercise(on_clock=True)
def contrasted(answer: Called) -> str:
    """`contrasted(features)`: a loss over all features, with the gradient of one GPU."""
    for n in (2, 3):
        expected = _contrasted(n)
        for gradients in _on_all(answer.tried(trials.contrasted, n)):
            if not _are_near(gradients, expected):
                raise Wrong(
                    f"{n} ranks: the gradient after DDP's average is wrong: "
                    f"{_times(gradients, expected)}"
                )
    return "on 2 and 3 ranks, the gradient is that of one GPU with all of the data"


def _contrasted(n: int) -> list[torch.Tensor]:
    net = trials.small_net(nn.Linear(3, 2))
    features = net(torch.cat([trials.random(rank, 4, 3) for rank in range(n)]))
    (features @ features.T).square().mean().backward()
    return _gradients(net)


@exercise(on_clock=True)
def orders_seen(answer: Called) -> str:
    """`orders_seen(data, epochs)`: this rank's samples in each epoch, in order."""
    count, epochs = 12, 3
    ranks = _on_all(answer.tried(trials.orders_seen, count, epochs))
    for rank in ranks:
        if not (isinstance(rank, list | tuple) and len(rank) == epochs):
            raise Wrong(f"expected a list for each of {epochs} epochs, got {shown(rank)}")
    for epoch in range(epochs):
        try:
            seen_by = [[int(sample) for sample in rank[epoch]] for rank in ranks]
        except (TypeError, ValueError):
            raise Wrong(f"expected lists of samples, got {shown(ranks[0])}") from None
        if sorted(seen_by[0] + seen_by[1]) != [*range(count)]:
            raise Wrong(
                f"epoch {epoch}: the ranks see {seen_by}; together they must see each sample once, "
                "so all must shuffle alike"
            )
        if epoch and any([*map(int, rank[epoch])] == [*map(int, rank[0])] for rank in ranks):
            raise Wrong(f"epoch {epoch} has the order of epoch 0")
    return "another order in every epoch, and together the ranks see each sample once"


@exercise(on_clock=True)
def read_back(answer: Called) -> str:
    """`read_back(scores)`: the sum of what a GPU has computed, added up on the host."""
    for count in (5, 1000):
        found = answer.tried(trials.read_back, count)
        expected = float(count * (count - 1))
        if not _is_near(found["got"], expected):
            raise Wrong(f"expected {expected:g}, got {shown(found['got'])}")
        if found["hazards"]:
            raise Wrong(f"the sum is right by luck: {found['hazards'][0]}")
    return "the right sum, and nothing is read before it has arrived"


@exercise(on_clock=True, gives_a_value=False)
def handed_on(answer: Called) -> str:
    """`handed_on(weights, biases)`: rank 1 receives both tensors of rank 0."""
    for sizes in ({"weights": 4, "biases": 4}, {"weights": 4, "biases": 2}):
        ranks = _on_all(answer.tried(trials.handed_on, sizes))
        for i, (name, got) in enumerate(zip(sizes, ranks[1], strict=True)):
            expected = torch.full((sizes[name],), float(i + 1))
            if not _are_near([got], [expected]):
                raise Wrong(
                    f"rank 1 has {few(got)} in {name}, expected {few(expected)}: over NCCL the "
                    "n-th receive gets the n-th send, whatever their tags"
                )
    return "rank 1 has both tensors, each in its place"
