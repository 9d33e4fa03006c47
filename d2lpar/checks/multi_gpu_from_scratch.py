"""The exercises of lesson 04."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from ..lesson import models
from ..trials import multi_gpu_from_scratch as trials
from ..trials.calling import Called
from ..trials.plain import Seen, shown
from .bugs import step_length
from .verdict import Wrong, exercise, few, is_tensor, is_whole, largest_difference, values_of

ALL_WORK = 0.9  # of the FLOP of a whole batch: the last operations may be others


@exercise
def shares(answer: Called) -> str:
    """`shares(batch_size, speeds)`: how many images for each of some unequal devices."""
    for batch_size, speeds in ((256, [1, 1]), (240, [2, 1]), (512, [3, 1, 1]), (999, [1, 2, 3, 4])):
        found = answer(batch_size, list(speeds))
        call = f"shares({batch_size}, {speeds})"
        has_items = isinstance(found, Collection) and getattr(found, "ndim", 1) == 1
        got = list(found) if has_items else []
        if len(got) != len(speeds) or not all(is_whole(n) and n >= 0 for n in got):
            raise Wrong(f"{call}: expected {len(speeds)} whole numbers, got {shown(found)}")
        if sum(got) != batch_size:
            raise Wrong(f"{call}: {got} are {sum(got)} images; every image must go somewhere, once")
        ideal = batch_size / sum(speeds)
        last = max(n / speed for n, speed in zip(got, speeds, strict=True))
        if last > 1.05 * ideal:
            raise Wrong(
                f"{call}: with {got} the last device is done after {last:.1f} (images / speed); "
                f"{ideal:.1f} is possible: the step lasts as long as the slowest share"
            )
    return "no device is done more than 5 % after the ideal time"


@exercise(on_clock=True, gives_a_value=False)
def all_reduce_buckets(answer: Called) -> str:
    """`all_reduce_buckets(grads)`: sum lists of gradients over devices with few copies."""
    for n in (2, 3, 4):
        found = answer.tried(trials.all_reduce_buckets, n)
        _check_sums(trials.gradients(n), found["gradients"])
        copies, limit = found["copies"], 2 * n * (n - 1)
        if copies > limit:
            raise Wrong(
                f"the sums are right, but on {n} devices it took {copies} copies for "
                f"{len(trials.SHAPES)} tensors; expected at most {limit}, whatever the number of "
                "tensors: each copy pays the latency of the link"
            )
    return "right sums everywhere, and the number of copies does not grow with the tensors"


def _check_sums(host: list[list[torch.Tensor]], grads: list[list[Seen]]) -> None:
    for i in range(len(host[0])):
        expected = torch.stack([rank[i] for rank in host]).sum(0)
        for rank, tensors in enumerate(grads):
            got = values_of(tensors[i])
            if not torch.equal(got, expected):
                raise Wrong(
                    f"on {len(host)} devices, gradient {i} on device {rank}: expected the sum "
                    f"{few(expected)}, got {few(got)}. {_why_no_sum(got, expected, len(host))}"
                )


def _why_no_sum(got: torch.Tensor, expected: torch.Tensor, n: int) -> str:
    if got.shape == expected.shape and torch.allclose(n * got, expected):
        return f"That is the average; do not divide by {n}"
    return "Was it written into the tensors that came in?"


@exercise(on_clock=True, gives_a_value=False)
def accumulate(answer: Called) -> str:
    """`accumulate(loss, X, y, params, pieces)`: the gradient of a batch, in less memory."""
    whole = trials.accumulate(_whole_batch, 1)
    for pieces in (4, 7):
        found = answer.tried(trials.accumulate, pieces)
        if None in found["gradients"]:
            raise Wrong("expected a gradient in every parameter's .grad, got None")
        gaps = [
            largest_difference(got, expected) / values_of(expected).abs().max().item()
            for got, expected in zip(found["gradients"], whole["gradients"], strict=True)
        ]
        if not all(gap <= 1e-4 for gap in gaps):  # a gap of NaN is no small one
            raise Wrong(
                f"with {pieces} pieces the gradient differs from the whole batch's by "
                f"{max(gaps):.1%}: expected their sum, over all images"
            )
        if found["flops"] < ALL_WORK * whole["flops"]:
            raise Wrong(
                f"the gradient is right, but the device of X computed {found['flops'] / 1e6:.0f} "
                f"MFLOP; expected {whole['flops'] / 1e6:.0f}: all pieces are computed there, one "
                "after the other. You have no other device"
            )
        if found["peak_bytes"] > whole["peak_bytes"] / 2:
            raise Wrong(
                f"the gradient is right, but {pieces} pieces took {found['peak_bytes']:,} bytes "
                f"beside data and parameters; the whole batch {whole['peak_bytes']:,}: expected "
                "half of it at most. Call backward() on each piece, so that its activations are "
                "freed"
            )
    return "the gradient of the whole batch, in less than half of the memory"


def _whole_batch(loss: Callable, X: torch.Tensor, y: torch.Tensor, params: list, _: int) -> None:
    loss(X, y, params).backward()


@exercise(on_clock=True)
def split_batch(answer: Called) -> str:
    """`split_batch(X, y, devices)`: (shards of X, shards of y), the i-th of each on device i."""
    for images, n in ((7, 3), (8, 2), (10, 4)):
        found = answer.tried(trials.split_batch, images, n)
        call, devices = f"{images} images on {n} devices", found["devices"]
        X, y = _two_lists(found["shards"], n, call)
        _check_placed(X, devices, call, "X")
        _check_placed(y, devices, call, "y")
        for what, numbers in (
            ("the images", [row[0] / 2 for shard in X for row in values_of(shard).tolist()]),
            ("the labels", [label for shard in y for label in values_of(shard).tolist()]),
        ):
            _check_each_once([int(number) for number in numbers], images, call, what)
        sizes = [len(values_of(shard)) for shard in y]
        if max(sizes) - min(sizes) > 1:
            raise Wrong(
                f"{call}: the shards have {sizes} images; a step takes as long as the largest, so "
                "let no two differ by more than one"
            )
        for i, (images_of, labels_of) in enumerate(zip(X, y, strict=True)):
            rows = values_of(images_of)
            if rows.shape[1:] != (2,) or not torch.equal(rows[:, 0], 2.0 * values_of(labels_of)):
                raise Wrong(f"{call}: in shard {i}, the labels are not those of its images")
    return "every image is on one device, with its label, and the shards are as equal as can be"


def _check_each_once(numbers: list[int], images: int, call: str, what: str) -> None:
    if sorted(numbers) == list(range(images)):
        return
    lost = sorted(set(range(images)) - set(numbers))
    why = (
        f"{lost} are in none. What happens to the rest if it cannot be divided evenly?"
        if lost
        else "some are in more than one. Is every shard a part, and not the whole?"
    )
    raise Wrong(
        f"{call}: of {what}, {numbers} are in the shards; each must be in one of them, once; {why}"
    )


def _two_lists(found: Any, n: int, call: str) -> tuple[list, list]:
    pair = isinstance(found, tuple | list) and len(found) == 2
    if not pair or not all(isinstance(each, tuple | list) and len(each) == n for each in found):
        raise Wrong(
            f"{call}: expected two lists of {n} tensors, the shards of X and those of y, got "
            f"{shown(found)}"
        )
    return list(found[0]), list(found[1])


def _check_placed(tensors: Sequence[Any], devices: Sequence[str], call: str, whole: str) -> None:
    for i, (tensor, device) in enumerate(zip(tensors, devices, strict=True)):
        if not is_tensor(tensor) or str(tensor.device) != device:
            got = f"it on {tensor.device}" if is_tensor(tensor) else shown(tensor)
            raise Wrong(f"{call}: shard {i} of {whole}: expected a tensor on {device}, got {got}")


@exercise(on_clock=True, gives_a_value=False)
def all_reduce(answer: Called) -> str:
    """`all_reduce(data)`: afterwards each of the tensors, on devices of their own, has the sum."""
    for n in (2, 3, 4):
        found, host = answer.tried(trials.all_reduce, n)["data"], trials.to_sum(n)
        expected = torch.stack(host).sum(0)
        for i, tensor in enumerate(found):
            got = values_of(tensor)
            if not torch.equal(got, expected):
                raise Wrong(
                    f"on {n} devices, the tensor of device {i}: expected the sum {few(expected)}, "
                    f"got {few(got)}. {_why_not(got, host, i)}"
                )
    return "on 2, 3 and 4 devices, each tensor holds the sum of all"


def _why_not(got: torch.Tensor, host: list[torch.Tensor], i: int) -> str:
    """What a wrong sum looks like."""
    total = torch.stack(host).sum(0)
    if torch.equal(got, host[i]):
        return (
            "That is what it held before: was the sum sent back to it, and written into "
            "the tensor, not into the list or a name?"
        )
    if torch.allclose(len(host) * got, total):
        return "That is the mean: do not divide"
    if torch.equal(got, torch.stack(host[: i + 1]).sum(0)):
        return "That is the sum of the first ones: it was sent on before all had been added"
    return "Is each of the tensors added once, and only what they held at first?"


@exercise(on_clock=True, gives_a_value=False)
def train_batch(answer: Called) -> str:
    """`train_batch(X, y, replicas, devices, lr, add, sgd)`: one step, the same on all replicas."""
    work = []
    for n in (1, 2, 3):
        found = answer.tried(trials.train_batch, n, 2)
        _check_steps(found["after"], n)
        work.append(sum(found["flops"]))
        if n > 1 and max(found["flops"]) > ALL_WORK * work[-1]:
            raise Wrong("the parameters are right, but one device computed everything")
        if (times := work[-1] / work[0]) > 1 / ALL_WORK:
            raise Wrong(
                f"the parameters are right, but {n} devices computed {times:.1f} times the work of "
                "one: does each get the whole batch, and not its shard?"
            )
    first, second = answer.tried(trials.train_batch_without_sums)
    if all(torch.equal(values_of(a), values_of(b)) for a, b in zip(first, second, strict=True)):
        raise Wrong(
            "the step is right, but with an `add` that does nothing it is the same: call add(…), "
            "the argument, so that we can try others"
        )
    return "two steps on 1, 2 and 3 devices: every replica is where one device would be"


def _check_steps(after: list[list[list[Seen]]], n: int) -> None:
    """Raise `Wrong` for the first replica that a step has taken elsewhere."""
    before, batches = trials.lenet_run(len(after))
    for step, replicas in enumerate(after):
        expected = _stepped(before, batches[step : step + 1])
        for i, replica in enumerate(replicas):
            if wrong := _why_not_there(before, replica, expected, n, first=step == 0):
                raise Wrong(f"{n} device{'s' * (n > 1)}, step {step + 1}, replica {i}: {wrong}")
        before = expected


def _why_not_there(
    before: list[torch.Tensor],
    replica: list[Seen],
    expected: list[torch.Tensor],
    n: int,
    *,
    first: bool,
) -> str:
    """What is wrong with where a replica has come to in a step; "" if nothing is."""
    own = [values_of(p) for p in replica]
    if max(largest_difference(a, b) for a, b in zip(own, expected, strict=True)) <= 1e-6:
        return ""
    ratio = step_length(before, own) / step_length(before, expected)
    said = f"its step is {ratio:.2g} times as long as that of one device"
    if ratio == 0:
        return "it did not move. Does every replica take the update?"
    if not first:
        return f"{said}, although the first was right. Are old gradients set to zero?"
    if ratio < 0.1:
        return f"{said}. Is the loss of a shard summed, not averaged, before the division?"
    if n > 1 and abs(ratio - n) < 0.01 * n:
        return f"{said}. Is the sum divided by the size of the whole batch, not of the shard?"
    return f"{said}, and goes elsewhere. Did it get the sum of all gradients, and only once?"


def _stepped(params: list[torch.Tensor], batches: list) -> list[torch.Tensor]:
    """Where PyTorch's own modules and optimizer get on the host."""
    net = models.lenet().double()
    linear = [module for module in net if isinstance(module, nn.Linear)]
    own = list(net.parameters())
    with torch.no_grad():
        for p, value in zip(own, params, strict=True):
            p.copy_(value.T if any(p is layer.weight for layer in linear) else value)
    optimizer = torch.optim.SGD(own, lr=trials.LR)
    for X, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()
    return [p.T if any(p is layer.weight for layer in linear) else p for p in own]
