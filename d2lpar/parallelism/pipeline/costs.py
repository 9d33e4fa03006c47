"""What a stage of a pipeline costs: seconds, and bytes that are sent and held."""

from __future__ import annotations

from dataclasses import dataclass

from ...timeline.inputs import Index, NotNegative, check_fields


@dataclass(frozen=True)
class StageCost:
    """What one micro-batch costs in one stage.

    `forward_s` and `backward_s` are seconds of passes F and B. A backward pass in two parts takes
    `inputs_s` (I) and `weights_s` (W); None: half of `backward_s` each, as the two gradients of a
    matrix product do. `sent_bytes` is the size of what the stage hands to the next one, and so of
    the gradient that comes back. `activation_bytes` is what a forward pass leaves in memory until
    its backward pass, `parameter_bytes` what lies there all the time.

    Raises ValueError for a negative number.
    """

    forward_s: NotNegative
    backward_s: NotNegative
    inputs_s: NotNegative | None = None
    weights_s: NotNegative | None = None
    sent_bytes: Index = 0
    activation_bytes: Index = 0
    parameter_bytes: Index = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def seconds(self, kind: str) -> float:
        """How long a pass of a kind ("F", "B", "I", "W") takes. ValueError for another one."""
        half_s = self.backward_s / 2
        seconds = {
            "F": self.forward_s,
            "B": self.backward_s,
            "I": half_s if self.inputs_s is None else self.inputs_s,
            "W": half_s if self.weights_s is None else self.weights_s,
        }
        if not (isinstance(kind, str) and kind in seconds):
            raise ValueError(f"a pass is of a kind of {', '.join(seconds)}, not {kind!r}")
        return seconds[kind]
