"""Ranks started by mpiexec: `par.cluster(8, profile="mpi")`. Adapt what is marked CHANGE.

Only the start is mpiexec's: the ranks talk to one another through torch.distributed (gloo or
nccl), and mpi4py is not needed. d2lpar must be importable by the same path on every host.
"""

c = get_config()  # noqa: F821

c.Cluster.engine_launcher_class = "mpi"

# How many ranks, if the call does not say.
c.Cluster.n = 8

# CHANGE: the launcher, and where its processes go. These are Open MPI's words; for MPICH
# ["-f", "hosts.txt"]. On this machine alone, leave the list empty. Without
# -x Open MPI takes no variable of the environment to another host, and ranks find nothing; name
# yours from below, too. MPICH takes all.
c.MPILauncher.mpi_cmd = ["mpiexec"]
c.MPIEngineSetLauncher.mpi_args = [
    "--hostfile",
    "hosts.txt",
    "--map-by",
    "node",
    *("-x", "IPP_PROFILE_DIR"),
    *("-x", "IPP_CLUSTER_ID"),
    *("-x", "IPP_CONNECTION_INFO"),
    *("-x", "D2LPAR_CLUSTER_HOST"),
    *("-x", "PYTHONPATH"),
]

# The notebook's machine listens where the other hosts can reach it. Ranks on this machine alone
# can do with "127.0.0.1".
c.Cluster.controller_ip = "*"

# CHANGE, if the hosts do not find the notebook's machine by its own name: set
# c.Cluster.controller_location to an address or a name by which they do.

# CHANGE: what every rank finds in its environment. If a host has several networks, name the one
# for gloo and for NCCL: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, such as \"eth0\".
c.MPIEngineSetLauncher.environment = {}
