"""Linux: a process gives up all calls of the kernel and all files but those that it needs.

By numbers, through ctypes: no library is in every student's environment. Both are one-way, also for
root, and both are lists of what *is* allowed: what they do not name is refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_NAME, PR_SET_SECCOMP = 1, 8, 15, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAPABILITIES, CAP_DAC_READ_SEARCH = 0x20080522, 2

# Names as in the manuals, numbers on x86_64 and aarch64 (linux/unistd.h). With these a process
# computes, reads, maps memory, starts threads and waits for them. There is no way in it to start or
# signal a process, to make, change or delete a file, to open a socket, or to look into others.
CALLS = {
    "access": (21, None), "arch_prctl": (158, None), "brk": (12, 214), "clock_getres": (229, 114),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "close": (3, 57), "dup": (32, 23),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_wait": (232, None), "eventfd2": (290, 19), "exit": (60, 93), "exit_group": (231, 94),
    "faccessat": (269, 48), "faccessat2": (439, 439), "fadvise64": (221, 223), "fstat": (5, 80),
    "fstatfs": (138, 44), "futex": (202, 98), "get_robust_list": (274, 100), "getcpu": (309, 168),
    "getcwd": (79, 17), "getdents": (78, None), "getdents64": (217, 61), "getegid": (108, 177),
    "geteuid": (107, 175), "getgid": (104, 176), "getpid": (39, 172), "getppid": (110, 173),
    "getrandom": (318, 278), "getrlimit": (97, 163), "getrusage": (98, 165), "gettid": (186, 178),
    "gettimeofday": (96, 169), "getuid": (102, 174), "lseek": (8, 62), "lstat": (6, None),
    "madvise": (28, 233), "membarrier": (324, 283), "mincore": (27, 232), "mmap": (9, 222),
    "mprotect": (10, 226), "mremap": (25, 216), "munmap": (11, 215), "nanosleep": (35, 101),
    "newfstatat": (262, 79), "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None),
    "ppoll": (271, 73), "pread64": (17, 67), "pselect6": (270, 72), "read": (0, 63),
    "readlink": (89, None), "readlinkat": (267, 78), "readv": (19, 65),
    "restart_syscall": (219, 128), "rseq": (334, 293), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124), "select": (23, None), "set_robust_list": (273, 99),
    "set_tid_address": (218, 96), "sigaltstack": (131, 132), "stat": (4, None),
    "statfs": (137, 43), "statx": (332, 291), "sysinfo": (99, 179), "time": (201, None),
    "times": (100, 153), "uname": (63, 160), "write": (1, 64), "writev": (20, 66),
}  # fmt: skip
ALL_BITS, CLONE_THREAD = 0xFFFFFFFF, 0x10000
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Numbers, then: which argument, which of its bits, and what these may be.
CHECKED = {
    "clone": ((56, 220), 0, CLONE_THREAD, (CLONE_THREAD,)),  # a thread, no process
    "open": ((2, None), 1, WRITES, (0,)),
    "openat": ((257, 56), 2, WRITES, (0,)),
    "fcntl": ((72, 25), 1, ALL_BITS, (0, 1, 2, 3, 4, 1030)),  # copies and flags; no signals
    "prctl": ((157, 167), 0, ALL_BITS, (PR_SET_NAME,)),
    "prlimit64": ((302, 261), 0, ALL_BITS, (0,)),  # its own limits
}
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUALS, AND, RETURN = 0x20, 0x15, 0x54, 0x06  # of the filter's machine, on 32-bit words
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16  # in what the filter is shown

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
READ_FILE, READ_FOLDER, EXECUTE = 1 << 2, 1 << 3, 1 << 0
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # of files, by the version of Landlock


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> bool:
    """Whether the kernel has done what was asked for."""
    return LINUX and _libc().prctl(option, value, 0, 0, 0) == 0


def keep_reading_only() -> bool:
    """Of a former root's powers, keep that to read files of others, which Landlock bounds."""
    header = struct.pack("<Ii", CAPABILITIES, 0)
    reading = 1 << CAP_DAC_READ_SEARCH
    sets = struct.pack("<6I", reading, reading, 0, 0, 0, 0)
    return _libc().capset(header, sets) == 0


def allow_few_calls() -> bool:
    """Refuse all calls of the kernel that are not listed above; whether that could be done."""
    column, machine = MACHINES.get(platform.machine(), (0, 0)) if LINUX else (0, 0)
    if not machine or struct.calcsize("P") != 8:
        return False
    steps = [*_filter(column, machine)]
    packed = b"".join(struct.pack("<HBBI", *step) for step in steps)
    code = ctypes.create_string_buffer(packed, len(packed))
    program = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(code))
    )
    libc = _libc()
    done = libc.prctl(PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0)
    return done == 0


def _filter(column: int, machine: int) -> Iterator[tuple[int, int, int, int]]:
    yield LOAD, 0, 0, MACHINE_AT
    yield EQUALS, 1, 0, machine  # or numbers would mean other calls
    yield RETURN, 0, 0, KILL
    yield LOAD, 0, 0, NUMBER_AT
    for number in (numbers[column] for numbers in CALLS.values()):
        if number is not None:
            yield EQUALS, 0, 1, number
            yield RETURN, 0, 0, ALLOW
    for numbers, argument, bits, values in CHECKED.values():
        number = numbers[column]
        if number is not None:
            yield EQUALS, 0, 3 + 2 * len(values), number
            yield LOAD, 0, 0, ARGUMENTS_AT + 8 * argument
            yield AND, 0, 0, bits
            for value in values:
                yield EQUALS, 0, 1, value
                yield RETURN, 0, 0, ALLOW
            yield RETURN, 0, 0, REFUSE | errno.EPERM
    yield RETURN, 0, 0, REFUSE | errno.ENOSYS  # for which libraries have another way, or an error


def landlock_version() -> int:
    """That of this kernel; 0 where it has none, or it is switched off."""
    return max(0, _libc().syscall(LANDLOCK_CREATE, None, 0, 1)) if LINUX else 0


def allow_reading(places: Iterable[Path], hidden: Iterable[Path]) -> bool:
    """Let this process read what is under `places`, but for what is `hidden`, and no other file.

    Names of files beside what is hidden can still be listed. False where there is no Landlock.
    """
    version = landlock_version()
    if not version:
        return False
    network = 3 if version >= 4 else 0  # TCP: to bind, to connect
    scopes = 3 if version >= 6 else 0  # abstract sockets and signals: none beyond this process
    known = (1 << RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("<QQQ", known, network, scopes)
    attributes = attributes[: 24 if version >= 6 else 16 if version >= 4 else 8]
    libc = _libc()
    rules = libc.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for place, rights in _granted(places, {path.resolve() for path in hidden}):
            _grant(libc, rules, place, rights & known)
        return libc.syscall(LANDLOCK_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _granted(places: Iterable[Path], hidden: set[Path]) -> Iterator[tuple[Path, int]]:
    """Files and folders, with rights to them: around what is hidden each one alone."""
    for place in {path.resolve() for path in places}:
        if place in hidden:
            continue
        if place.is_dir() and any(place in path.parents for path in hidden):
            yield place, READ_FOLDER
            yield from _granted(place.iterdir(), hidden)
        elif not any(path in place.parents for path in hidden):
            rights = READ_FILE | EXECUTE
            yield place, rights | READ_FOLDER if place.is_dir() else rights


def _grant(libc: ctypes.CDLL, rules: int, place: Path, rights: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is not there, or not ours to read
        return
    try:
        libc.syscall(LANDLOCK_ADD, rules, 1, struct.pack("<Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
