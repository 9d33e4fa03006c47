"""DistributedDataParallel's buckets: which gradients are averaged together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

# The defaults of torch: `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`, and `bucket_cap_mb=25`.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
DEFAULT_LIMITS = (FIRST_BUCKET_BYTES, BUCKET_BYTES)


def assign_buckets(
    sizes_bytes: Sequence[int],
    limits_bytes: Sequence[float] = DEFAULT_LIMITS,
    kinds: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """The members of each bucket, by their place in `sizes_bytes`, as torch assigns them.

    A bucket is closed once it has the bytes of its limit: the first, the second, and so on of
    `limits_bytes`; further ones have the last. Gradients of different `kinds` (data types) are in
    buckets of their own, and each kind begins with the first limit. What is left at the end makes
    the last buckets, in the order in which they were begun
    (`compute_bucket_assignment_by_size` in torch's reducer.cpp).

    Raises ValueError unless all limits are above zero.
    """
    for limit in limits_bytes:
        if not limit > 0:
            raise ValueError(f"a bucket holds more than zero bytes, not {limit!r}")
    closed: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    held: dict[Hashable, int] = {}
    closed_of: dict[Hashable, int] = {}
    for i, nbytes in enumerate(sizes_bytes):
        kind = None if kinds is None else kinds[i]
        filling.setdefault(kind, []).append(i)
        held[kind] = held.get(kind, 0) + nbytes
        count = closed_of.setdefault(kind, 0)
        if held[kind] >= limits_bytes[min(count, len(limits_bytes) - 1)]:
            closed.append(filling.pop(kind))
            held[kind], closed_of[kind] = 0, count + 1
    return closed + list(filling.values())
