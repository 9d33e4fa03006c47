"""Generators of virtual devices: `torch.Generator("vgpu:1")`.

Each is a handle on a sequence of random numbers, which several may share. Of torch's generator that
it is, so that torch's functions take it, only the address is used: by it an operation finds the
handle again.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

import torch

from ...device_naming import naming
from ..machine.random_sequence import RandomSequence, seed_of
from ..machine.runtime import current_runtime
from ..private import torch_devices

TorchGenerator = torch.Generator

_DEFAULT_SEED = 67280421310721  # what torch's generators begin with (c10's default_rng_seed_val)

_handles: WeakValueDictionary[int, Generator] = WeakValueDictionary()


class Generator(TorchGenerator):
    """What `torch.Generator` is for a virtual device."""

    _index: int
    _sequence: RandomSequence

    def __new__(cls, index: int, sequence: RandomSequence | None = None) -> Generator:
        """A handle on a sequence, by default a new one, for the device of this number."""
        backing = current_runtime().backing
        generator = super().__new__(cls, backing)  # type: ignore[call-arg]  # of torch's stub
        generator._index = index
        generator._sequence = RandomSequence(_DEFAULT_SEED) if sequence is None else sequence
        _handles[torch_devices.address_of_generator(generator)] = generator
        return generator

    def __init__(self, index: int, sequence: RandomSequence | None = None) -> None:
        super().__init__()

    @property
    def index(self) -> int:
        """The number of its device."""
        return self._index

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stub
        """The device that it was made for."""
        return naming().device(self._index)

    @property
    def sequence(self) -> RandomSequence:
        """Where its random numbers come from."""
        return self._sequence

    def get_state(self) -> torch.Tensor:
        """The state, as `set_state` takes it."""
        return self.sequence.state()

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Go on with the random numbers that followed `new_state`."""
        set_state(self.sequence, new_state)
        return self

    def manual_seed(self, seed: int) -> Generator:
        """Restart them from `seed`."""
        current_runtime().restart(self.sequence, int(seed))
        return self

    def seed(self) -> int:
        """Restart them from a seed of the operating system's, which is returned."""
        _check_capture("seed")
        seed = TorchGenerator().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed that they were started from."""
        return self.sequence.seed

    def clone_state(self) -> Generator:
        """A generator with a sequence of its own, that goes on from the same place."""
        _check_capture("clone_impl")
        return Generator(self._index, self.sequence.copy())

    def __reduce__(self) -> tuple:
        return _with_state, (self.device, self.get_state())

    def __deepcopy__(self, memo: object) -> Generator:
        return self.clone_state()


class DefaultGenerator(Generator):
    """The generator of a device: what draws from no other, draws from it."""

    @property
    def sequence(self) -> RandomSequence:
        """Where the device's random numbers come from now."""
        return current_runtime().sequence(self._index)

    def __new__(cls, index: int) -> DefaultGenerator:
        """That of the device of this number."""
        found = super().__new__(cls, index, current_runtime().sequence(index))
        assert isinstance(found, DefaultGenerator)
        return found

    def __init__(self, index: int) -> None:
        super().__init__(index)


def _check_capture(call: str) -> None:
    """RuntimeError where the current stream is captured, as of CUDA's generators."""
    rt = current_runtime()
    rt.captures.check_random(rt.current_key, call)


def set_state(sequence: RandomSequence, state: torch.Tensor) -> None:
    """Go on from a state; RuntimeError for one of another seed in a capture, too."""
    rt = current_runtime()
    if rt.captures.of(rt.current_key) is not None:
        rt.restart(sequence, seed_of(state))
    sequence.set_state(state)


def _with_state(place: torch.device, state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator(place)  # of CUDA, if that is there when it is read
    generator.set_state(state)
    return generator


def handle_of(generator: object) -> Generator | None:
    """Our generator that an operation was given; None if it has none, or one of the host's."""
    if not isinstance(generator, TorchGenerator):
        return None
    return _handles.get(torch_devices.address_of_generator(generator))


def sequence_of(
    kwargs: dict[str, object],
) -> Callable[[int], RandomSequence] | None:
    """By the number of a device, what an operation with these arguments draws from; None if that is
    a generator of the host."""
    generator = kwargs.get("generator")
    if generator is None:
        return current_runtime().sequence
    handle = handle_of(generator)
    return None if handle is None else lambda index: handle.sequence
