"""Collective operations on lists of tensors, one a device, written with copies and sums.

All of them work in place, on any devices: `data[i]` is the tensor of device i, all of one shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

Tensors = Sequence[torch.Tensor]


@torch.no_grad()
def all_reduce_naive(data: Tensors) -> None:
    """Sum everything on the first device, then send the sum to all: 2 (n - 1) whole copies, all of
    them through the links of one device."""
    for tensor in data[1:]:
        data[0].add_(tensor.to(data[0].device, non_blocking=True))
    for tensor in data[1:]:
        tensor.copy_(data[0], non_blocking=True)


@torch.no_grad()
def all_reduce_tree(data: Tensors) -> None:
    """Sum in pairs, then pairs of pairs, and back down: 2 ceil(log2 n) steps of whole copies."""
    n, distance = len(data), 1
    while distance < n:
        for i in range(0, n - distance, 2 * distance):
            data[i].add_(data[i + distance].to(data[i].device, non_blocking=True))
        distance *= 2
    while distance > 1:
        distance //= 2
        for i in range(0, n - distance, 2 * distance):
            data[i + distance].copy_(data[i], non_blocking=True)


@torch.no_grad()
def all_reduce_ring(data: Tensors) -> None:
    """Cut each tensor in n pieces and pass them round: 2 (n - 1) steps of 1/n of the bytes each.

    First every device ends up with the full sum of one piece (reduce-scatter), then these go round
    once more (all-gather). In each step all links work at once (Patarasuk and Yuan 2009).
    """
    n = len(data)
    pieces = [tensor.view(-1).tensor_split(n) for tensor in data]
    ports = [_Ports(tensor.device) for tensor in data]
    for step in range(2 * (n - 1)):
        adding = step < n - 1
        for rank in range(n):
            i, after = (rank - step) % n, (rank + 1) % n
            with ports[rank].sending_to(ports[after]):
                if adding:
                    pieces[after][i].add_(pieces[rank][i].to(data[after].device, non_blocking=True))
                else:
                    pieces[after][i].copy_(pieces[rank][i], non_blocking=True)
        for port in ports:  # what came in this step goes out in the next
            port.outgoing.wait_stream(port.incoming)
    for port in ports:
        port.close()


class _Ports:
    """Two streams of a device, so that it sends and receives at once.

    A copy waits for the current streams of *both* devices. On one stream each, the copies of a ring
    would therefore run one after the other all the way round.
    """

    def __init__(self, device: torch.device) -> None:
        self._module = torch.get_device_module(device)
        self._main = self._module.current_stream(device)
        self.outgoing, self.incoming = (self._module.Stream(device) for _ in range(2))
        for stream in (self.outgoing, self.incoming):
            stream.wait_stream(self._main)

    @contextmanager
    def sending_to(self, other: _Ports) -> Iterator[None]:
        with other._module.stream(other.incoming), self._module.stream(self.outgoing):
            yield

    def close(self) -> None:
        for stream in (self.outgoing, self.incoming):
            self._main.wait_stream(stream)


class KeyValueStore:
    """Parameters kept in one place: devices push gradients and pull what came of them.

    `push(key, gradients)` sums the gradients of all devices where the parameter is kept;
    `pull(key, targets)` copies the value to all devices. Keys are set once by `init`.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._values: dict[object, torch.Tensor] = {}

    def init(self, key: object, value: torch.Tensor) -> None:
        """Keep a copy of `value` under `key`. Raises KeyError if the key is taken."""
        if key in self._values:
            raise KeyError(f"{key!r} is set already: push to it, or use another key")
        self._values[key] = value.detach().to(self.device, copy=True)

    @torch.no_grad()
    def push(self, key: object, gradients: Tensors, lr: float) -> None:
        """Take one step of SGD: value -= lr * sum of gradients."""
        value = self._value(key)
        ordered = value.device.type != "cpu"  # streams wait for copies by themselves, hosts do not
        for gradient in gradients:
            value.sub_(gradient.to(self.device, non_blocking=ordered), alpha=lr)

    @torch.no_grad()
    def pull(self, key: object, targets: Tensors) -> None:
        """Write the value into every tensor of `targets`."""
        value = self._value(key)
        for target in targets:
            target.copy_(value, non_blocking=True)

    def _value(self, key: object) -> torch.Tensor:
        if key not in self._values:
            raise KeyError(f"{key!r} is not in the store; it has {sorted(map(str, self._values))}")
        return self._values[key]
