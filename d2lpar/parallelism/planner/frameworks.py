"""What a framework's own Python adds to the operations of a layer, where the host is what limits,
and what it does to gradients before it updates parameters.

An `autograd.Function` in Python is taken to cost, forward and backward, what a call of a module
costs; a fork of the state of random numbers, which gets and sets it twice, as much as two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...machines.hardware import Host


@dataclass(frozen=True)
class Framework:
    """In a forward pass of one layer: functions that autograd calls in Python, and forks. In a step
    `gradient_bytes` are read and written of each parameter beside the update, `scaled_bytes` more
    if the loss is scaled (fp16)."""

    functions: int = 0
    forks: int = 0
    gradient_bytes: int = 0
    scaled_bytes: int = 0

    def forward_s(self, host: Host) -> float:
        """Seconds that they take in a forward pass of a layer."""
        return (self.functions + 2 * self.forks) * host.module_s

    def backward_s(self, host: Host) -> float:
        """Seconds that they take in its backward pass."""
        return self.functions * host.module_s


# Megatron-LM of 2022, megatron/model/transformer.py and mpu/layers.py: a layer has two fused norms,
# a softmax, a GELU with its bias, and two pairs of functions at its ends for tensor ranks, also if
# there is one; attention drops out with random numbers of its own. megatron/optimizer: gradients of
# four bytes are read for their norm, clipped (read and written) and set to 0, parameters read again
# for their copy of two bytes; before that, fp16 has gradients divided by the scale and looked
# through for infinities (read and written).
FRAMEWORKS = {
    "torch": Framework(),
    "megatron": Framework(functions=8, forks=1, gradient_bytes=4 + 8 + 4 + 4, scaled_bytes=8),
}
