"""Copies between devices on streams of their own, so that both go on computing meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Transfer:
    """A tensor on its way to a device; `arrived` is the event of its arrival, None if it is there.

    `requires_grad` says whether the tensor that was sent does.
    """

    tensor: torch.Tensor
    requires_grad: bool
    arrived: torch.Event | None = None

    def received(self) -> torch.Tensor:
        """The tensor, for work that is queued on its device's current stream from now on."""
        if self.arrived is not None:
            stream = _current_stream(self.tensor.device)
            stream.wait_event(self.arrived)
            self.tensor.record_stream(stream)
        return self.tensor


class Channel:
    """Sends tensors from one device to another, in the order in which they are given.

    A copy waits for what the current streams of both devices have queued, be it needed or not; so
    these are a pair of streams here which do nothing else.
    """

    def __init__(self, source: torch.device, target: torch.device) -> None:
        self._target = target
        self._streams: tuple[torch.Stream, torch.Stream] | None = None
        if source != target and source.type == target.type != "cpu":
            module = torch.get_device_module(source)
            self._streams = (module.Stream(source), module.Stream(target))

    def send(self, tensor: torch.Tensor) -> Transfer:
        """Copy a tensor once its device's current stream has computed it."""
        values, requires_grad = tensor.detach(), tensor.requires_grad
        if self._streams is None:  # the same device, or one that is the host
            return Transfer(values.to(self._target), requires_grad)
        sending, receiving = self._streams
        sending.wait_stream(_current_stream(values.device))
        module = torch.get_device_module(values.device)
        with module.stream(receiving), module.stream(sending):
            sent = values.to(self._target, non_blocking=True)
        values.record_stream(sending)
        return Transfer(sent, requires_grad, receiving.record_event())


def _current_stream(device: torch.device) -> torch.Stream:
    return torch.get_device_module(device).current_stream(device)
