"""NCCL's own figures: algorithms, protocols, latencies, limits and channels.

What is here is printed in NCCL's source (https://github.com/NVIDIA/nccl, commit 5067397c:
src/graph/tuning.cc, topo.h, transport/nvls.cc), but for the few figures under "fitted", which say
what they were fitted on. One table serves all machines: rows differ by generation, not by machine.
"""

from __future__ import annotations

from math import inf

from ..hardware import GIGA, MICRO

RING, TREE, NVLS, COLLNET = "ring", "tree", "nvls", "collnet"
ALGORITHMS = (RING, TREE, NVLS, COLLNET)
LL, LL128, SIMPLE = "LL", "LL128", "Simple"
PROTOCOLS = (LL, LL128, SIMPLE)
NVLINK, PCIE, HOST = "nvlink", "pcie", "host"

# Microseconds for LL, LL128 and Simple: once, and for each step over a medium.
BASE_US = {RING: (6.6, 14.0, 8.4), TREE: (6.8, 14.0, 8.4)}
_PCIE_STEP_US = {RING: (1.0, 2.5, 5.7), TREE: (1.0, 1.9, 4.0), COLLNET: (inf, inf, 3.7)}
STEP_US = {
    NVLINK: {
        RING: (0.6, 1.9, 3.4),
        TREE: (0.6, 1.25, 4.0),
        NVLS: (inf, inf, 25),
        COLLNET: (inf, inf, 3.7),
    },
    PCIE: _PCIE_STEP_US,
    HOST: _PCIE_STEP_US,
    "network": {
        RING: (2.7, 4.0, 14.0),
        TREE: (5.0, 8.5, 14.0),
        NVLS: (inf, inf, 18),
        COLLNET: (inf, inf, 31),
    },
}
# The latency of the network that these suppose (NCCL 2.8's figure); plugins report what is beyond.
NETWORK_LATENCY_S = 9.6 * MICRO
# What a message takes beyond that, in µs, by how a network's name begins. Amazon's plugin reports
# it: https://github.com/aws/aws-ofi-nccl, src/platform-aws.cpp (75 for p4d, 35 for p5en). Others
# are fitted on two nodes: Google's TCP on A3 High (997 µs for an all-gather of 1 MiB, 1789 for an
# all-reduce) and A3 Mega (85 and 134 µs for all-gathers of 1 KiB and 1 MiB), Google's RoCE on A3
# Ultra and A4 (54 and 39 µs for 1 KiB: cluster-toolkit, 2025-2026); NCCL's sockets, through the
# kernels of both hosts, on two T4 (109 µs for an all-reduce of 1 KiB: aws-do-eks, 2022).
PLUGIN_US = {
    "efa-v1": 75.0, "efa-": 35.0,
    "tcpxo": 65.0, "tcpx": 750.0, "gib": 14.0,
    "10gbe": 48.0, "25gbe": 48.0, "50gbe": 48.0,
}  # fmt: skip
COLLNET_ARITY_US = 0.4
# Blackwell takes longer to begin. Fitted on 8 and 4 of them: 28 µs for 8 KiB, 25 µs for 1 MiB
# (Oracle, oci-hpc-oke, GB200, 2025; Yang, gpu-tpu-pedia, GB300, 2026).
BEGIN_US = {"blackwell": 9.0}
# What a host needs to post a message to the network: Intel's, AMD's; three posts in Simple.
POST_US, POST_US_AMD, SIMPLE_POSTS = 1.0, 2.0, 3
# Rings take this many times their latency in Simple ("Plateau effect of ring") from 64 bytes a rank
# and channel on; measured within a node it comes later, by 256 KiB: all-gathers grow from 35 µs at
# 1 KiB to 56 at 256 KiB on 8 V100, to 61 at 1 MiB on 8 H800 (Panlichen, nccl-tests, 2024).
PLATEAU = {"volta": 1.9, "ampere": 1.4, "hopper": 1.4, "blackwell": 1.4}

# GB/s that LL reaches at most, on one node by GPU; on two and on more nodes by processor.
LL_GPU = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
LL_INTEL, LL_AMD = (39.0, 20.4), (22.5, 19.0)
# LL sends a flag with each word: half of a link is data. NCCL up to 2.19, which was tuned on Volta
# and Ampere, takes a quarter over their NVLink.
LL_SHARE, LL_SHARE_OLD_NVLINK = 1 / 2, 1 / 4
# A channel of LL works with 512 threads, each on 8 bytes of every rank; less takes fewer channels.
LL_THREAD_BYTES, LL_THREADS = 8, 512
AMPERE_BUS = 235 * GIGA  # NCCL 2.8's cap (commit 01afd20a)
# GB/s of one NVLink; of Volta's measured (`catalogue.links`).
LINK = {"volta": 22.4, "ampere": 20.0, "hopper": 20.6, "blackwell": 40.1}
# Intel's host bridges cut what passes from GPU to GPU into packets of 64 bytes.
INTEL_P2P_OVERHEAD = 6 / 5
# Trees between 64 B and 256 MB, a factor for each power of two: "a static correction factor".
_TREE_FACTORS = {
    LL: "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1",
    LL128: "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1",
    SIMPLE: ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9",
}
TREE_FACTORS = {
    protocol: [float(f) for f in row.split()] for protocol, row in _TREE_FACTORS.items()
}

# Channels: each is a block of its kernel's, on a multiprocessor of its own, with buffers. Two for
# each NVLink, 24 at most (its logs: "24 coll channels" on A100 and H100); two to four over PCIe.
MOST_CHANNELS = 24
NETWORK_CHANNEL = 24 * GIGA  # what a channel is given of the network: two for a port of 400 Gbit/s
PCIE_CHANNELS = {PCIE: 4, HOST: 2}
NVLS_CHANNELS = {"hopper": 16, "blackwell": 24}
NVLS_CHANNELS_OF_SEVERAL_NODES = {"hopper": 16, "blackwell": 32}
CHUNK_BYTES = 128 * 1024  # of NVLS (NCCL_NVLS_CHUNKSIZE); trees' are taken as large

# --- fitted ---------------------------------------------------------------------------------------

# What a ring hands on at once. Fitted on an all-reduce of 16 MiB: LL128 on two nodes of 8 A100
# (274 µs: dstack, 2026); that Simple over several nodes hands on half as much is a hypothesis.
# 8 A100 of one node hand on as much as NVLS does: 128 MiB take 1.35 ms (Azure, ND A100 v4, 2024).
RING_CHUNK_BYTES = {LL128: 64 * 1024, SIMPLE: 32 * 1024}
# Bytes a second, summed, that one channel of NVLS carries: its block adds and copies no faster.
# Fitted on 8 H100 (479 GB/s bus bandwidth at 8 GiB by 16 channels: Azure, AI-benchmarking-guide,
# ND H100 v5, 2024); 72 GB200 reach the same (835 GB/s by 24: CoreWeave, nccl-tests README, 2025).
NVLS_CHANNEL = 17.5 * GIGA
# What is left of that where blocks also copy to and from the network. Fitted on two nodes of 8
# H100: 469 GB/s at 16 GiB (NVIDIA/nccl-tests issue 309), 487 (AWS, p5, 2025).
NVLS_TREE_SHARE = 0.9
# The same for LL over NVLink, where few channels are in use: 64 KiB take 2, 256 KiB 8. Fitted on 8
# H100: 19.1 µs and 20.3 µs (AWS, awsome-distributed-training, NCCL tests on AWS Batch, 2024).
LL_CHANNEL = 10 * GIGA
# The share that is left of the least rate on the way where the network adds (SHARP). Fitted on 64
# H100: 386.6 GB/s at 8 GiB (CoreWeave, nccl-tests README, 2025); NCCL itself reckons with 0.85.
COLLNET_SHARE = 0.92
# The share of its link's payload that a GPU writes to and reads from the host's memory at once, in
# kernels. CPUs "do not handle bidirectional traffic well" (nccl issue 384); on PCIe 3.0 it is 9 of
# 12 GB/s, or 6 (issue 406). Fitted on 8 L20 without peers: 6.1 GB/s, the mean from 8 B to 512 MiB
# (issue 1817).
HOST_SHARE = 0.65
# What is left of that where two GPUs send to and fro, so that one way through the processor carries
# both. Fitted on two RTX 4090: 9.0 GB/s, where a broadcast has 18.3 (Panlichen, nccl-tests, 2024).
HOST_TO_AND_FRO = 0.58
# The share of its line that a network of Ethernet's kind reaches under load: it spreads flows by
# hashes, which collide, and slows them down afterwards, where InfiniBand sends nothing that the
# other side has no room for. Fitted on all-reduces that the network limits: 41.8 of 50 GB/s on two
# p4de and 370 of 400 on 16 p5en (AWS, awsome-distributed-training, 2025), 320 of 400 over RoCE on
# four nodes of H100 (NVIDIA/nccl issue 1221, 2024).
ETHERNET_SHARE = 0.87
ETHERNETS = ("gbe", "efa-", "tcpx", "gib", "slingshot")  # in the catalogue's names
# Seconds for each GPU whose part one host thread launches, within a group call. Fitted on 8 A100, 8
# H100 and 8 H200, each driven by one process: 43, 42 and 31 µs however few the bytes (Azure, ND
# A100 v4, H100 v5 and H200 v5, 2024).
LAUNCH_S = 5.0e-6
