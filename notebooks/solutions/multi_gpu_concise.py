"""Solutions of the exercises of lesson 05."""


def shards_seen(images: int, devices: int) -> list[int]:
    """Shards of one size, rounded up, until nothing is left."""
    size = -(-images // devices)
    starts = range(0, images, size)
    return [min(size, images - start) for start in starts]


def bucket_plan(sizes_bytes, first_bytes, cap_bytes) -> list:
    """From the last gradient to the first; the rest goes, too."""
    plan, bucket, held = [], [], 0
    for i in reversed(range(len(sizes_bytes))):
        bucket.append(i)
        held += sizes_bytes[i]
        if held >= (cap_bytes if plan else first_bytes):
            plan.append(bucket)
            bucket, held = [], 0
    return [*plan, bucket] if bucket else plan


def whole_batch(counts, means, variances) -> tuple:
    """The variance in shards and that of their means, weighted."""
    weights = (counts / counts.sum())[:, None]
    mean = (weights * means).sum(0)
    squares = variances + (means - mean) ** 2
    return mean, (weights * squares).sum(0)
