"""Ranks on hosts that SSH reaches: `par.cluster(8, profile="ssh")`. Adapt what is marked CHANGE.

Each host must be reached by `ssh HOST` without a password (keys, an agent), have d2lpar installed
for the Python named here, and be able to connect to the notebook's machine.
"""

c = get_config()  # noqa: F821

c.Cluster.engine_launcher_class = "ssh"

# CHANGE: how many ranks each host gets, in the order of the ranks. "user@host:port" is possible.
c.SSHEngineSetLauncher.engines = {
    "gpu01": 4,
    "gpu02": 4,
}

# All of them, if the call does not say how many ranks.
c.Cluster.n = sum(c.SSHEngineSetLauncher.engines.values())

# CHANGE: the Python of those hosts.
c.SSHLauncher.remote_python = "/opt/d2lpar/.venv/bin/python"

# CHANGE: what ssh and scp need to be told.
c.SSHLauncher.ssh_args = ["-o", "BatchMode=yes"]
c.SSHLauncher.scp_args = ["-o", "BatchMode=yes"]

# The notebook's machine listens where the hosts can reach it.
c.Cluster.controller_ip = "*"

# CHANGE, if the hosts do not find the notebook's machine by its own name: set
# c.Cluster.controller_location to an address or a name by which they do.

# CHANGE: what every rank finds in its environment. If a host has several networks, name the one
# for gloo and for NCCL: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, such as \"eth0\".
c.SSHEngineSetLauncher.environment = {}
