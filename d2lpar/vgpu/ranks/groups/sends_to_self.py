"""What a rank sends to itself in a batch: a copy on its device. Alone, it would wait for ever."""

from __future__ import annotations

from collections import defaultdict

import torch

from ..calls.collective_calls import flat
from ..private import c10d as c10d_private
from .collective_work import WorkTogether


class SendsToSelf:
    """The sends and receives of one batch whose other end is this rank, by their tags."""

    def __init__(self, *, is_batch: bool = False) -> None:
        self._is_batch = is_batch
        self._sent: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._received: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def sent(self, tensor: torch.Tensor, tag: int, number: int) -> c10d_private.WorkBase:
        """Note a send of the rank with that number. ValueError outside of a batch."""
        return self._note(self._sent[tag], "send", tensor, number)

    def received(self, tensor: torch.Tensor, tag: int, number: int) -> c10d_private.WorkBase:
        """Note a receive. ValueError outside of a batch."""
        return self._note(self._received[tag], "recv", tensor, number)

    def _note(
        self, noted: list[torch.Tensor], name: str, tensor: torch.Tensor, number: int
    ) -> c10d_private.WorkBase:
        if not self._is_batch:
            raise ValueError(
                f"rank {number} cannot {name} a tensor to or from itself alone: both ends "
                "would wait for each other; put them into one dist.batch_isend_irecv"
            )
        noted.append(tensor)
        return WorkTogether([])

    @torch.no_grad()
    def carry_out(self, number: int) -> None:
        """Copy what was sent, in order, on the current stream.

        RuntimeError if a send has no receive in the batch, or one of another size or data type.
        """
        for tag in self._sent.keys() | self._received.keys():
            sent, received = self._sent[tag], self._received[tag]
            if [_kind(t) for t in sent] != [_kind(t) for t in received]:
                raise RuntimeError(
                    f"rank {number} sends {len(sent)} and receives {len(received)} tensors to and "
                    f"from itself with tag {tag}: {[*map(_kind, sent)]} and "
                    f"{[*map(_kind, received)]} must be the same"
                )
            for source, target in zip(sent, received, strict=True):
                flat(target).copy_(flat(source))


def _kind(tensor: torch.Tensor) -> tuple[int, str]:
    return tensor.numel(), str(tensor.dtype)
