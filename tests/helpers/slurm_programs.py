"""Stand-ins for Slurm's programs, which do what a real Slurm 22.05 was seen to do.

`install` puts them into a folder for PATH; `batch_environment` is what sbatch gives its script.
"""

import os
import sys
from pathlib import Path

# To sh this is a command, to Python a text: the path of Python may have spaces, which #! cannot.
START = """#!/bin/sh
''':'
exec "{python}" "$0" "$@"
'''
"""

SCONTROL = '''
"""`scontrol show hostnames LIST`: one name a line."""
import sys
from itertools import product


def outside(text):
    """Cut at the commas that are not in brackets."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def numbers(ranges):
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"


def names(pattern):
    head, *tails = pattern.split("[")
    pieces = [[head]]
    for tail in tails:
        ranges, _, rest = tail.partition("]")
        pieces += [list(numbers(ranges)), [rest]]
    return ("".join(chosen) for chosen in product(*pieces))


assert sys.argv[1:3] == ["show", "hostnames"], sys.argv
for pattern in outside(sys.argv[3]):
    print(*names(pattern), sep="\\n")
'''

SRUN = '''
"""`srun [--option=value…] command…`: one process a task; all are here, whatever their node."""
import os
import subprocess
import sys
import time

options, command = {}, sys.argv[1:]
while command[0].startswith("--"):
    name, _, options[name] = command.pop(0).partition("=")
nodes = os.environ["SLURM_JOB_NODELIST"]
hosts = subprocess.check_output(["scontrol", "show", "hostnames", nodes], text=True).split()
per_node = int(options.get("--ntasks-per-node", os.environ["SLURM_NTASKS_PER_NODE"]))
n_tasks = int(options.get("--ntasks", os.environ["SLURM_NTASKS"]))
assert n_tasks == len(hosts) * per_node, (options, hosts)

tasks = []
for rank in range(n_tasks):
    node, local = divmod(rank, per_node)
    own = {
        "SLURM_CPUS_PER_TASK": options["--cpus-per-task"],
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(n_tasks),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_TASKS": str(n_tasks),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{len(hosts)})",
        "SLURMD_NODENAME": hosts[node],
    }
    tasks.append(subprocess.Popen(command, env=os.environ | own))

codes = [None]
while None in codes and not any(codes):
    time.sleep(0.05)
    codes = [task.poll() for task in tasks]
if any(codes) and "--kill-on-bad-exit" in options:
    for task in tasks:
        task.kill()
worst = max(abs(task.wait()) for task in tasks)
print(f"srun: worst exit {worst}", file=sys.stderr)
sys.exit(worst)
'''

PROGRAMS = {"scontrol": SCONTROL, "srun": SRUN}


def install(folder: Path, *names: str) -> Path:
    """The named programs (all if none is named) in a folder, which is made and returned."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PROGRAMS:
        program = folder / name
        program.write_text(START.format(python=sys.executable) + PROGRAMS[name])
        program.chmod(0o755)
    return folder


def batch_environment(script: Path, nodes: str, submitted_in: Path, **options: str) -> dict:
    """What sbatch sets for a script, from its #SBATCH lines, over which `options` go."""
    lines = script.read_text().splitlines()
    asked = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")]
    found = dict(line.split("=", 1) for line in asked if "=" in line) | options
    n_nodes, per_node = int(found["nodes"]), int(found["ntasks-per-node"])
    return {
        "ENVIRONMENT": "BATCH",  # Slurm sets this one, too
        "SLURM_CPUS_PER_TASK": found["cpus-per-task"],
        "SLURM_GTIDS": "0",
        "SLURM_JOB_ID": str(os.getpid()),  # two test runs at once have two ports
        "SLURM_JOB_NAME": found["job-name"],
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(n_nodes),
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": str(n_nodes),
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": nodes,
        "SLURM_NTASKS": str(n_nodes * per_node),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_PROCID": "0",
        "SLURM_SUBMIT_DIR": str(submitted_in),
        "SLURM_TASKS_PER_NODE": f"{per_node}(x{n_nodes})",
    }
