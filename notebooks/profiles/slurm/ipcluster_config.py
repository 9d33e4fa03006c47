"""Ranks as a Slurm job: `par.cluster(16, profile="slurm")`. Adapt what is marked CHANGE.

The notebook runs on a login node, or in a job of its own; its ranks are submitted with sbatch and
wait in the queue: give `timeout_s` the patience that takes. When they stop, the job is cancelled.
d2lpar must be importable by the same path on every node (a home that all share will do).
"""

c = get_config()  # noqa: F821

c.Cluster.engine_launcher_class = "slurm"

# How many ranks, if the call does not say.
c.Cluster.n = 16

# The notebook's machine listens where the nodes can reach it.
c.Cluster.controller_ip = "*"

# CHANGE, if the nodes do not find the notebook's machine by its own name: set
# c.Cluster.controller_location to an address or a name by which they do.

# CHANGE: the job. {n} becomes the number of ranks, {program_and_args} the command of one. A rank
# per GPU; the cores of a node are shared out among its ranks. Name a file in place of /dev/null,
# in a folder that the nodes can write to, to see why ranks do not come up.
c.SlurmEngineSetLauncher.batch_template = """#!/bin/sh
#SBATCH --job-name=d2lpar
#SBATCH --ntasks={n}
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --partition=gpu
#SBATCH --time=01:00:00
#SBATCH --output=/dev/null
srun {program_and_args}
"""

# CHANGE: what every rank finds in its environment. If a host has several networks, name the one
# for gloo and for NCCL: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, such as \"ib0\".
c.SlurmEngineSetLauncher.environment = {}
