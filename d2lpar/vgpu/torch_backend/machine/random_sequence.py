"""The random numbers of a device or a generator: a seed and an offset, as CUDA has them.

On CUDA each number is a function of the seed and of a counter, and the offset says how far the
counter has come (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Virtual
devices draw the numbers of the CPU's generator, so that a seed gives the same on both; it has no
counter. So a sequence keeps the state of that generator beside the offset, which advances as CUDA's
does. A state that a program has saved finds the numbers that followed; where it has written another
offset into it, another sequence begins, which the seed and the offset determine.

One thing differs from CUDA: kernels that draw 8 numbers and 24 advance the offset alike, but not
the CPU's generator. Two devices with one seed that have drawn different amounts go on with
different numbers, where those of CUDA would go on with the same.
"""

from __future__ import annotations

import hashlib

import torch

from ..private import torch_modes

_HEAD_BYTES = 16  # seed and offset: all that a state of CUDA's has
_TAIL_BYTES = 8  # the offset again: a program may write another one into the head
_BLOCK_THREADS = 256  # of a kernel that draws
_RESIDENT_THREADS = 2048  # of a multiprocessor
_NUMBERS_PER_CALL = 4  # of Philox, and what offsets are multiples of


class RandomSequence:
    """One sequence; whoever shares it draws what follows for all."""

    def __init__(self, seed: int) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        """Begin anew from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        self.seed, self.offset = generator.initial_seed(), 0
        with torch_modes.unwatched():
            self.host = generator.get_state()  # of the generator that draws; nobody writes into it

    def advance(self, numbers: int, multiprocessors: int) -> None:
        """Count that a kernel has drawn so many."""
        blocks = -(-numbers // _BLOCK_THREADS)
        blocks = min(blocks, multiprocessors * (_RESIDENT_THREADS // _BLOCK_THREADS))
        threads = max(1, blocks) * _BLOCK_THREADS
        self.offset += -(-numbers // (threads * _NUMBERS_PER_CALL)) * _NUMBERS_PER_CALL

    def _go_to(self, offset: int) -> None:
        """Go on from there. RuntimeError for what is no offset."""
        if offset < 0 or offset % _NUMBERS_PER_CALL:
            raise RuntimeError(
                f"offset must be a multiple of {_NUMBERS_PER_CALL}, from 0 on, not {offset}"
            )
        if offset != self.offset:
            self.host = _state_at(self.seed, offset)
            self.offset = offset

    def state(self) -> torch.Tensor:
        """A state in bytes, that `set_state` takes; it begins as one of CUDA's."""
        with torch_modes.unwatched():
            numbers = (_signed(self.seed), self.offset, self.offset)
            seed, *offsets = (_bytes_of(n) for n in numbers)
            return torch.cat([seed, offsets[0], self.host, offsets[1]])

    def set_state(self, state: torch.Tensor) -> None:
        """Go on from a state of ours or of CUDA's. RuntimeError for others, TypeError if it has no
        bytes."""
        with torch_modes.unwatched():
            if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
                raise TypeError("RNG state must be a torch.ByteTensor")
            state = state.cpu().contiguous().clone()
            if state.numel() not in (_HEAD_BYTES, _HEAD_BYTES + self.host.numel() + _TAIL_BYTES):
                raise RuntimeError("RNG state is wrong size")
            offset = int(state[_HEAD_BYTES - 8 : _HEAD_BYTES].view(torch.int64))
            if (seed := seed_of(state)) != self.seed:
                self.manual_seed(seed)
            host, tail = state[_HEAD_BYTES:-_TAIL_BYTES], state[-_TAIL_BYTES:]
            if len(host) and int(tail.view(torch.int64)) == offset:
                self.offset, self.host = offset, host.clone()
            else:
                self._go_to(offset)

    def copy(self) -> RandomSequence:
        """Another sequence that goes on from the same place."""
        other = RandomSequence(self.seed)
        other.offset, other.host = self.offset, self.host
        return other

    def branch(self, number: int) -> RandomSequence:
        """A sequence of its own for each place in this one, and number."""
        text = self.host.numpy().tobytes() + str(number).encode()
        return RandomSequence(_seed_of(text))

    def jump(self, number: int) -> None:
        """Go on elsewhere: as far as `branch` has begun from here with that number."""
        self.host = self.branch(number).host
        self.offset += _NUMBERS_PER_CALL

    def follow(self, other: RandomSequence) -> None:
        """Go on from where another one is."""
        self.seed, self.offset, self.host = other.seed, other.offset, other.host


def seed_of(state: torch.Tensor) -> int:
    """The seed that a state goes on from."""
    with torch_modes.unwatched():
        return int(state[:8].clone().view(torch.int64)) % 2**64


def _state_at(seed: int, offset: int) -> torch.Tensor:
    """Where a sequence goes on at an offset of which nobody has a state."""
    begun = seed if offset == 0 else _seed_of(f"{seed} {offset}".encode())
    return torch.Generator().manual_seed(begun).get_state()


def _seed_of(text: bytes) -> int:
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch's seeds are signed


def _bytes_of(number: int) -> torch.Tensor:
    return torch.tensor([number], device="cpu").view(torch.uint8)


def _signed(seed: int) -> int:
    """The number of 64 bits as torch has it."""
    return seed - 2**64 if seed >= 2**63 else seed
