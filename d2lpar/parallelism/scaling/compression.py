"""Smaller gradients: fewer bytes to exchange, for time spent on making them smaller.

Compressing and unpacking count as part of the exchange: they delay it, not backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...timeline.inputs import Count, NotNegative, Positive, check_fields, checked
from .exchange import Exchange


@dataclass(frozen=True)
class Compression:
    """`bytes_factor` of the bytes are exchanged; each byte before costs `seconds_per_byte`."""

    bytes_factor: Positive
    seconds_per_byte: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@checked
def half_precision(memory_bytes_per_s: Positive) -> Compression:
    """fp32 gradients exchanged as fp16 or bf16, which a device rounds and widens again.

    Rounding reads 4 bytes and writes 2, widening the reverse: three bytes of memory traffic for
    each byte of fp32, at the memory's rate.
    """
    return Compression(0.5, 3 / memory_bytes_per_s)


@checked
def compressed(exchange: Exchange, compression: Compression) -> Exchange:
    """The same exchange, of compressed gradients."""
    return partial(_compressed_s, exchange, compression)


@checked
def _compressed_s(
    exchange: Exchange, compression: Compression, nbytes: NotNegative, devices: Count
) -> float:
    if devices == 1:
        return 0.0
    smaller_s = exchange(nbytes * compression.bytes_factor, devices)
    return smaller_s + nbytes * compression.seconds_per_byte
