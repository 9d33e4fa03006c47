"""Solutions of the exercises of lesson 04; `tests/test_checks.py` runs them."""

import torch
import torch.distributed as dist


def shards_seen(images: int, devices: int) -> list[int]:
    """Shards of the same size, rounded up, until nothing is left."""
    size = -(-images // devices)
    return [
        min(size, images - start) for start in range(0, images, size)
    ]


def bucket_plan(
    sizes_bytes: list[int], first_bytes: int, cap_bytes: int
) -> list[list[int]]:
    """From the last gradient to the first; a full bucket goes, and so does the rest."""
    plan, bucket, held = [], [], 0
    for i in reversed(range(len(sizes_bytes))):
        bucket.append(i)
        held += sizes_bytes[i]
        if held >= (cap_bytes if plan else first_bytes):
            plan.append(bucket)
            bucket, held = [], 0
    return [*plan, bucket] if bucket else plan


def whole_batch(
    counts, means, variances
) -> tuple[torch.Tensor, torch.Tensor]:
    """The variance inside the shards, and that of their means, both weighted."""
    weights = (counts / counts.sum())[:, None]
    mean = (weights * means).sum(0)
    return mean, (weights * (variances + (means - mean) ** 2)).sum(0)


def flat(net, loss) -> None:
    """One buffer for all gradients: one latency, and nothing is sent during backward."""
    loss.backward()
    gradients = [p.grad for p in net.parameters()]
    buffer = joined(gradients) / dist.get_world_size()
    dist.all_reduce(buffer)
    write_back(buffer, gradients)


def overlapped(net, loss) -> None:
    """Every gradient is sent as soon as it is complete; waiting comes after backward."""
    works = []

    def send(p):
        p.grad /= dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))

    hooks = [
        p.register_post_accumulate_grad_hook(send)
        for p in net.parameters()
    ]
    loss.backward()
    for work in works:
        work.wait()
    for hook in hooks:
        hook.remove()


def bucketed(net, loss, cap_bytes=5_000_000) -> None:
    """Gradients are collected; a full bucket is sent, and what is left at the end, too."""
    bucket, sent = [], []

    def send():
        buffer = joined(bucket) / dist.get_world_size()
        sent.append(
            (
                dist.all_reduce(buffer, async_op=True),
                buffer,
                bucket.copy(),
            )
        )
        bucket.clear()

    def collect(p):
        bucket.append(p.grad)
        if sum(gradient.nbytes for gradient in bucket) >= cap_bytes:
            send()

    hooks = [
        p.register_post_accumulate_grad_hook(collect)
        for p in net.parameters()
    ]
    loss.backward()
    if bucket:
        send()
    for work, buffer, gradients in sent:
        work.wait()
        write_back(buffer, gradients)
    for hook in hooks:
        hook.remove()


def joined(gradients) -> torch.Tensor:
    """All gradients in one buffer."""
    return torch.cat([gradient.flatten() for gradient in gradients])


def write_back(buffer, gradients) -> None:
    """Each gradient gets its part of the buffer."""
    parts = buffer.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
