"""Solutions of the exercises of lesson 04; `tests/test_checks.py` runs them."""

import torch


def shards_seen(images: int, devices: int) -> list[int]:
    """Shards of the same size, rounded up, until nothing is left."""
    size = -(-images // devices)
    return [min(size, images - start) for start in range(0, images, size)]


def bucket_plan(sizes_bytes: list[int], first_bytes: int, cap_bytes: int) -> list[list[int]]:
    """From the last gradient to the first; a full bucket goes, and so does the rest."""
    plan, bucket, held = [], [], 0
    for i in reversed(range(len(sizes_bytes))):
        bucket.append(i)
        held += sizes_bytes[i]
        if held >= (cap_bytes if plan else first_bytes):
            plan.append(bucket)
            bucket, held = [], 0
    return [*plan, bucket] if bucket else plan


def whole_batch(counts, means, variances) -> tuple[torch.Tensor, torch.Tensor]:
    """The variance inside the shards, and that of their means, both weighted."""
    weights = (counts / counts.sum())[:, None]
    mean = (weights * means).sum(0)
    return mean, (weights * (variances + (means - mean) ** 2)).sum(0)
