"""Knowing when the backward pass of a module begins, and from which of its outputs it comes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Begins = Callable[[Sequence[torch.Tensor]], object]


def tensors_of(output: object) -> Iterator[torch.Tensor]:
    """The tensors in lists, tuples, dictionaries and dataclasses."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from tensors_of(getattr(leaf, field.name))


def reached(
    tensors: Iterable[torch.Tensor], parameters: Iterable[nn.Parameter]
) -> frozenset[nn.Parameter]:
    """Those of the parameters that the tensors depend on."""
    found, wanted = set(), set(parameters)
    nodes: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        found.add(getattr(node, "variable", None))
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        nodes += following
    return frozenset(wanted & found)


def call_when_it_begins(output: object, begins: Callable[[], object]) -> None:
    """Call `begins()` when a tensor of the output gets its gradient, before what it depends on."""
    for tensor in tensors_of(output):
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: begins() and None)


def told_at_once(output: object, begins: Begins, *, copy: bool = True) -> object:
    """The output, of which `begins(tensors)` is called with those that get a gradient, once for
    all; as torch's DDP does it, at the price of a copy. Without, a program must not change the
    output in place. Of an output with dataclasses, whose tensors cannot be replaced, `begins` is
    called with all."""
    leaves, structure = tree_flatten(output)
    if any(dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) for leaf in leaves):
        _call_with_all(output, begins)
        return output
    places = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
    ]
    if places:
        tensors = [leaves[i] for i in places]
        told = _AllAtOnce.apply(lambda gets: begins([tensors[i] for i in gets]), copy, *tensors)
        for i, tensor in zip(places, told, strict=True):
            leaves[i] = tensor
    return tree_unflatten(leaves, structure)


def _call_with_all(output: object, begins: Begins) -> None:
    tensors = [tensor for tensor in tensors_of(output) if tensor.grad_fn is not None]
    waiting = [begins]

    def begin_once() -> None:
        while waiting:
            waiting.pop()(tensors)

    call_when_it_begins(output, begin_once)


class _AllAtOnce(torch.autograd.Function):
    """Tensors, or copies of them, whose gradients come together."""

    @staticmethod
    def forward(
        ctx: Any, begins: Callable[[list[int]], object], copy: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.begins = begins
        return tuple(tensor.clone() for tensor in tensors) if copy else tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple:
        ctx.begins([i for i, gradient in enumerate(gradients) if gradient is not None])
        return (None, None, *gradients)
