"""Data parallelism on real ranks: speed-up measured and predicted, DDP against an all-reduce by
hand, and what an all-reduce costs beside a copy.

Each rank has one thread and one core. All kinds of steps take turns, so that other programs disturb
all of them; a step has taken as long as on the slowest rank. The prediction is the step-time
model's. t1 is a step of b samples without an exchange, measured while all ranks compute, since they
share memory and caches; t1 of a rank alone stands beside it. t2 are the all-reduces of its buckets,
each after a step, when caches hold other things. Exchanging takes the very core that computes, so
that nothing is won by doing both at once: a step takes t1 + t2.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from machine import this_machine
from torch.nn import functional as F

import d2lpar as par
from d2lpar import models, scaling

N, WIDTH, PIXELS, BATCH = 2, 16, 28, 128
BUCKET_MB = 1  # the network has 2.8 MB of gradients: there shall be more than one bucket
SIZES = [4**i * 1024 for i in range(1, 9)]
SPEED_UP_GOAL, ERROR_GOAL = 1.8, 0.15

# --- on the ranks ---------------------------------------------------------------------------------


def ring_all_reduce(tensor):
    """Lesson 04's ring, with send and receive: n pieces go round twice, added up the first time."""
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = tensor.view(-1).tensor_split(n)
    for step in range(2 * (n - 1)):
        mine, other = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        received = torch.empty_like(other)
        send = dist.P2POp(dist.isend, mine, (rank + 1) % n)
        recv = dist.P2POp(dist.irecv, received, (rank - 1) % n)
        for work in dist.batch_isend_irecv([send, recv]):
            work.wait()
        if step < n - 1:
            other += received
        else:
            other.copy_(received)


def each_by_hand(gradients):
    """A ring for each gradient."""
    for gradient in gradients:
        ring_all_reduce(gradient)
        gradient /= dist.get_world_size()


def joined_by_hand(gradients):
    """One ring for all gradients, joined."""
    joined = torch.cat([gradient.view(-1) for gradient in gradients])
    ring_all_reduce(joined)
    joined /= dist.get_world_size()
    parts = joined.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def training(exchange=None, bucket_mb=None):
    """A step of a new network on b samples of this rank; the network and its optimizer."""
    torch.manual_seed(0)
    net = inner = models.resnet18(width=WIDTH)
    if bucket_mb is not None:
        net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    torch.manual_seed(dist.get_rank() + 1)
    X, y = torch.rand(BATCH, 1, PIXELS, PIXELS), torch.randint(10, (BATCH,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(X), y).backward()
        if exchange is not None:
            exchange([p.grad for p in inner.parameters()])
        optimizer.step()

    return step, inner, optimizer


def seconds(work, before=None):
    """Of a call that all ranks begin at once, `before` it another one."""
    if before is not None:
        before()
    dist.barrier()
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def measured(rounds, steps):
    """On a rank: its step, seconds by name, and by name the share of them on a processor."""
    alone, net, optimizer = training()
    ways = {
        "alone": (alone if dist.get_rank() == 0 else int,),
        "together": (alone,),
        "DDP": (training(bucket_mb=BUCKET_MB)[0],),
        "joined": (training(joined_by_hand)[0],),
        "each": (training(each_by_hand)[0],),
    }
    for (step,) in ways.values():  # warm up; DDP rearranges its buckets in the second step
        step()
        step()
    profile = scaling.timed_step(alone, net, optimizer, repeats=steps)
    sizes = [bucket.bytes for bucket in scaling.buckets(profile.gradients, BUCKET_MB * 2**20)]
    dist.broadcast_object_list(sizes)
    for nbytes in sizes:
        tensor = torch.zeros(nbytes // 4)
        ways[nbytes] = (lambda tensor=tensor: dist.all_reduce(tensor), alone)
    taken_s, processor_s = {name: [] for name in ways}, dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for name, way in ways.items():
            begun_s = time.process_time()
            taken_s[name] += [seconds(*way) for _ in range(steps)]
            processor_s[name] += time.process_time() - begun_s
    return profile, taken_s, {name: processor_s[name] / sum(taken_s[name]) for name in ways}


def all_reduces(repeats):
    """Medians of the seconds of an all-reduce, and of a copy, for each of SIZES."""
    found = []
    for nbytes in SIZES:
        tensor, other = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
        works = (lambda t=tensor: dist.all_reduce(t), lambda t=tensor, o=other: o.copy_(t))
        times_s = [[seconds(work) for work in works] for _ in range(repeats + 1)]
        found.append([statistics.median(column) for column in zip(*times_s[1:], strict=True)])
    return found


# --- in this process ------------------------------------------------------------------------------


def row(what, value, unit, note=""):
    print(f"{what:<52}{value:>9.2f} {unit:<5} {note}".rstrip())


def verdict(met):
    return "met" if met else "MISSED"


def main():
    """Print the tables; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3, help="of each kind, in a round")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{N} ranks on {this_machine()}")
    with par.cluster(N) as ranks:
        profiles, taken_s, shares = zip(
            *ranks.run(measured, options.rounds, options.steps), strict=True
        )
        table = ranks.run(all_reduces, 20)[0]
    slowest_s = {
        name: statistics.median(map(max, *(of_rank[name] for of_rank in taken_s)))
        for name in taken_s[0]
    }
    slowest_s["alone"] = statistics.median(taken_s[0]["alone"])
    row("of a core, a rank alone had", shares[0]["alone"], "")
    row("of a core each, ranks at once had", min(of["together"] for of in shares), "")
    met = tell_speed_up(profiles[0], slowest_s)
    tell_by_hand(slowest_s)
    tell_all_reduces(table)
    raise SystemExit(not met)


def tell_speed_up(profile, slowest_s):
    """Whether both goals are met."""
    print(f"ResNet-18 of width {WIDTH}, {BATCH} images of {PIXELS} x {PIXELS} a rank")
    alone_s, together_s, step_s = (slowest_s[name] for name in ("alone", "together", "DDP"))
    row("t1, a rank alone", 1e3 * alone_s, "ms")
    row(f"t1, {N} ranks at once", 1e3 * together_s, "ms", f"{together_s / alone_s:.2f}x")
    buckets = [bucket.bytes for bucket in scaling.buckets(profile.gradients, BUCKET_MB * 2**20)]
    t2_s = sum(slowest_s[nbytes] for nbytes in buckets)
    sizes = " + ".join(f"{nbytes / 1e6:.1f}" for nbytes in buckets)
    row(f"t2, all-reduces of {sizes} MB", 1e3 * t2_s, "ms")
    row("a step with DDP", 1e3 * step_s, "ms")
    at_once = profile.scaled_to(together_s)
    model_s = scaling.step_s(at_once, lambda _: t2_s, bucket_bytes=scaling.ONE_BUCKET)
    overlapped_s = scaling.step_s(at_once, slowest_s.__getitem__, bucket_bytes=BUCKET_MB * 2**20)
    error, speed_up = model_s / step_s - 1, N * alone_s / step_s
    goal = f"target: within {ERROR_GOAL:.0%}: {verdict(abs(error) <= ERROR_GOAL)}"
    row("  predicted", 1e3 * model_s, "ms", f"{error:+.1%}, {goal}")
    row(
        "  if exchanging took no core",
        1e3 * overlapped_s,
        "ms",
        f"{overlapped_s / step_s - 1:+.1%}",
    )
    row("  from t1 alone", 1e3 * (alone_s + t2_s), "ms", f"{(alone_s + t2_s) / step_s - 1:+.1%}")
    goal = f"target: at least {SPEED_UP_GOAL}: {verdict(speed_up >= SPEED_UP_GOAL)}"
    row(f"speed-up of {N} ranks", speed_up, "x", goal)
    row("  predicted", N * alone_s / model_s, "x")
    return speed_up >= SPEED_UP_GOAL and abs(error) <= ERROR_GOAL


def tell_by_hand(slowest_s):
    for name, what in (("joined", "one ring by hand"), ("each", "a ring by hand a gradient")):
        ratio = slowest_s[name] / slowest_s["DDP"]
        row(f"a step with {what}", 1e3 * slowest_s[name], "ms", f"{ratio:.2f}x DDP's")


def tell_all_reduces(table):
    print(f"{'bytes':>12}{'all-reduce':>14}{'':>11}{'copy':>14}{'':>11}{'ratio':>8}")
    for nbytes, (reduce_s, copy_s) in zip(SIZES, table, strict=True):
        columns = "".join(
            f"{1e6 * taken_s:>11.1f} µs{nbytes / taken_s / 1e9:>6.2f} GB/s"
            for taken_s in (reduce_s, copy_s)
        )
        print(f"{nbytes:>12,}{columns}{reduce_s / copy_s:>8.1f}")


if __name__ == "__main__":
    main()
