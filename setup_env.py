"""Makes `.venv` from `requirements.lock`, given nothing but python3; the Makefile calls it first.

Fast when there is nothing to do, safe to interrupt and to call twice at once, and at home in a
clone that was moved. It installs into `.venv` and nowhere else, and deletes only what it made.
Written for Python 3.6, so that an old one gets an answer and no SyntaxError.
"""

import contextlib
import errno
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

OLDEST, NEWEST = (3, 11), (3, 14)  # what requirements.lock was tried with
LOCK = "requirements.lock"
VENV = ".venv"
PYTHON = os.path.join(VENV, "bin", "python")
# What the environment was made from, and for whom; without it, .venv is the user's own.
STAMP = os.path.join(VENV, "d2lpar.json")
NEW_STAMP = STAMP + ".new"
# Exists while .venv is being changed; outside, where nothing that happens to .venv removes it.
UNFINISHED = VENV + ".unfinished"
LOCKED = VENV + ".lock"
SAY_AFTER_S = 5
SAY_EVERY_S = 15
ASK_S = 60  # for whether an index has the small build
LOCK_S = 3600  # another make may download on a slow line, but not for ever
DISCARDED = VENV + ".old-d2lpar-"
# OpenMP's threads otherwise spin while they wait for one another. Beside other work that takes the
# processor from the very thread that they wait for: see benchmarks/bench_busy_machine.py.
KERNEL_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
# From its first cell on a kernel knows what the course makes of errors. It is no extension, which
# lessons load, wherever they run: IPython would complain of the second time.
KERNEL_LINE = "import d2lpar as _d2lpar; del _d2lpar"
KERNEL_CONFIG = os.path.join(VENV, "etc", "ipython", "ipython_config.py")
CUDA_WHEEL = re.compile(r"(nvidia-|cuda-|triton\b)")
TORCH_WHEEL = re.compile(r"torch(vision)?\b")
ASK_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
ASK_VERSION_HERE = """
import os, sys
if sys.prefix != sys.base_prefix and os.path.samefile(sys.prefix, '.venv'):
    print('%d.%d' % sys.version_info[:2])
"""
# With one of these even the pip of .venv installs into another place.
REDIRECTIONS = {"PIP_PREFIX", "PIP_PYTHON", "PIP_ROOT", "PIP_TARGET", "PIP_USER"}

WRONG_PYTHON = """\
{python} is Python {version}; the course needs {oldest} to {newest}.
Install one of these and call make again, with PYTHON=/path/to/python3 if it is not on PATH."""
NO_ENSUREPIP = """\
{python} cannot give an environment its pip: the module ensurepip is missing.
On Debian and Ubuntu the package python3-venv has it: sudo apt install python3-venv"""
ON_WINDOWS = "On Windows use conda instead of make: conda env create -f environment.yml"
WRONG_TORCH = """\
TORCH={torch}: the choices are cpu, default (with CUDA, where there is such a build), or none for
what suits this machine"""
NOT_OURS = """\
.venv bears no mark of make, so it is left as it is; but it cannot be used: {reason}.
Delete it or move it away, and call make again."""
NO_VENV = "its bin/python does not install into it (pyvenv.cfg may be missing)"
READ_ONLY = """\
{folder} cannot be written to, and the course needs its .venv there ({reason}).
Clone the course into a folder of your own, and call make in it."""
BEGINS = "Setting up .venv; the first time takes minutes."
SMALL = "No NVIDIA driver is here, so torch comes without CUDA (TORCH=default has it)."
NO_SMALL = "The build of torch without CUDA cannot be had here; the default one can."
LARGE = "Torch with CUDA downloads 3 GB, which fill 6 GB."
FAILED = "\nSetting up stopped: {reason}\nCall make again to start over."


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
    return answer(python, "-I", "-S", "-c", ASK_VERSION)


def version_here():
    """The version of .venv's Python; None also where it would install into another place.

    Without pyvenv.cfg it takes itself for the Python that it was made from, and that is the user's.
    """
    has_config = os.path.isfile(os.path.join(VENV, "pyvenv.cfg"))
    return answer(PYTHON, "-c", ASK_VERSION_HERE) if has_config else None


def answer(*command):
    try:
        printed = subprocess.check_output(command, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return printed.decode().strip() or None


@contextlib.contextmanager
def one_at_a_time():
    """Waits for other calls, and for what a killed one started: `run` passes the lock on."""
    import fcntl  # not on Windows, where nobody gets this far

    put_aside_unless(LOCKED, os.path.isfile)
    with open(LOCKED, "a+") as lock:
        os.set_inheritable(lock.fileno(), True)
        begin_s, told = time.time(), 0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                waited_s = time.time() - begin_s
            lock.seek(0)
            holder = lock.read(80) or "another make"
            if not told:
                print("Another make is setting up, or ending; waiting for it.", flush=True)
            if told < 2 and waited_s > SAY_AFTER_S:
                print("It is %s." % holder, flush=True)
            told = 2 if waited_s > SAY_AFTER_S else 1
            if waited_s > LOCK_S:
                raise OSError("waited %.0f s for %s (%s)" % (waited_s, LOCKED, holder))
            time.sleep(0.2)
        lock.truncate(0)
        lock.write("process %d since %s" % (os.getpid(), time.strftime("%H:%M:%S")))
        lock.flush()
        yield


def put_aside_unless(path, is_right):
    """Gives what somebody else has put there another name, and says so."""
    if os.path.lexists(path) and not is_right(path):
        aside = tempfile.mkdtemp(prefix=os.path.basename(path) + ".old-", dir=".")
        os.rename(path, os.path.join(aside, os.path.basename(path)))
        print("%s is not what make writes: it is in %s now." % (path, aside), flush=True)


def read_stamp():
    """None for an environment that was never touched by us, {} for one that cannot be used."""
    if not os.path.lexists(STAMP):
        return None
    stamp = stamp_in(STAMP)
    return {} if stamp is None else stamp


def stamp_in(path):
    """What we wrote there; None for anything else."""
    try:
        with open(path, encoding="utf-8") as stamp:
            found = json.loads(stamp.read() or "{}")
    except (OSError, ValueError):
        return None
    texts = ("root", "inputs", "python", "torch")
    is_ours = isinstance(found, dict) and all(isinstance(found.get(key, ""), str) for key in texts)
    return found if is_ours else None


def write_stamp(content):
    put_aside_unless(NEW_STAMP, os.path.isfile)
    with open(NEW_STAMP, "w") as stamp:
        json.dump(content, stamp)
    os.replace(NEW_STAMP, STAMP)


def is_vacant():
    """Whether nothing is in .venv, but for a stamp that was not finished."""
    return not os.path.isdir(VENV) or set(os.listdir(VENV)) <= {os.path.basename(NEW_STAMP)}


def digest(*paths):
    content = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            content.update(file.read())
    return content.hexdigest()


def wanted_stamp(done, torch):
    """What the environment should be; what nobody chose now stays as it was chosen before."""
    python = None if os.environ.get("PYTHON") else version_here()
    return {
        "root": os.getcwd(),
        "inputs": digest(LOCK, "pyproject.toml"),
        "python": python or dotted(sys.version_info[:2]),
        "torch": torch_choice(done, torch),
        "users_own": not is_vacant() if done is None else done.get("users_own", False),
    }


def torch_choice(done, asked):
    """'default', 'cpu', or 'kept' for TORCH=cpu in an environment that brought its own torch."""
    before = (done or {}).get("torch")
    if before is None:  # what is in an environment of the user's own is replaced by nothing smaller
        brought = done is None and has("torch")
        before = "default" if brought or may_have_gpu() else "cpu"
    if asked == "cpu" and (before == "kept" or (done is None and has("torch"))):
        return "kept"
    return asked or before


def may_have_gpu():
    """Whether torch with CUDA may be of use; only on Linux does the default build have it."""
    driver = os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/dxg")  # in WSL
    return not sys.platform.startswith("linux") or driver or bool(shutil.which("nvidia-smi"))


def has_small_torch():
    """Whether the index that has torch without CUDA answers; it may be out of reach."""
    ask = ["pip", "install", "--quiet", "--dry-run", "--no-deps", "--reinstall"]
    ask += ["--python", PYTHON, "--torch-backend", "cpu", "--requirement", "-"]
    wanted = unhashed(pin("torch"))
    try:
        in_venv("uv", *ask, input=wanted, timeout=ASK_S, stderr=subprocess.DEVNULL)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return False
    return True


def is_finished(done, wanted):
    return done == wanted and not os.path.exists(UNFINISHED) and version_here() == wanted["python"]


def is_spoiled(done, wanted):
    """Whether an environment of ours must go: unfinished, broken, or made for another purpose."""
    if done is None or wanted["users_own"]:
        return False
    differs = any(done.get(key) != wanted[key] for key in ("python", "torch"))
    return differs or os.path.exists(UNFINISHED) or version_here() is None


def require_usable(done, wanted):
    """Ends with an explanation where an environment of the user's own cannot be completed."""
    version = version_here()
    if version is None:
        reason = NO_VENV
    elif version not in ["3.%d" % minor for minor in range(OLDEST[1], NEWEST[1] + 1)]:
        reason = "its Python is %s; %s to %s will do" % (version, dotted(OLDEST), dotted(NEWEST))
    elif version != wanted["python"]:
        reason = "its Python is %s, not %s" % (version, wanted["python"])
    elif done and done["torch"] != wanted["torch"]:
        reason = "its torch is the %s build, not %s" % (done["torch"], wanted["torch"])
    else:
        return
    sys.exit(NOT_OURS.format(reason=reason))


def locked():
    """The requirements of the lock, each with its hashes and comments."""
    with open(LOCK) as lock:
        return re.split(r"^(?=\w)", lock.read(), flags=re.MULTILINE)[1:]


def requirements(torch):
    """What of the lock to install."""
    wheels = locked()
    if torch != "default":
        wheels = [wheel for wheel in wheels if not CUDA_WHEEL.match(wheel)]
        # The small build is of the same version, but not of the same hash.
        wheels = [unhashed(wheel) if TORCH_WHEEL.match(wheel) else wheel for wheel in wheels]
    if torch == "kept" and has("torch"):
        wheels = [wheel for wheel in wheels if not TORCH_WHEEL.match(wheel)]
    return "".join(wheels)


def unhashed(wheel):
    return wheel.partition(" \\\n")[0] + "\n"


def pin(name):
    return next(wheel for wheel in locked() if wheel.startswith(name + "=="))


def has(module):
    """Whether .venv's Python finds a module."""
    ask = "import importlib.util, sys; sys.exit(not importlib.util.find_spec(%r))" % module
    return os.path.exists(PYTHON) and subprocess.call([PYTHON, "-c", ask]) == 0


def run(*command, **options):
    """Runs a command, which holds our lock, too: if we are killed, the next call waits for it."""
    env = {name: value for name, value in os.environ.items() if name not in REDIRECTIONS}
    env["UV_PYTHON_DOWNLOADS"] = "never"
    options.update(check=True, universal_newlines=True, env=env, close_fds=False)
    with progress():
        subprocess.run(command, **options)


@contextlib.contextmanager
def progress():
    """In the block, says now and then how long it has taken, and what has been received."""
    begin_s, begin_bytes, over = time.time(), received_bytes(), threading.Event()

    def tell():
        while not over.wait(SAY_EVERY_S):
            line = "  %.0f s" % (time.time() - begin_s)
            if begin_bytes is not None:
                line += ", %.0f MB received" % ((received_bytes() - begin_bytes) / 1e6)
            print(line, flush=True)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def received_bytes():
    """What this machine has received over networks since its start; None where nothing says so."""
    try:
        with open("/proc/net/dev") as lines:
            counts = [line.partition(":") for line in lines if ":" in line]
    except OSError:
        return None
    return sum(int(rest.split()[0]) for name, _, rest in counts if name.strip() != "lo")


def in_venv(module, *arguments, **options):
    """Runs pip or the like, once it is proved that it installs into .venv."""
    if version_here() is None:
        sys.exit(FAILED.format(reason=".venv is broken, " + NO_VENV))
    run(PYTHON, "-m", module, *arguments, **options)


def discard():
    """Takes .venv away in one step: half of one could pass for another's, or for the user's."""
    if os.path.lexists(VENV):
        os.rename(VENV, os.path.join(tempfile.mkdtemp(prefix=DISCARDED, dir="."), "venv"))


def sweep():
    """Deletes what was taken away; what an interruption leaves of it, a later call deletes."""
    for folder in glob.glob(DISCARDED + "*"):
        shutil.rmtree(folder, ignore_errors=True)


def build(torch, is_repair, may_choose):
    """Makes the environment, or completes the one that is there; returns which torch it has.

    Where nobody has asked for the small one, another is as good.
    """
    is_new = not os.path.exists(PYTHON)
    if is_new:  # with the Python behind the one that runs us, which may have been .venv's
        run(getattr(sys, "_base_executable", sys.executable), "-m", "venv", VENV)
    elif not has("pip"):
        if not has("ensurepip"):
            sys.exit(NO_ENSUREPIP.format(python=PYTHON))
        in_venv("ensurepip")
    hashed = ["--no-deps", "--require-hashes"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    in_venv("pip", "install", *quiet, *hashed, "--requirement", "/dev/stdin", input=pin("uv"))
    if is_new:  # the commands in .venv/bin survive a move of the clone, and spaces in its path
        options = ["--quiet", "--relocatable", "--allow-existing"]
        in_venv("uv", "venv", *options, "--python", PYTHON, VENV)

    if torch == "cpu" and may_choose:
        if has_small_torch():
            print(SMALL, flush=True)
        else:
            print(NO_SMALL, flush=True)
            torch = "default"
    if torch == "default" and sys.platform.startswith("linux"):
        print(LARGE, flush=True)
    install = ["pip", "install", "--quiet", "--python", PYTHON, "--no-deps"]  # or it lists them all
    # uv checks each hash that it is given; where no torch is another's, it also misses none.
    origin = ["--require-hashes"] if torch == "default" else ["--torch-backend", "cpu"]  # untested
    # On two slow cores compiling takes 16 s, and the first import of d2l then 6 s instead of 12.
    options = ["--compile-bytecode", *origin, "--requirement", "-"]
    repair = ["--reinstall"] if is_repair else []
    in_venv("uv", *install, *options, *repair, input=requirements(torch))
    in_venv("uv", *install, "--no-build-isolation", "--editable", ".")
    configure_kernels()
    return torch


def configure_kernels():
    """Gives notebooks an environment, whatever starts their kernels, and the course; what is set
    already stays."""
    if os.path.exists(KERNEL_CONFIG):  # ours, or in an environment of the user's own the user's
        return
    os.makedirs(os.path.dirname(KERNEL_CONFIG), exist_ok=True)
    with open(KERNEL_CONFIG, "w") as config:
        config.write("import os\n\n")
        for name, value in sorted(KERNEL_ENVIRONMENT.items()):
            config.write("os.environ.setdefault(%r, %r)\n" % (name, value))
        config.write("c.InteractiveShellApp.exec_lines.append(%r)\n" % KERNEL_LINE)


def set_up(torch):
    done = read_stamp()
    put_aside_unless(STAMP, lambda path: stamp_in(path) is not None)
    put_aside_unless(UNFINISHED, os.path.isfile)
    wanted = wanted_stamp(done, torch)
    if is_finished(done, wanted):
        return
    start_s = time.time()
    is_replaced = is_spoiled(done, wanted)
    is_repair = wanted["users_own"] and os.path.exists(UNFINISHED)
    if wanted["users_own"]:
        require_usable(done, wanted)
    elif (is_replaced or is_vacant()) and not importlib.util.find_spec("ensurepip"):
        sys.exit(NO_ENSUREPIP.format(python=sys.executable))
    print(BEGINS, flush=True)
    open(UNFINISHED, "w").close()
    if is_replaced:
        discard()
    os.makedirs(VENV, exist_ok=True)
    write_stamp(wanted)
    sweep()
    built = build(wanted["torch"], is_repair, may_choose=not torch)
    if built != wanted["torch"]:
        write_stamp(dict(wanted, torch=built))
    os.remove(UNFINISHED)
    print("Set up in %.0f s." % (time.time() - start_s), flush=True)


def main():
    torch = os.environ.get("TORCH", "")
    if os.name == "nt":
        sys.exit(ON_WINDOWS)
    if torch not in ("", "cpu", "default"):
        sys.exit(WRONG_TORCH.format(torch=torch))
    require_python()
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        done = read_stamp()
        if not is_finished(done, wanted_stamp(done, torch)):  # else not a file is written
            with one_at_a_time():
                set_up(torch)
    except subprocess.CalledProcessError as error:
        sys.exit(FAILED.format(reason=" ".join(error.cmd) + " failed"))
    except OSError as error:
        if error.filename == LOCKED and error.errno in (errno.EACCES, errno.EROFS):
            sys.exit(READ_ONLY.format(folder=os.getcwd(), reason=error.strerror))
        sys.exit(FAILED.format(reason=error))
    except KeyboardInterrupt:
        sys.exit(FAILED.format(reason="interrupted"))


if __name__ == "__main__":
    main()
