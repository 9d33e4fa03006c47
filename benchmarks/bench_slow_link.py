"""A step of DDP on two hosts with a slow link between them, measured beside lesson 06's t1 and t2.

The hosts are two ranks of this machine, each with a network of its own, and a cable between the
two whose rate Linux limits (tc's token bucket, both ways). t1 is a rank's step without an exchange,
measured while both compute; t2 is computed: in a ring of two each rank sends all S bytes of the
gradients once, at the link's rate, of which headers of Ethernet, IP and TCP take their part. The
bucket model exchanges a bucket as soon as it is full, while backward goes on. Nothing is fitted.
Skipped where this user may not make networks.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from machine import this_machine
from torch.nn import functional as F

import d2lpar as par
from d2lpar import models, scaling

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import two_hosts

WIDTH, PIXELS, BATCH, BUCKET_MB = 16, 28, 32, 1  # lesson 06's network
MBIT_PER_S = (1000, 300, 100, 30)
FRAME, PAYLOAD = 1514, 1448  # bytes: what a full frame has, and what of it TCP carries for us
ERROR_GOAL = 0.15

PLACE = {
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": two_hosts.ADDRESSES[0],
    "MASTER_PORT": "29500",
    "GLOO_SOCKET_IFNAME": two_hosts.CABLE,
    "OMP_NUM_THREADS": "1",
    "D2LPAR_DEVICES": "virtual",
}


# --- on the two hosts -----------------------------------------------------------------------------


def limit(mbit_per_s):
    """Let this host send so many bits a second."""
    queue = f"tbf rate {mbit_per_s}mbit burst 64kb limit 10mb"
    subprocess.run(["tc", *f"qdisc replace dev {two_hosts.CABLE} root {queue}".split()], check=True)


def training(bucket_mb=None):
    """A step of the network, the network and its optimizer."""
    torch.manual_seed(0)
    net = models.resnet18(width=WIDTH)
    if bucket_mb is not None:
        net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    X, y = torch.rand(BATCH, 1, PIXELS, PIXELS), torch.randint(10, (BATCH,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(X), y).backward()
        optimizer.step()

    return step, net, optimizer


def seconds(work):
    """Of a call that both hosts begin at once."""
    dist.barrier()
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def slowest(times_s):
    """The median of the slower host's times, call by call, by name."""
    of_ranks = [None, None]
    dist.all_gather_object(of_ranks, times_s)
    return {
        name: statistics.median(map(max, *(of_rank[name] for of_rank in of_ranks)))
        for name in times_s
    }


def measured(ways, rounds):
    times_s = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times_s[name].append(seconds(way))
    return slowest({name: of[1:] for name, of in times_s.items()})


def on_rank(rounds):
    """Whether all goals are met, which rank 0 tells."""
    alone, net, optimizer = training()
    ways = {"t1": alone, "DDP": training(BUCKET_MB)[0]}
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    ways["all-reduce"] = lambda: dist.all_reduce(flat)
    for way in (*ways.values(), ways["DDP"]):  # DDP rearranges its buckets in the second step
        way()
    profile = scaling.timed_step(alone, net, optimizer, repeats=rounds)
    met = []
    for mbit_per_s in MBIT_PER_S:
        limit(mbit_per_s)
        found = measured(ways, rounds)
        if dist.get_rank() == 0:
            met.append(tell(mbit_per_s, found, profile, flat.nbytes))
    return all(met)


def tell(mbit_per_s, found, profile, nbytes):
    """A line of the table; whether the goal is met."""
    bytes_per_s = mbit_per_s * 1e6 / 8 * PAYLOAD / FRAME
    t1_s, t2_s = found["t1"], nbytes / bytes_per_s
    model_s = scaling.step_s(
        profile.scaled_to(t1_s), lambda b: b / bytes_per_s, bucket_bytes=BUCKET_MB * 2**20
    )
    columns = (t1_s, t2_s, found["all-reduce"], max(t1_s, t2_s), model_s, t1_s + t2_s, found["DDP"])
    error = model_s / found["DDP"] - 1
    verdict = "met" if abs(error) <= ERROR_GOAL else "MISSED"
    numbers = "".join(f"{1e3 * value:>11.1f}" for value in columns)
    print(f"{mbit_per_s:>6}{numbers}   {error:+.1%}: {verdict}", flush=True)
    return verdict == "met"


def main():
    """Print the table; exit with 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    if "HOST_NUMBER" in os.environ:
        os.environ["RANK"] = os.environ["HOST_NUMBER"]
        with par.launch.process_group("gloo"):
            raise SystemExit(not on_rank(options.rounds))
    if missing := two_hosts.why_not("tc"):
        print(f"skipped: {missing}")
        return
    print(f"2 hosts that are one: {this_machine()}")
    print(
        f"DDP, ResNet-18 of width {WIDTH}, {BATCH} images a rank; ms; t1, all-reduce, DDP measured"
    )
    heads = ("t1", "t2", "all-reduce", "max", "buckets", "t1 + t2", "DDP")
    print("Mbit/s" + "".join(f"{head:>11}" for head in heads), end="")
    print(f"   buckets' error, target {ERROR_GOAL:.0%}", flush=True)
    command = two_hosts.on_both(sys.executable, *sys.argv)
    raise SystemExit(subprocess.run(command, env=os.environ | PLACE).returncode)


if __name__ == "__main__":
    main()
