"""Files that are replaced at once: a reader sees the old or the new one, never a part.

What lies beside them is somebody's: a name for what is unfinished is one that nothing has, and it
is removed only where nobody writes it any more (`in_use`). What a command has been told to write is
tried before its work, which may take hours (`tried`), and is not lost if it cannot be written in
the end all the same (`OutputFile.write_or_rescue`).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import inspect
import itertools
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

T = TypeVar("T")
Named = str | os.PathLike[str]
NOT_WRITTEN = 74  # exit status: EX_IOERR of sysexits.h
STREAMS = ("/dev/", "/proc/")  # /dev/stdout, which the shell may have led to a file
RESERVED = 2**16  # bytes: on a full disk a file can be made, and holds nothing
MOST_READ = 2**26  # bytes of a file that holds a table, or one object
LONGEST = 200  # bytes of an output's name in that of its part: a name has 255 at most
PART = re.compile(r"[0-9a-f]{32}\.part")  # what follows the output's name
ASIDE = "{stem} before {day}{number}{suffix}"


def write(path: Named, text: str) -> None:
    """Write `text` (UTF-8, lines end in a newline alone) under another name, then rename it.

    A link stays a link: what it leads to is written. Raises OSError where that cannot be, and
    leaves the old file as it was.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Named, content: bytes) -> None:
    """The same with bytes."""
    with contextlib.closing(OutputFile(path)) as file:
        file.write_bytes(content)


@contextlib.contextmanager
def instead_of(path: Named) -> Iterator[str]:
    """A file to write in the block, for who opens by a name what it writes; `path` is it then.

    Raises OSError, and leaves the old file as it was, as it does for any error of the block.
    """
    with contextlib.closing(OutputFile(path)) as file:
        file.emptied()
        with file.named_in_errors():
            yield file.part
            file.finish()


def whole(write: Callable[..., T], name: str) -> Callable[..., T]:
    """A function that writes the file in its argument `name` as the rest does: whole, or not at
    all. Raises OSError, which says which file."""
    signature = inspect.signature(write)

    @functools.wraps(write)
    def written(*args: object, **kwargs: object) -> T:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        with instead_of(bound.arguments[name]) as bound.arguments[name]:
            return write(*bound.args, **bound.kwargs)

    return written


def put_aside(path: Path, beside: Path | None = None) -> Path:
    """Give what is there a name that nothing has, "x before 2026-01-31.json"; returns that.

    Where it shall be found `beside` another file of the folder, "x" is that one's name.
    """
    aside = unused(numbered(ASIDE, beside or path, before=" (", after=")"))
    if path.is_dir() and not path.is_symlink():
        aside.unlink()  # a folder takes no file's place
    path.replace(aside)
    return aside


def numbered(pattern: str, path: Path, *, before: str, after: str = "") -> Iterator[Path]:
    """The name that a file beside `path` gets, of its {stem}, {suffix} and the {day}, and further
    ones with a {number}."""
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    for i in itertools.count(1):
        number = "" if i == 1 else f"{before}{i}{after}"
        yield path.with_name(
            pattern.format(stem=path.stem, day=day, number=number, suffix=path.suffix)
        )


def unused(paths: Iterable[Path]) -> Path:
    """The first that nothing has, of ever more; it is an empty file now, which nobody else gets."""
    for path in paths:
        with contextlib.suppress(FileExistsError):
            path.open("xb").close()
            return path
    raise FileExistsError("all of the names are taken")


def _write_into(path: Path, content: bytes) -> None:
    """Write a file that has further names (hard links), which a new one would not have."""
    old = path.read_bytes()
    try:
        path.write_bytes(content)
    except BaseException:
        path.write_bytes(old)
        raise


def read(path: Named, what: str) -> str:
    """The text (UTF-8) of a file that is `what` ("a JSON file") in words.

    Raises ValueError for a folder, a pipe or a device, which need not end, and for a file that is
    too large for that; OSError; UnicodeDecodeError, which is a ValueError.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
        raise ValueError(f"{os.fspath(path)}: this is {kind}, not {what}")
    if found.st_size > MOST_READ:
        raise ValueError(
            f"{os.fspath(path)}: this has {found.st_size} bytes, too many for {what}: it takes "
            f"{MOST_READ} at most"
        )
    return Path(path).read_text(encoding="utf-8")


class OutputFile:
    """A file to be written, opened under another name beside its place, which it takes when it is
    whole. A link stays one: what it leads to is replaced, with the mode that it had.

    Raises OSError if there is no such folder, or no file can be written there.
    """

    def __init__(self, path: Named) -> None:
        self.path = path
        self._process = os.getpid()  # a forked child has nothing to finish
        self._beside: str | None = None
        try:
            self.place, self._file = self._opened(os.path.abspath(os.fspath(path)))
        except (OSError, ValueError) as error:  # ValueError: a zero byte in a name
            raise _refusal(path, error) from None

    def _opened(self, path: str) -> tuple[str, BinaryIO]:
        found = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = os.stat(path)
        if os.fspath(self.path).endswith(os.sep) or (found and stat.S_ISDIR(found.st_mode)):
            raise IsADirectoryError("it is a folder: name a file in it")
        if found is not None and (not stat.S_ISREG(found.st_mode) or path.startswith(STREAMS)):
            # A pipe that nobody reads yet is no reason to wait.
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
            os.set_blocking(number, True)
            return path, os.fdopen(number, "wb")
        place = os.path.realpath(path)
        if found is not None and not os.access(place, os.W_OK):
            raise PermissionError("it may not be written to")
        folder = os.path.dirname(place)
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder {folder}: make it first")
        file = self._begun(folder, os.path.basename(place))
        try:
            if found is not None:
                os.chmod(file.name, stat.S_IMODE(found.st_mode))
            file.write(bytes(RESERVED))
            file.flush()
        except OSError:
            self.close(file)
            raise
        return place, file

    def _begun(self, folder: str, name: str) -> BinaryIO:
        """A new file beside the place; what killed processes have left there is removed."""
        prefix = f".{os.fsdecode(os.fsencode(name)[:LONGEST])}."
        for path in Path(folder).iterdir() if os.access(folder, os.R_OK) else ():
            if path.name.startswith(prefix) and PART.fullmatch(path.name.removeprefix(prefix)):
                remove_unused(path)
        file = new_in_use(lambda: Path(folder, f"{prefix}{uuid.uuid4().hex}.part"))
        self._beside = file.name
        return file

    @property
    def part(self) -> str:
        """Where the content is until the file is whole."""
        return self._beside or self.place

    def emptied(self) -> BinaryIO:
        """The open file, to write to as the content comes; `finish` ends that, or whoever closes
        it, and then what came stays in `part`."""
        if self._beside is not None:
            self._file.seek(0)
            self._file.truncate()
        return self._file

    def write(self, text: str) -> None:
        """Write the whole content (UTF-8). Raises OSError, and then the old file is as it was."""
        self.write_bytes(text.encode())

    def write_bytes(self, content: bytes) -> None:
        """The same with bytes."""
        with self.named_in_errors():
            if self._beside is not None:
                self._file.seek(0)  # over what is reserved
            self._file.write(content)
            if self._beside is not None:
                self._file.truncate()
            self.finish()

    def write_or_rescue(self, text: str) -> str | None:
        """Write the whole content; what to say if it could not be: where it is now."""
        try:
            self.write(text)
        except OSError as error:
            return f"{error}. {_rescued(self.path, text)}"
        return None

    @contextlib.contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """In the block, an OSError says which file cannot be written."""
        try:
            yield
        except OSError as error:
            raise _refusal(self.path, error) from error

    def finish(self, place: Named | None = None) -> None:
        """Let what was written take its place, or another in the same folder. Raises OSError."""
        self._file.flush()
        try:
            if self._beside is not None:
                os.fsync(self._file.fileno())
                self._take(Path(place or self.place))
        finally:
            self._file.close()

    def _take(self, target: Path) -> None:
        """Let the file, which is in use until then, take its place."""
        assert self._beside is not None, "it has another name"
        if target.exists() and target.stat().st_nlink > 1:
            _write_into(target, Path(self._beside).read_bytes())
            self.close()
            return
        if os.name == "nt":  # which moves no open file
            self._file.close()
        os.replace(self._beside, target)
        self._beside = None

    def left(self) -> str:
        """Close it, and leave what came under a name that no later output removes; which one."""
        with contextlib.suppress(OSError):
            self._file.close()
        part, self._beside = self.part, None
        if part != self.place:
            with contextlib.suppress(OSError):
                names = numbered("{stem}{suffix}{number}.part", Path(self.place), before="-")
                return os.fspath(Path(part).replace(unused(names)))
        return part

    def close(self, file: BinaryIO | None = None) -> None:
        """Leave nothing of what is not finished."""
        with contextlib.suppress(OSError):  # what could not be written may come again
            (file or self._file).close()
        if self._beside is not None and self._process == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._beside)
            self._beside = None


@contextlib.contextmanager
def tried(outputs: Mapping[str, Named | None]) -> Iterator[dict[str, OutputFile]]:
    """Files by the option that names them, open to be written in the block; of those that are not,
    nothing is left. None is left out. Raises OSError."""
    with contextlib.ExitStack() as stack:
        yield {
            option: stack.enter_context(contextlib.closing(OutputFile(path)))
            for option, path in outputs.items()
            if path is not None
        }


def require_apart(
    outputs: Mapping[str, Named | None],
    inputs: Mapping[Named, str],
    parts: Mapping[str, Callable[[Named, str], bool]] | None = None,
) -> None:
    """Raise ValueError where two options name one file to write, in whichever words, or one names a
    file that is read; `inputs` say what that is ("the program").

    `parts` are options that may name a folder: whether what is written to a path has a file of such
    a name in it.
    """
    taken = {_identity(path): what for path, what in inputs.items()}
    named = {option: path for option, path in outputs.items() if path is not None}
    for option, path in named.items():
        if (what := taken.get(_identity(path))) is not None:
            raise ValueError(f"{option} {os.fspath(path)} is {what}: name another file to write")
        if _is_kept(path):
            taken[_identity(path)] = f"what {option} names, too"
    others = {**dict.fromkeys(named.values(), "what another option names"), **inputs}
    for option, has in (parts or {}).items():
        if (folder := named.get(option)) is None:
            continue
        written = _written_in(folder, functools.partial(has, folder))
        for path, what in others.items():
            if written(path):
                raise ValueError(
                    f"{option} {os.fspath(folder)} would write over {os.fspath(path)}, {what}: "
                    "name another folder"
                )


def _written_in(folder: Named, has: Callable[[str], bool]) -> Callable[[Named], bool]:
    """Whether a path is a file that is written in a folder, where links may lead elsewhere."""
    there = [name for name in os.listdir(folder) if has(name)] if os.path.isdir(folder) else []
    known, place = {_identity(os.path.join(folder, name)) for name in there}, _identity(folder)

    def written(path: Named) -> bool:
        above, name = os.path.split(os.path.realpath(path))
        return _identity(path) in known or (_identity(above) == place and has(name))

    return written


def new_in_use(name: Callable[[], Path]) -> BinaryIO:
    """A file of a name that nothing had, in use until it is closed; `name()` makes such names."""
    while True:
        stream = name().open("xb")
        in_use(stream)
        if os.name == "nt" or os.fstat(stream.fileno()).st_nlink:
            return stream
        stream.close()  # another process has taken it for abandoned just before


def remove_unused(path: Path, *, if_unknown: bool = False) -> None:
    """Remove a file that no process writes, keeps or reads; `if_unknown`: also where the file
    system cannot tell."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        alone = in_use(stream, alone=True)
        if alone or (alone is None and if_unknown):
            path.unlink()


def in_use(stream: IO[bytes], *, alone: bool = False) -> bool | None:
    """Say that a file is in use until the stream is closed; False where `alone` cannot be.

    The system lets go of what a killed process used. Windows deletes no open file, and knows no
    such locks. None where a file system does not know them, either.
    """
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
    except BlockingIOError:
        return False
    except ImportError:
        return True
    except OSError:
        return None
    return True


def _identity(path: Named) -> object:
    """What is the same for all names of a file, links too, also before there is one."""
    place = os.path.realpath(path)
    try:
        found = os.stat(place)
    except (OSError, ValueError):
        return place
    return found.st_dev, found.st_ino


def _is_kept(path: Named) -> bool:
    """Whether what is written there stays, and is written over: not on a terminal, or in a pipe."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _refusal(path: Named, error: Exception) -> OSError:
    reason = getattr(error, "strerror", None) or error
    kind = type(error) if isinstance(error, OSError) else OSError
    return kind(f"{os.fspath(path)} cannot be written: {reason}")


def _rescued(path: Named, text: str) -> str:
    """Keep a content that could not be written; says where."""
    name = os.path.basename(os.fspath(path))[-100:]
    try:
        number, file = tempfile.mkstemp(prefix="d2lpar-", suffix=f"-{name}")
        with os.fdopen(number, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except OSError:
        return f"This is what it would hold:\n{text}"
    return f"What it would hold is in {file}: copy it"
