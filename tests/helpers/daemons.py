"""Real daemons for tests, on this machine for a while: Slurm with two nodes, and an SSH server.

They run in the foreground as children of the test, keep all files in a folder of their own in /tmp,
listen at free ports, and are ended by their ids. Debian's packages have them: slurmctld, slurmd,
munge, openssh-server; openmpi-bin has mpiexec.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

READY_S, END_S = 60, 20
NODES = ("127.0.0.1", "127.0.0.2")  # names that lead somewhere without a name service
# Nodes say that they have what the profile asks for; no program of the tests looks for the GPUs.
SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
NodeName={nodes[0]} NodeHostname={host} Port={ports[1]} CPUs=32 Gres=gpu:8
NodeName={nodes[1]} NodeHostname={host} Port={ports[2]} CPUs=32 Gres=gpu:8
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# OpenSSH wants this folder from root, and finds it in a /run that nobody else sees.
PRIVATE_RUN = "mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f {config}"
SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
UsePAM no
Subsystem sftp internal-sftp
"""
SSH_CONFIG = """
Host gpu01 gpu02
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking accept-new
"""


def need(*programs: str) -> None:
    """Skips where one of the programs is missing."""
    missing = [name for name in programs if _found(name) is None]
    if missing:
        pytest.skip(
            f"no {', '.join(missing)} here: see tests/helpers/daemons.py for Debian's packages"
        )


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@dataclass
class Daemons:
    """Processes that run until `end`, in a folder that goes with them."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="d", dir="/tmp")))
    running: list[subprocess.Popen] = field(default_factory=list)

    def start(self, program: str, *arguments: object, **variables: str) -> None:
        """Run it in the foreground; what it says goes into `log`."""
        words = [_found(program), *map(str, arguments)]
        with self.log.open("a") as log:
            self.running.append(
                subprocess.Popen(words, env=os.environ | variables, stdout=log, stderr=log)
            )

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Return as soon as something holds; fails with the log if it never does."""
        deadline_s = time.monotonic() + READY_S
        while not until():
            ended = [process.args for process in self.running if process.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                pytest.fail(f"no {what}; ended: {ended}\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)

    def end(self) -> None:
        """End the daemons, the last first, and remove their folder."""
        for process in reversed(self.running):
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def daemons() -> Iterator[Daemons]:
    """Daemons that end with the block."""
    found = Daemons()
    try:
        yield found
    finally:
        found.end()


# --- Slurm ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def slurm() -> Iterator[Path]:
    """A Slurm of two nodes, both of which are this machine; gives the file for SLURM_CONF."""
    need("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
    with daemons() as here:
        config = _slurm_files(here.folder)
        here.start("munged", *_munge(here.folder))
        here.wait((here.folder / "munge").is_socket, "munge")
        conf = {"SLURM_CONF": str(config)}
        here.start("slurmctld", "-D", **conf)
        for node in NODES:
            here.start("slurmd", "-D", "-N", node, **conf)
        here.wait(lambda: _said("sinfo", "-hNo%T", **conf) == ["idle"] * len(NODES), "idle nodes")
        try:
            yield config
        finally:
            _said("scancel", f"--user={getpass.getuser()}", **conf)
            here.wait(lambda: jobs(config) == [], "end of all jobs")


def jobs(config: Path) -> list[str]:
    """The numbers of all jobs that wait, run or are being ended."""
    return _said("squeue", "-ho%i", SLURM_CONF=str(config))


def _said(*command: str, **variables: str) -> list[str]:
    env = os.environ | variables
    return subprocess.run(command, env=env, capture_output=True, text=True).stdout.split()


def _slurm_files(folder: Path) -> Path:
    folder.chmod(0o755)  # munge's clients may be anybody
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o400)
    (folder / "state").mkdir()
    for number in range(8):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
    config = folder / "slurm.conf"
    words = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser()}
    config.write_text(SLURM_CONF.format(folder=folder, nodes=NODES, ports=free_ports(3), **words))
    return config


def _munge(folder: Path) -> list[str]:
    files = {"key": "key", "socket": "munge", "pid": "pid", "log": "munge.log", "seed": "seed"}
    files = {name if name == "socket" else f"{name}-file": file for name, file in files.items()}
    return ["--foreground", *(f"--{name}={folder / file}" for name, file in files.items())]


def free_ports(n: int) -> list[int]:
    """Ports of this machine that nobody has, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


# --- SSH -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def sshd() -> Iterator[Path]:
    """An SSH server; gives a file for `ssh -F`, by which gpu01 and gpu02 lead here."""
    need("sshd", "ssh", "scp", "ssh-keygen", "unshare")
    root = os.getuid() == 0
    if root and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("root may not make a /run of its own here, which sshd needs")
    with daemons() as here:
        port = free_ports(1)[0]
        for key in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", here.folder / key]
            subprocess.run(command, check=True)
        words = {"folder": here.folder, "port": port, "user": getpass.getuser()}
        server, client = here.folder / "sshd_config", here.folder / "ssh_config"
        server.write_text(SSHD_CONFIG.format(**words))
        client.write_text(SSH_CONFIG.format(**words))
        if root:
            start = PRIVATE_RUN.format(config=server)
            here.start("unshare", "--mount", "sh", "-c", start)
        else:
            here.start("sshd", "-D", "-e", "-f", server)
        here.wait(lambda: _connects(port), "SSH server")
        yield client


def _connects(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
