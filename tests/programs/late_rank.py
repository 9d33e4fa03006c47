"""Rank 1 comes late to calls over gloo, in groups that wait for half a second.

Each rank prints what it met: torchrun with real processes, and with virtual ranks, must agree.
"""

import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT, LATE_S = timedelta(seconds=0.5), 1.5
KINDS = (
    r"Timed out waiting \d+ms",
    r"Operation timed out",
    r"Connection closed by peer",
    r"wait timeout after \d+ms",
    r"Ranks? [\d, ]+ failed to pass monitoredBarrier",
)


def cases(group, rank):
    x, y, objects = torch.ones(4), torch.ones(4), [None, None]
    store = dist.PrefixStore("late/", dist.distributed_c10d._get_default_store())
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "awaited": lambda: dist.all_reduce(x, group=group, async_op=True).wait(),
        "wait": lambda: dist.all_reduce(x, async_op=True).wait(LIMIT / 2),
        "barrier": lambda: dist.barrier(group),
        "its limit": lambda: dist.barrier(group, timeout=3 * LATE_S * timedelta(seconds=1)),
        "root": lambda: dist.broadcast(x, 0, group=group),
        "objects": lambda: dist.all_gather_object(objects, rank, group=group),
        "send": lambda: dist.recv(x, 0, group) if rank else dist.send(x, 1, group),
        "recv": lambda: dist.send(y, 0, group) if rank else dist.recv(y, 1, group),
        "monitored": lambda: dist.monitored_barrier(group, timeout=LIMIT),
        "patient": lambda: dist.monitored_barrier(group),
        "get": lambda: store.set("there", "1") if rank else store.wait(["there"], LIMIT),
        "other": lambda: dist.all_reduce(x, group=dist.new_group([0, 1])),
    }


def met(call):
    begin_s = time.time()
    try:
        call()
    except RuntimeError as error:
        found = (re.search(kind, str(error)) for kind in KINDS)
        text = next((match[0] for match in found if match), str(error))
        return f"{type(error).__name__}: {text}, {int(time.time() - begin_s)} s"
    return "passed"


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    everyone = dist.new_group([0, 1])
    for name in cases(None, rank):
        dist.barrier(everyone)
        group = dist.new_group([0, 1], timeout=LIMIT)
        if name == "wait":  # breaks the group of all, whose own limit is long
            dist.destroy_process_group(group)
            group = None
        time.sleep(LATE_S * rank)
        line = f"rank {rank} {name}: {met(cases(group, rank)[name])}"
        print(line + "\n", end="", flush=True)  # in one piece: real ranks write at the same time


if __name__ == "__main__":
    main()
