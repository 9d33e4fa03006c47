"""Makes `.venv` from `requirements.lock`, given nothing but python3; the Makefile calls it first.

Fast when there is nothing to do, safe to interrupt and to call twice at once, and at home in a
clone that was moved. Written for Python 3.6, so that an old one gets an answer and no SyntaxError.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time

OLDEST, NEWEST = (3, 11), (3, 14)  # what requirements.lock was tried with
LOCK = "requirements.lock"
VENV = ".venv"
PYTHON = os.path.join(VENV, "bin", "python")
# Absent: somebody's own environment. Empty: ours, and not finished. Else: what it was made from.
STAMP = os.path.join(VENV, "d2lpar.json")
CUDA_WHEEL = re.compile(r"(nvidia-|cuda-|triton\b)")
TORCH_WHEEL = re.compile(r"torch(vision)?\b")

WRONG_PYTHON = """\
{python} is Python {version}; the course needs {oldest} to {newest}.
Install one of these and call make again, with PYTHON=/path/to/python3 if it is not on PATH."""
NO_ENSUREPIP = """\
{python} cannot make virtual environments: its module ensurepip is missing.
On Debian and Ubuntu the package python3-venv has it: sudo apt install python3-venv"""
ON_WINDOWS = "On Windows use conda instead of make: conda env create -f environment.yml"
WRONG_TORCH = "TORCH={torch}: the choices are TORCH=cpu, or none for the default build"
FAILED = "\nSetting up stopped at: {command}\nCall make again to start over."


def dotted(version):
    return ".".join(map(str, version))


def require_python():
    """Goes on under a Python that the lock was tried with, or ends with an explanation."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    candidates = [] if os.environ.get("PYTHON") else range(NEWEST[1], OLDEST[1] - 1, -1)
    for minor in candidates:
        found = shutil.which("python3.%d" % minor)
        if found and version_of(found) == "3.%d" % minor:
            os.execv(found, [found, *sys.argv])
    sys.exit(
        WRONG_PYTHON.format(
            python=sys.executable,
            version=dotted(sys.version_info[:3]),
            oldest=dotted(OLDEST),
            newest=dotted(NEWEST),
        )
    )


def version_of(python):
    """'3.12' for an interpreter that runs, None for one that does not."""
    ask = [python, "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.check_output(ask, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.decode().strip()


@contextlib.contextmanager
def one_at_a_time():
    import fcntl  # not on Windows, where nobody gets this far

    with open(VENV + ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("Another make is setting up; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_stamp():
    """None for an environment that is not ours, {} for one that was not finished."""
    try:
        with open(STAMP) as stamp:
            return json.loads(stamp.read() or "{}")
    except OSError:
        return None
    except ValueError:
        return {}


def write_stamp(content):
    with open(STAMP, "w") as stamp:
        stamp.write(json.dumps(content) if content else "")


def digest(*paths):
    content = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            content.update(file.read())
    return content.hexdigest()


def wanted_stamp(done, torch):
    """What the environment should be; what nobody chose now stays as it was chosen before."""
    python = None if os.environ.get("PYTHON") else version_of(PYTHON)
    return {
        "root": os.getcwd(),
        "inputs": digest(LOCK, "pyproject.toml"),
        "python": python or dotted(sys.version_info[:2]),
        "torch": torch_choice(done, torch),
    }


def torch_choice(done, asked):
    """'default', 'cpu', or 'kept' for TORCH=cpu in an environment that brought its own torch."""
    before = (done or {}).get("torch", "default")
    if asked == "cpu" and (before == "kept" or (done is None and has_torch())):
        return "kept"
    return asked or before


def is_spoiled(done, wanted):
    """Whether our own environment must go: unfinished, or made for another Python or torch."""
    return done is not None and any(done.get(key) != wanted[key] for key in ("python", "torch"))


def requirements(torch):
    """The lines of the lock to install."""
    with open(LOCK) as lock:
        lines = lock.readlines()
    if torch != "default":
        lines = [line for line in lines if not CUDA_WHEEL.match(line)]
    if torch == "kept" and has_torch():
        lines = [line for line in lines if not TORCH_WHEEL.match(line)]
    return "".join(lines)


def has_torch():
    ask = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"
    return os.path.exists(PYTHON) and subprocess.call([PYTHON, "-c", ask]) == 0


def pin(name):
    with open(LOCK) as lock:
        return re.search(r"^%s==\S+" % name, lock.read(), re.MULTILINE).group()


def run(*command, **options):
    options.setdefault("env", dict(os.environ, UV_PYTHON_DOWNLOADS="never"))
    subprocess.run(command, check=True, universal_newlines=True, **options)


def uv(*arguments, **options):
    run(PYTHON, "-m", "uv", *arguments, **options)


def build(torch):
    """Makes the environment, or completes the one that is there."""
    is_new = not os.path.exists(PYTHON)
    if is_new:
        if not importlib.util.find_spec("ensurepip"):
            sys.exit(NO_ENSUREPIP.format(python=sys.executable))
        os.makedirs(VENV, exist_ok=True)
        write_stamp(None)
        run(sys.executable, "-m", "venv", VENV)
    quiet = ["--quiet", "--disable-pip-version-check"]
    run(PYTHON, "-m", "pip", "install", *quiet, pin("uv"))
    if is_new:  # the commands in .venv/bin survive a move of the clone, and spaces in its path
        uv("venv", "--quiet", "--relocatable", "--allow-existing", "--python", PYTHON, VENV)

    install = ["pip", "install", "--python", PYTHON, "--no-deps"]
    backend = ["--torch-backend", "cpu"] if torch != "default" else []  # untested
    # On two slow cores compiling takes 16 s, and the first import of d2l then 6 s instead of 12.
    options = ["--compile-bytecode", *backend, "--requirement", "-"]
    uv(*install, *options, input=requirements(torch))
    uv(*install, "--quiet", "--no-build-isolation", "--editable", ".")


def set_up(torch):
    done = read_stamp()
    wanted = wanted_stamp(done, torch)
    if done == wanted and version_of(PYTHON) == wanted["python"]:
        return
    start_s = time.time()
    print("Setting up .venv; the first time downloads up to 3 GB.", flush=True)
    if is_spoiled(done, wanted):
        shutil.rmtree(VENV)
    elif done is not None:
        write_stamp(None)
    build(wanted["torch"])
    write_stamp(wanted)
    print("Set up in %.0f s." % (time.time() - start_s), flush=True)


def main():
    torch = os.environ.get("TORCH", "")
    if os.name == "nt":
        sys.exit(ON_WINDOWS)
    if torch not in ("", "cpu"):
        sys.exit(WRONG_TORCH.format(torch=torch))
    require_python()
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    try:
        with one_at_a_time():
            set_up(torch)
    except subprocess.CalledProcessError as error:
        sys.exit(FAILED.format(command=" ".join(error.cmd)))
    except KeyboardInterrupt:
        sys.exit(FAILED.format(command="Ctrl-C"))


if __name__ == "__main__":
    main()
