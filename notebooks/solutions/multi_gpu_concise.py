"""Solutions of the exercises of lesson 05."""

import torch
import torch.distributed as dist


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


def flat(net, loss) -> None:
    """One buffer, one latency; nothing is sent in backward."""
    loss.backward()
    gradients = [p.grad for p in net.parameters()]
    buffer = joined(gradients)
    dist.all_reduce(buffer)
    write_back(buffer, gradients)


def overlapped(net, loss) -> None:
    """Each gradient is sent when complete; we wait at the end."""
    works = []

    def send(p):
        p.grad /= dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))

    hooks = hooks_on(net, send)
    loss.backward()
    for work in works:
        work.wait()
    for hook in hooks:
        hook.remove()


def bucketed(net, loss, cap_bytes=5_000_000) -> None:
    """A full bucket is sent, and at the end what is left."""
    bucket, sent = [], []

    def send():
        buffer = joined(bucket)
        work = dist.all_reduce(buffer, async_op=True)
        sent.append((work, buffer, bucket.copy()))
        bucket.clear()

    def collect(p):
        bucket.append(p.grad)
        if sum(grad.nbytes for grad in bucket) >= cap_bytes:
            send()

    hooks = hooks_on(net, collect)
    loss.backward()
    if bucket:
        send()
    for work, buffer, gradients in sent:
        work.wait()
        write_back(buffer, gradients)
    for hook in hooks:
        hook.remove()


def hooks_on(net, function) -> list:
    """Calls `function(p)` when the gradient of p is complete."""
    hooks = []
    for p in net.parameters():
        hook = p.register_post_accumulate_grad_hook(function)
        hooks.append(hook)
    return hooks


def joined(gradients) -> torch.Tensor:
    """A rank's part of the average, in one buffer."""
    buffer = torch.cat([grad.flatten() for grad in gradients])
    return buffer / dist.get_world_size()


def write_back(buffer, gradients) -> None:
    """Each gradient gets its part of the buffer."""
    sizes = [grad.numel() for grad in gradients]
    parts = buffer.split(sizes)
    for grad, part in zip(gradients, parts, strict=True):
        grad.copy_(part.view_as(grad))
