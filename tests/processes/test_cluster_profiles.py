"""Cluster profiles: what mpiexec, sbatch and ssh are told, by stand-ins that start ranks here."""

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import daemons
import psutil
import pytest

import d2lpar as par
from d2lpar.processes.cluster.failures import RankError
from d2lpar.processes.cluster.starting import profiles
from d2lpar.processes.cluster.starting.process_tree import is_running

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

PROFILES = Path(__file__).parents[2] / "notebooks" / "profiles"

MPIEXEC = r"""#!/bin/sh
printf '%s\n' "$*" >> "$RECORD"
while [ "$1" != -n ]; do shift; done
n=$2; shift 2
while [ "${1#/}" = "$1" ]; do shift; done  # up to the program
here=$(( (n + 1) / 2 ))
for i in $(seq "$n"); do
    if [ -z "$TWO_HOSTS" ] || [ "$i" -le "$here" ]; then "$@" &
    else unshare --uts sh -c 'hostname gpu02 && exec "$@"' sh "$@" &
    fi
done
wait
"""
SBATCH = """#!/bin/sh
cp "$1" "$RECORD"
setsid sh "$1" > /dev/null 2>&1 &
echo "Submitted batch job 42"
"""
SRUN = """#!/bin/sh
n=$(sed -n 's/^#SBATCH --ntasks=//p' "$RECORD")
for i in $(seq "$n"); do "$@" & done
wait
"""
SSH = """#!/bin/sh
echo "ssh $@" >> "$RECORD"
while [ "${1#-}" != "$1" ]; do shift 2; done
shift
exec sh -c "$*"
"""
SCP = """#!/bin/sh
echo "scp $@" >> "$RECORD"
while [ "${1#-}" != "$1" ]; do shift 2; done
mkdir -p "$(dirname "${2#*:}")"
[ "$1" -ef "${2#*:}" ] || exec cp "${1#*:}" "${2#*:}"
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Puts commands on the PATH; what they were told is in the file that is returned."""
    record = tmp_path / "told"
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(record))

    def put(**scripts):
        for name, script in scripts.items():
            path = tmp_path / "bin" / name
            path.write_text(script)
            path.chmod(0o755)
        return record

    return put


@pytest.fixture
def adapted(tmp_path):
    """A copy of a profile with lines added, as somebody would adapt it."""

    def adapt(name, *lines):
        folder = tmp_path / "adapted" / name
        shutil.copytree(PROFILES / name, folder)
        with (folder / profiles.CONFIG).open("a") as file:
            file.write("\n".join(["", *lines, ""]))
        return folder

    return adapt


def can_make_hosts():
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--uts", "hostname", "gpu02"]
    return subprocess.run(command, capture_output=True).returncode == 0


def ranks_hosts():
    import socket

    import torch
    import torch.distributed as dist

    x = torch.ones(2)
    dist.all_reduce(x)
    return socket.gethostname(), int(x[0]), os.environ.get("IPP_PROFILE_DIR")


def work_on():
    import torch
    import torch.distributed as dist

    for _ in range(10**7):
        dist.all_reduce(torch.ones(2))


def kill_soon(process):
    threading.Timer(0.3, process.kill).start()


@pytest.mark.parametrize("name", ["mpi", "slurm", "ssh"])
def test_profiles_load_and_are_found_by_name(name, monkeypatch):
    monkeypatch.chdir(PROFILES.parent)
    assert profiles.find(name) == PROFILES / name == profiles.find(PROFILES / name)
    config = profiles.load(PROFILES / name)
    assert config.Cluster.engine_launcher_class == name
    assert config.Cluster.n >= 8


def test_a_missing_profile_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"no cluster profile 'nope': looked for .*profile_nope"):
        par.cluster(2, profile="nope")


@pytest.mark.skipif(not can_make_hosts(), reason="this user may not make hosts")
def test_mpiexec_starts_ranks_on_two_hosts(stand_in, adapted, monkeypatch, tmp_path):
    record = stand_in(mpiexec=MPIEXEC)
    monkeypatch.setenv("TWO_HOSTS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # the two hosts share this one's network
    profile = adapted("mpi", 'c.Cluster.controller_ip = "127.0.0.1"', "c.Cluster.n = 2")
    with par.cluster(profile=profile, timeout_s=60) as ranks:
        engine = f"{sys.executable} -P -m d2lpar.processes.cluster.starting.lifeline engine "
        told = record.read_text()
        assert told.startswith("-n 2 --hostfile hosts.txt --map-by node -x IPP_PROFILE_DIR -x ")
        assert f" -x PYTHONPATH {engine}" in told
        (here, a, own), (there, b, remote) = ranks.run(ranks_hosts)
        # Which host is rank 0's depends on who came first; a host knows its ranks by local_rank.
        assert {here, there} == {"gpu02", os.uname().nodename}
        assert (a, b) == (2, 2)
        ranks.run_cell("assert local_rank == 0 and world_size == 2")
        processes = [psutil.Process(place.pid) for place in ranks._engines.places]
        far = [here, there].index("gpu02")
        assert not Path((own, remote)[far]).exists()
        assert Path((own, remote)[1 - far]) == ranks._engines.folder.path
        kill_soon(processes[far])
        with pytest.raises(RankError, match=f"rank {far} died"):
            ranks.run(work_on)
    deadline_s = time.monotonic() + 10
    while any(map(is_running, processes)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not any(map(is_running, processes))


@pytest.mark.skipif(not can_make_hosts(), reason="this user may not make hosts")
@pytest.mark.slow
def test_ranks_on_another_host_end_with_the_controller(stand_in, adapted, monkeypatch):
    stand_in(mpiexec=MPIEXEC)
    monkeypatch.setenv("TWO_HOSTS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    profile = adapted("mpi", 'c.Cluster.controller_ip = "127.0.0.1"', "c.Cluster.n = 2")
    ranks = par.cluster(profile=profile, timeout_s=60)
    far = [place.host for place in ranks._engines.places].index("gpu02")
    process = psutil.Process(ranks._engines.places[far].pid)
    monkeypatch.setattr(
        "d2lpar.processes.cluster.starting.process_tree.end",
        lambda processes: end_all_but(process, processes),
    )
    ranks.stop()
    deadline_s = time.monotonic() + 15
    while is_running(process) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not is_running(process)


def end_all_but(spared, processes):
    for process in processes:
        for one in [process, *process.children(recursive=True)]:
            if one != spared and one not in spared.children(recursive=True):
                one.kill()


def test_a_slurm_job_that_only_queues_is_taken_back(stand_in, monkeypatch, tmp_path):
    record = stand_in(
        sbatch='#!/bin/sh\ncp "$1" "$RECORD"\necho "Submitted batch job 42"\n',
        scancel='#!/bin/sh\necho "$@" > "$RECORD.cancelled"\n',
    )
    monkeypatch.chdir(tmp_path)
    for timeout_s in (3, 30, 120):  # a busy machine takes more than 3 s to come to sbatch
        with pytest.raises(RuntimeError, match=f"0 of 16 ranks came up within {timeout_s} s"):
            par.cluster(16, profile=PROFILES / "slurm", timeout_s=timeout_s)
        if record.exists():
            break
    script = record.read_text().splitlines()
    assert script[0] == "#!/bin/sh"
    assert "#SBATCH --ntasks=16" in script
    assert "#SBATCH --gpus-per-node=8" in script
    program = shlex.split(script[-1])
    assert program[:5] == [
        "srun",
        sys.executable,
        "-P",
        "-m",
        "d2lpar.processes.cluster.starting.lifeline",
    ]
    assert Path(f"{record}.cancelled").read_text() == "42\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "told", "told.cancelled"]


@pytest.mark.slow
def test_a_slurm_job_runs(stand_in):
    record = stand_in(
        sbatch=SBATCH, srun=SRUN, scancel='#!/bin/sh\necho "$@" > "$RECORD.cancelled"\n'
    )
    with par.cluster(2, profile=PROFILES / "slurm", timeout_s=60) as ranks:
        assert [one[1] for one in ranks.run(ranks_hosts)] == [2, 2]
        processes = [psutil.Process(place.pid) for place in ranks._engines.places]
    assert Path(f"{record}.cancelled").read_text() == "42\n"
    assert not any(map(is_running, processes))


@pytest.mark.slow
def test_ssh_starts_ranks(stand_in, adapted):
    record = stand_in(ssh=SSH, scp=SCP)
    profile = adapted(
        "ssh",
        'c.SSHEngineSetLauncher.engines = {"gpu01": 1, "me@gpu02:2222": 1}',
        f"c.SSHLauncher.remote_python = {sys.executable!r}",
        'c.Cluster.controller_ip = "127.0.0.1"',
    )
    with par.cluster(2, profile=profile, timeout_s=90) as ranks:
        assert [one[1] for one in ranks.run(ranks_hosts)] == [2, 2]
        processes = [psutil.Process(place.pid) for place in ranks._engines.places]
    told = record.read_text()
    assert "ssh -o BatchMode=yes gpu01 " in told
    assert "-p 2222 me@gpu02 " in told
    assert not any(map(is_running, processes))


# --- The real programs ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_slurm_runs_the_profile_as_it_stands(monkeypatch):
    with daemons.slurm() as config:
        monkeypatch.setenv("SLURM_CONF", str(config))
        with par.cluster(2, profile=PROFILES / "slurm", timeout_s=120) as ranks:
            assert [one[1] for one in ranks.run(ranks_hosts)] == [2, 2]
            assert len(daemons.jobs(config)) == 1
            processes = [psutil.Process(place.pid) for place in ranks._engines.places]
            assert {process.environ()["SLURM_PROCID"] for process in processes} == {"0", "1"}
            kill_soon(processes[1])
            with pytest.raises(RankError, match="rank 1 died"):
                ranks.run(work_on)
            ranks.restart()
            assert [one[1] for one in ranks.run(ranks_hosts)] == [2, 2]
            processes += [psutil.Process(place.pid) for place in ranks._engines.places]
        assert gone(processes)
        assert soon(lambda: daemons.jobs(config) == [])


@pytest.mark.slow
def test_the_real_ssh_runs_the_profile(adapted):
    with daemons.sshd() as config:
        profile = adapted(
            "ssh",
            'c.SSHEngineSetLauncher.engines = {"gpu01": 1, "gpu02": 1}',
            f'c.SSHLauncher.ssh_args = c.SSHLauncher.scp_args = ["-F", {str(config)!r}]',
            f"c.SSHLauncher.remote_python = {sys.executable!r}",
        )
        with par.cluster(2, profile=profile, timeout_s=120) as ranks:
            assert [one[1] for one in ranks.run(ranks_hosts)] == [2, 2]
            processes = [psutil.Process(place.pid) for place in ranks._engines.places]
            assert all("SSH_CONNECTION" in process.environ() for process in processes)
        assert gone(processes)


@pytest.mark.slow
def test_the_real_mpiexec_runs_the_profile(adapted, mpiexec):
    Path("hosts.txt").write_text("localhost slots=2\n")  # where the profile looks for it
    with par.cluster(2, profile=adapted("mpi", mpiexec), timeout_s=120) as ranks:
        assert [one[1] for one in ranks.run(ranks_hosts)] == [2, 2]
        processes = [psutil.Process(place.pid) for place in ranks._engines.places]
        assert {process.environ()["OMPI_COMM_WORLD_RANK"] for process in processes} == {"0", "1"}
    assert gone(processes)


@pytest.mark.slow
def test_the_real_mpiexec_reaches_hosts_by_the_real_ssh(adapted, mpiexec, monkeypatch):
    Path("hosts.txt").write_text("gpu01\ngpu02\n")
    with daemons.sshd() as config:
        monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", f"ssh -F {config}")
        with par.cluster(2, profile=adapted("mpi", mpiexec), timeout_s=120) as ranks:
            assert [one[1] for one in ranks.run(ranks_hosts)] == [2, 2]
            processes = [psutil.Process(place.pid) for place in ranks._engines.places]
            ways = {process.environ()["SSH_CONNECTION"] for process in processes}
            assert len(ways) == 2  # a connection for each host
        assert gone(processes)


@pytest.fixture
def mpiexec(monkeypatch, tmp_path):
    """Open MPI, for root, too, and in a folder for hosts.txt: the profile's line that names it."""
    daemons.need("mpiexec.openmpi")
    for confirmed in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(confirmed, "1")
    monkeypatch.chdir(tmp_path)
    return 'c.MPILauncher.mpi_cmd = ["mpiexec.openmpi"]'


def gone(processes):
    return soon(lambda: not any(map(is_running, processes)))


def soon(holds):
    deadline_s = time.monotonic() + 15
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return holds()
