"""A backward pass in two parts: the gradients of inputs, and later those of the weights.

Operations from whose results gradients flow back to the inputs are on the *main road* of the graph;
weights hang on side roads. The first part takes the main road only, and notes the gradients that
come by where a side road leaves; the second part goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


@dataclass
class Crossing:
    """An operation from which side roads lead to `leaves`, and the gradients of its results."""

    node: Node
    leaves: dict[Node, torch.Tensor]
    gradients: tuple[torch.Tensor | None, ...] = ()

    def note(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Remember the gradients of the operation's results."""
        self.gradients = gradients


@dataclass
class SplitBackward:
    """The backward pass from `roots`, whose gradients are given, to `inputs` and to weights.

    No product is computed twice where each weight is used once. Where one is used several times in
    a row, the gradients between its uses are computed again. What computes all its gradients
    together does so in either part: a batch normalisation, an `autograd.Function` in Python.
    """

    roots: Sequence[GradientEdge]
    gradients: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    _crossings: list[Crossing] = field(default_factory=list, init=False)

    def inputs_part(self) -> tuple[torch.Tensor | None, ...]:
        """The gradients of `inputs`; None for one that the roots do not depend on."""
        graph = _graph(self.roots)
        ends = {get_gradient_edge(x).node for x in self.inputs}
        main = _leading_to(ends, graph)
        self._crossings = [
            Crossing(node, leaves)
            for node in main - ends
            if (leaves := _leaves([n for n in graph[node] if n not in main], graph))
        ]
        with ExitStack() as hooks:
            for crossing in self._crossings:
                hooks.callback(crossing.node.register_prehook(crossing.note).remove)
            found = torch.autograd.grad(
                self.roots, self.inputs, self.gradients, retain_graph=True, allow_unused=True
            )
        for root, gradient in zip(self.roots, self.gradients, strict=True):
            if root.node not in main:
                at = (None,) * root.output_nr + (gradient,)
                self._crossings.append(Crossing(root.node, _leaves([root.node], graph), at))
        self.roots = self.gradients = self.inputs = ()
        return found

    def weights_part(self) -> None:
        """Add the gradients of the weights to their `.grad`, and forget the graph."""
        crossings, self._crossings = self._crossings, []
        for crossing in crossings:
            edges = [
                GradientEdge(crossing.node, i)
                for i, gradient in enumerate(crossing.gradients)
                if gradient is not None
            ]
            if not edges:
                continue
            with ExitStack() as hooks:
                for other in crossings:
                    # Its side roads lead to the same weights: they are its own affair.
                    if other is not crossing and other.leaves.keys() & crossing.leaves.keys():
                        hooks.callback(other.node.register_prehook(_stop).remove)
                torch.autograd.backward(
                    edges,
                    [gradient for gradient in crossing.gradients if gradient is not None],
                    # What side roads share is used again; all is freed with the crossings.
                    retain_graph=True,
                    inputs=list(crossing.leaves.values()),
                )


AutogradGraph = dict[Node, list[Node]]


def _graph(roots: Sequence[GradientEdge]) -> AutogradGraph:
    """What follows each operation on the way back, the roots' first."""
    graph: AutogradGraph = {}
    waiting = [root.node for root in roots]
    while waiting:
        node = waiting.pop()
        if node not in graph:
            graph[node] = [following for following, _ in node.next_functions if following]
            waiting += graph[node]
    return graph


def _leading_to(ends: set[Node], graph: AutogradGraph) -> set[Node]:
    """The operations from which a way leads to one of `ends`, and these."""
    before: AutogradGraph = {}
    for node, following in graph.items():
        for after in following:
            before.setdefault(after, []).append(node)
    found, waiting = set(), list(ends)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += before.get(node, [])
    return found


def _leaves(nodes: list[Node], graph: AutogradGraph) -> dict[Node, torch.Tensor]:
    """The leaves to which ways lead from `nodes`, by the node that adds up their gradients."""
    found, seen, waiting = {}, set(), list(nodes)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[node] = node.variable
        waiting += graph[node]
    return found


def _stop(gradients: tuple[torch.Tensor | None, ...]) -> tuple[None, ...]:
    return (None,) * len(gradients)
