"""How long one fused kernel of attention takes: FlashAttention, memory-efficient, cuDNN, flex.

All of them compute tiles of scores that never leave a multiprocessor (Dao et al., "FlashAttention",
2022): a score takes 4 FLOP for each number of a head, and one exponential. Tensor cores multiply,
other units exponentiate, 16 a clock and multiprocessor (CUDA C++ Programming Guide, throughput of
arithmetic instructions), and the two hide each other in part only. So a score lasts

    FLOP / (rate · share) + exposed · (one exponential)

with the shares and exposures of `constants`: the larger a head, the nearer to the share. Going
backward takes 10 FLOP for each number of a head, as the scores are computed again; gradients of
queries are summed in fp32, which kernels of their own clear before and round after.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ....machines.compute_capability import compute_capability
from ....machines.hardware import Accelerator
from .. import constants
from .kernel_cost import Cost, Kernel, traffic
from .multiprocessors import lanes

FLASH, EFFICIENT, CUDNN, FLEX = "flash", "efficient", "cudnn", "flex"

# Random numbers for dropout, counted: a call of Philox (Salmon et al. 2011) has ten rounds of two
# wide products and two exclusive ors, and gives 128 bits: 16 numbers for FlashAttention and cuDNN,
# 4 for the memory-efficient kernels. One more instruction compares.
_INSTRUCTIONS_OF_DROPOUT = {FLASH: 40 / 16 + 1, CUDNN: 40 / 16 + 1, EFFICIENT: 40 / 4 + 1}

_EXPONENTIALS_A_CLOCK = 16

_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
_HEADS = (32, 64, 96, 128, 192, 256)  # sizes that FlashAttention 2 has kernels for


# --- the work -------------------------------------------------------------------------------------


class Attention(NamedTuple):
    """One pass of a fused kernel: `kind` is "flash", "efficient", "cudnn" or "flex".

    Queries [batch, heads, queries, size], keys [batch, key_heads, keys, size], values
    [batch, key_heads, keys, value_size], in `dtype`; `mask_bytes` is the size of an added mask. A
    mask of blocks leaves a `share` of the tiles, and at most `longest` of those of one row.
    """

    kind: str
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    dtype: str
    causal: bool = False
    dropout: bool = False
    backward: bool = False
    mask_bytes: int = 0
    share: float = 1.0
    longest: float = 1.0

    @property
    def flops(self) -> int:
        """Of 2 products forward, 5 backward; of a causal one those of tiles not masked wholly."""
        products = 3 * self.size + 2 * self.value_size if self.backward else _widths(self)
        return 2 * products * self.batch * self.heads * _scores(self)

    @property
    def bytes(self) -> int:
        """Read and written in memory: no scores, but the logarithms of their rows' sums."""
        queries, keys, values, out = _tensor_bytes(self)
        sums = 4 * self.batch * self.heads * self.queries
        once = queries + keys + values + out + sums + self.mask_bytes
        if not self.backward:
            return once
        gradients = queries + keys + values
        return once + out + gradients + _before_bytes(self) + _after_bytes(self)


class AttentionCost(Cost):
    """The cost of one pass of a fused kernel."""

    __slots__ = ("work",)

    def __init__(self, work: Attention) -> None:
        super().__init__(Kernel(work.flops, work.bytes), dtype=work.dtype)
        self.work = work

    def priced(self, accelerator: Accelerator) -> float:
        """How long it takes, worked out now."""
        return seconds(self.work, accelerator)

    def in_tf32(self) -> AttentionCost:
        """Itself: its products of fp32 are priced as its kernels compute them."""
        return self

    def engaged_s(self, accelerator: Accelerator, seconds: float) -> float:
        """For how long of its `seconds` the device has nothing left for other streams' kernels."""
        return seconds * occupancy(self.work, accelerator)


def seconds(work: Attention, accelerator: Accelerator) -> float:
    """How long one pass takes on an accelerator, with the kernels before and after it."""
    latency_s = accelerator.kernel_latency_s
    computing_s = _computing_s(work, accelerator)
    if not work.backward:
        return max(latency_s + computing_s, traffic(work.bytes).seconds(accelerator))
    # One block at a time has room on a multiprocessor: what it reads first and writes last waits.
    _, keys, values, _ = _tensor_bytes(work)
    own_s = traffic(2 * (keys + values)).seconds(accelerator)
    others = (_before_bytes(work), _after_bytes(work))
    around_s = sum(traffic(nbytes).seconds(accelerator) for nbytes in others if nbytes)
    inner = work.bytes - sum(others)
    return around_s + max(own_s + computing_s, traffic(inner).seconds(accelerator))


# --- tiles ----------------------------------------------------------------------------------------


def _tile(work: Attention) -> tuple[int, int]:
    """Queries and keys of a tile: those of FlashAttention 2 and of CUTLASS on an A100."""
    if work.kind == EFFICIENT:
        return (64, 64) if work.value_size <= 64 else (32, 128)
    rows = 128 if work.queries > 64 or work.backward else 64
    return rows, 128 if work.size <= 64 else 64


def _scores(work: Attention) -> int:
    """Scores of a head that are computed, edges not counted."""
    if not work.causal:
        return round(work.queries * work.keys * work.share)
    rows, columns = _tile(work)
    return sum(
        min(rows, work.queries - first) * min(ceil((first + rows) / columns) * columns, work.keys)
        for first in range(0, work.queries, rows)
    )


@lru_cache(maxsize=4096)
def _blocks(work: Attention) -> tuple[int, int, int]:
    """Blocks of a head, and scores of all and of the longest, edges computed in full."""
    rows, columns = _tile(work)
    down, across = ceil(work.queries / rows), ceil(work.keys / columns)
    tiles = down * across
    if work.causal:
        tiles = sum(min(ceil((i + 1) * rows / columns), across) for i in range(down))
    count, most = (across, down) if work.backward else (down, across)
    longest = max(1, round(most * work.longest))
    return count, max(longest, round(tiles * work.share)) * rows * columns, longest * rows * columns


def _computing_s(work: Attention, accelerator: Accelerator) -> float:
    """Seconds of the blocks on all multiprocessors; causal ones begin with the longest."""
    work = _packed(work)
    count, scores, longest = _blocks(work)
    heads = work.batch * work.heads
    processors = accelerator.multiprocessors or 1
    blocks = heads * count
    score_s = _score_s(work, accelerator) * processors
    if work.causal or work.share < 1:
        return score_s * max(longest, heads * scores / processors)
    slices = _slices(work, blocks, processors)
    return score_s * longest / slices * ceil(blocks * slices / processors)


@lru_cache(maxsize=4096)
def occupancy(work: Attention, accelerator: Accelerator) -> float:
    """Share of the multiprocessors that have a block to compute."""
    work, processors = _packed(work), accelerator.multiprocessors or 1
    blocks = work.batch * work.heads * _blocks(work)[0]
    return min(1.0, blocks * _slices(work, blocks, processors) / processors)


def _packed(work: Attention) -> Attention:
    """Single queries of heads that share keys are rows of one tile, as in FlashAttention 2."""
    if work.queries > 1 or work.backward or work.kind == EFFICIENT:
        return work
    return work._replace(heads=work.key_heads, queries=work.heads // work.key_heads)


def _slices(work: Attention, blocks: int, processors: int) -> int:
    """In how many parts the keys of a block are cut, where blocks are few ("Flash-Decoding").

    Forward without dropout only; and CUTLASS's kernels cut backward only.
    """
    if work.dropout or work.backward != (work.kind == EFFICIENT):
        return 1
    along = work.queries if work.backward else work.keys
    return max(1, min(processors // blocks, along // 128))


# --- one score ------------------------------------------------------------------------------------


def _widths(work: Attention) -> int:
    return work.size + work.value_size


def _score_s(work: Attention, accelerator: Accelerator) -> float:
    """Seconds that a score takes on the whole device."""
    size, value_size = _padded(work)
    products = 3 * size + 2 * value_size if work.backward else size + value_size
    product_s = 2 * products / _product_rate(work, accelerator)
    lanes_per_s = accelerator.rate("float32") / 2
    exponential_s = lanes(accelerator) / _EXPONENTIALS_A_CLOCK / lanes_per_s
    drawing_s = _INSTRUCTIONS_OF_DROPOUT[work.kind] / lanes_per_s if work.dropout else 0.0
    return product_s + _exposed(work) * exponential_s + drawing_s


def _padded(work: Attention) -> tuple[int, int]:
    """Sizes of heads that are computed: those that there are kernels for."""
    if work.kind == EFFICIENT:  # results have tiles of their own, 64 or 128 wide
        size, value_size = _in_tiles(work.size), _in_tiles(work.value_size)
        return size if work.backward else work.size, value_size
    size = next((known for known in _HEADS if known >= work.size), work.size)
    return size, size if work.size == work.value_size else work.value_size


def _in_tiles(size: int) -> int:
    return 64 if size <= 64 else ceil(size / 128) * 128


def _exposed(work: Attention) -> float:
    if work.kind == EFFICIENT:
        return constants.EFFICIENT_EXPOSED
    return (
        constants.ATTENTION_EXPOSED_BACKWARD
        if work.backward
        else constants.ATTENTION_EXPOSED_FORWARD
    )


def _product_rate(work: Attention, accelerator: Accelerator) -> float:
    """FLOP/s of the products alone."""
    by_mma = _share_by_mma(accelerator) / constants.ATTENTION_PRODUCTS
    if work.kind == EFFICIENT:
        return _efficient_rate(work, accelerator) * by_mma
    # Rates that were measured are those that products reach.
    share = 1.0 if accelerator.measured else constants.ATTENTION_PRODUCTS
    if work.kind == FLEX and work.backward:
        share *= constants.FLEX_BACKWARD
    return accelerator.rate(work.dtype) * share * (by_mma if work.kind in (FLASH, FLEX) else 1.0)


def _share_by_mma(accelerator: Accelerator) -> float:
    """Of the rate of tensor cores, what kernels made for Ampere reach.

    The instructions of B200 are twice as fast as Hopper's, that of Ampere is assumed to be no
    faster; GeForce cards of Blackwell have no other.
    """
    major, _ = compute_capability(accelerator)
    shares = {9: constants.ATTENTION_BY_MMA, 10: constants.ATTENTION_BY_MMA / 2}
    return shares.get(major, constants.ATTENTION_PRODUCTS)


def _efficient_rate(work: Attention, accelerator: Accelerator) -> float:
    """Tensor cores multiply fp32 as three products of TF32, which keep its precision."""
    half, rates = _ITEM_BYTES[work.dtype] == 2, accelerator.flops_per_s
    plain = rates["float32"] * constants.EFFICIENT_PLAIN
    if not half:
        rate = max(rates.get("tfloat32", 0.0) / 3 * constants.EFFICIENT_AMPERE, plain)
    elif accelerator.rate(work.dtype) <= rates["float32"]:
        rate = plain
    else:
        in_background = accelerator.architecture not in ("volta", "turing")
        share = constants.EFFICIENT_AMPERE if in_background else constants.EFFICIENT_VOLTA
        rate = accelerator.rate(work.dtype) * share
    return rate * constants.EFFICIENT_BACKWARD[half] if work.backward else rate


# --- bytes ----------------------------------------------------------------------------------------


def _tensor_bytes(work: Attention) -> tuple[int, int, int, int]:
    """Of queries, keys, values and the result."""
    item = work.batch * _ITEM_BYTES[work.dtype]
    keys = item * work.key_heads * work.keys
    queries = item * work.heads * work.queries
    return queries * work.size, keys * work.size, keys * work.value_size, queries * work.value_size


def _before_bytes(work: Attention) -> int:
    """Backward, the result and its gradient are multiplied row by row, and the sums cleared."""
    return 2 * _tensor_bytes(work)[3] + workspace_bytes(work)


def _after_bytes(work: Attention) -> int:
    """The sums are read and rounded; so are the gradients of keys that several heads share."""
    queries, keys, values, _ = _tensor_bytes(work)
    summed = workspace_bytes(work) + queries if workspace_bytes(work) else 0
    shared = work.heads // work.key_heads
    return summed + ((shared + 1) * (keys + values) if shared > 1 else 0)


def workspace_bytes(work: Attention) -> int:
    """Memory that one backward pass takes for a while: gradients of queries in fp32."""
    if not work.backward or _ITEM_BYTES[work.dtype] == 4 or work.kind == FLEX:
        return 0  # `flex_attention` goes along queries, and once more along keys
    return 4 * work.batch * work.heads * work.queries * work.size
