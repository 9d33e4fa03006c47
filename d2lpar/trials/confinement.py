"""What an answer's process may have: little of the machine, and nothing of anybody's.

Every system has something of it, and none has all: what could not be had is returned as texts, for
the instructor to read once.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import kernel

PACKAGE = Path(__file__).resolve().parents[1]
HIDDEN = (
    *(PACKAGE / "checks", PACKAGE.parent / "notebooks", PACKAGE.parent / "my"),
    # A network that is an answer to a puzzle itself, and its compiled form.
    *(PACKAGE / "trials" / "training.py", PACKAGE / "trials" / "__pycache__"),
)
# What torch and Python need to start: nothing that says who grades, or what.
ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
CACHE = "TORCHINDUCTOR_CACHE_DIR"
SYSTEM_FILES = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom",
                "/proc/cpuinfo", "/proc/meminfo")  # fmt: skip
NAMESPACES = {  # by what they hide
    "other processes": 0x20000000,
    "the network": 0x40000000,
    "shared memory of others": 0x08000000,
}
NEW_USER, NEW_MOUNTS, PRIVATE, BARE = 0x10000000, 0x00020000, 0x44000, 0xE  # of unshare and mount
MOST_DESCRIPTORS, MOST_THREADS = 256, 512
FIRST_ID, LAST_ID = 61000, 61183  # of users: between those of distributions and of systemd

LACKS_ALL = (
    "{system} has no way to shut a process off: answers can read and change the files of who "
    "grades, start programs and use the network"
)
LACKS_LIMITS = "answers are ended by the time they take, and may have all memory"
LACKS_FILES = "answers can read the files that who grades can read: this kernel has no Landlock"
LACKS_CALLS = (
    "answers can use the network and start programs, which end with the answer: this kernel has no "
    "filter of its calls (seccomp)"
)
LACKS_SPACE = "answers see {what}: this user may not make a namespace"
LACKS_USER = "answers run as the user who grades: {why}"
NOT_ROOT, UNREADABLE = "that is not root", "others may not read Python's files"


@dataclass(frozen=True)
class Limits:
    """Of an answer: seconds of processor time, bytes of memory beyond what the process has."""

    seconds: float
    nbytes: int

    @property
    def patience_s(self) -> float:
        """How long it may take in all, if the processor is free."""
        return 2 * self.seconds + 5


def environment() -> dict[str, str]:
    """The environment of the processes that answers come from."""
    own = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    # Threads of libraries would not survive a fork; what is imported late leaves no files.
    return own | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}


def separate() -> list[str]:
    """Before an answer's process begins: it will see no other, no network and no mount."""
    if not kernel.LINUX:
        return []
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if user != 0 and libc.unshare(NEW_USER) == 0:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    refused = [what for what, flag in NAMESPACES.items() if libc.unshare(flag) != 0]
    return [LACKS_SPACE.format(what=", ".join(refused))] if refused else []


def held_bytes() -> int:
    """The memory that this process has mapped."""
    import psutil

    return psutil.Process().memory_info().vms


def shut_off(limits: Limits, held: int, descriptors: Sequence[int], folder: Path) -> list[str]:
    """In the answer's process, before it reads the answer: give up all but `descriptors`.

    `held` are the bytes that it has already, `folder` is empty, and where it works.
    """
    os.chdir(folder)
    os.environ.clear()
    os.environ[CACHE] = str(folder)  # torch.compile asks for one that is there, and leaves it empty
    if not hasattr(os, "fork"):
        return [LACKS_ALL.format(system=sys.platform), LACKS_LIMITS]
    keep(descriptors)
    if not kernel.LINUX:
        _limit(limits, held, threads=False)
        return [LACKS_ALL.format(system=sys.platform)]
    _hide_processes()
    lacks = _become_nobody()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)  # a new identity would lose it
    _limit(limits, held, threads=not lacks)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if not kernel.allow_reading(_readable(folder), HIDDEN):
        lacks.append(LACKS_FILES)
    if not kernel.allow_few_calls():
        lacks.append(LACKS_CALLS)
    return lacks


def keep(descriptors: Sequence[int]) -> None:
    """Close all others; what the libraries read and print is nothing, and goes nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    kept = sorted({0, 1, 2, *descriptors})
    for below, above in zip(kept, [*kept[1:], 1 << 16], strict=True):
        os.closerange(below + 1, above)


def _hide_processes() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS) == 0:
        libc.mount(b"none", b"/", None, PRIVATE, None)
        libc.mount(b"proc", b"/proc", b"proc", BARE, None)  # of its own namespace, if it has one


def _become_nobody() -> list[str]:
    """Take the identity of a user whom nobody is; what is lacking, if that may not be."""
    if os.geteuid() != 0:
        return [LACKS_USER.format(why=NOT_ROOT)]
    readable = all(map(_readable_for_all, (Path(sys.prefix), Path(sys.base_prefix), PACKAGE)))
    if not (readable or kernel.landlock_version()):
        return [LACKS_USER.format(why=UNREADABLE)]
    number = _unused_id()
    if not readable:
        kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    if not readable:
        kernel.keep_reading_only()
    return []


def _readable_for_all(place: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (place, *place.parents))


def _unused_id() -> int:
    import pwd

    used = {entry.pw_uid for entry in pwd.getpwall()}
    return next(number for number in range(FIRST_ID, LAST_ID) if number not in used)


def _limit(limits: Limits, held: int, *, threads: bool) -> None:
    """`threads`: whether those of other processes of this user do not count."""
    import resource

    def limit(what: str, most: int) -> None:
        number = getattr(resource, what, None)
        if number is None:  # of another system
            return
        _, allowed = resource.getrlimit(number)
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(number, (most, most))

    limit("RLIMIT_CPU", int(sum(os.times()[:2]) + limits.seconds) + 1)
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", 0)  # what it says goes through a pipe
    limit("RLIMIT_NOFILE", MOST_DESCRIPTORS)
    if threads:
        limit("RLIMIT_NPROC", MOST_THREADS)
    if kernel.LINUX:
        limit("RLIMIT_AS", held + limits.nbytes)


def _readable(folder: Path) -> list[Path]:
    """Python, the libraries, and of the course what answers may import."""
    of_python = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()]
    of_python += site.getsitepackages()
    return [folder, PACKAGE, *map(Path, [*of_python, *SYSTEM_FILES])]


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError:  # a kernel without it
        return
