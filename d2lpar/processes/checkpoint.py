"""Checkpoints: all that a training run needs to go on after a crash as if nothing had happened."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import weakref
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from copy import deepcopy
from pathlib import Path
from typing import IO, Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..timeline.inputs import Count, require
from ..timeline.whole_file import in_use, new_in_use, remove_unused
from .random_states import random_state, set_random_state

FORMAT = 1
FIELDS = {"step", "position", "parts", "random"}
PART = "unfinished-{}.part"
PARTS = re.compile(r"unfinished-[0-9a-f]{16}\.part")  # whose are in use unless a process was killed
FULL = {errno.ENOSPC, errno.EDQUOT}
log = logging.getLogger(__name__)


class Stateful(Protocol):
    """A network, an optimizer, a sampler, …: what can tell its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Go on from a state."""


class Checkpoints:
    """The newest `keep` checkpoints of one run, as `step-00000120.pt` in a folder.

    Files with other names may lie beside them, and are left alone.
    All ranks call `save` and `resume`, at the same steps. Rank 0 alone reads and writes, so the
    machines need not share the folder. Without a process group there is one rank. Several processes
    may save into one folder: none deletes what another one has written, as long as that runs, nor
    what it reads; but of one step the file stays that was written last. Raises ValueError for a
    `keep` below 1.
    """

    def __init__(self, folder: str | os.PathLike, *, keep: int = 2) -> None:
        require("Checkpoints", Count, keep=keep)
        self.folder, self.keep = Path(folder), keep
        self._mine: dict[Path, IO[bytes]] = {}  # what this process has written, and keeps
        weakref.finalize(self, _close, self._mine)

    def save(self, step: int, position: dict, **parts: Stateful) -> None:
        """Write a checkpoint, whole or not at all.

        `position` says where the run is in its data, in numbers and texts of your choice; `parts`
        are whatever has a `state_dict`, by name: `model=net, optimizer=sgd`. Raises ValueError for
        what `resume` would not load, such as NumPy's numbers, and OSError if the disk is full.
        """
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ValueError(f"step is {step!r}: it must be a whole number from 0 on.")
        randomness = _from_all(random_state())
        if _rank() != 0:
            return
        states = {name: _unwrapped(part).state_dict() for name, part in parts.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {"step": step, "position": position, "parts": states, "random": randomness}
        file = self.folder / f"step-{step:08}.pt"
        _remove_abandoned(self.folder)
        _close(self._mine, file)
        self._mine[file] = _write({"format": FORMAT, **state}, file)
        older = [file for file, number in self._numbered().items() if number < step]
        for file in older[: max(0, len(older) - self.keep + 1)]:
            _close(self._mine, file)
            remove_unused(file, if_unknown=True)

    def resume(self, **parts: Stateful) -> tuple[int, dict] | None:
        """Load the newest checkpoint into `parts`; returns its (step, position), or None.

        Random numbers go on where they were if there are as many ranks as at the time of saving.
        Raises ValueError as `latest` does, and for a part that is not in the checkpoint; where a
        part does not take its state, what that raises. All parts are then as they were.
        """
        state = _from_rank_0(self.latest)
        if state is None:
            return None
        missing = [name for name in parts if name not in state["parts"]]
        if missing:
            names = ", ".join(map(repr, missing))
            raise ValueError(f"{names} is not in the checkpoint: it has {[*state['parts']]}.")
        with ExitStack() as undo:
            for name, part in parts.items():
                inner = _unwrapped(part)
                undo.callback(inner.load_state_dict, deepcopy(inner.state_dict()))
                inner.load_state_dict(state["parts"][name])
            undo.callback(set_random_state, random_state())
            if len(state["random"]) == _world_size():
                set_random_state(state["random"][_rank()])
            elif _rank() == 0:
                text = "Saved by %d ranks, resumed by %d: random numbers will be others."
                log.warning(text, len(state["random"]), _world_size())
            undo.pop_all()  # all of it fits
        return state["step"], state["position"]

    def latest(self) -> dict | None:
        """The newest checkpoint that can be read, tensors on the CPU; None if there is no file.

        Files that are damaged, or that `save` did not write, are passed over with a warning.
        Raises ValueError if no file can be read, or one was written by another version.
        """
        files = self.files()
        for file in reversed(files):
            state = _read(file)
            if state is not None:
                return state
        if files and not any(map(Path.exists, files)):  # a process that goes on has newer ones
            return self.latest()
        if files:
            raise ValueError(
                f"None of the {len(files)} checkpoints in {self.folder} can be read: put back a "
                "copy, or name another folder to start anew."
            )
        return None

    def files(self) -> list[Path]:
        """The checkpoints that there are, the newest last."""
        return list(self._numbered())

    def _numbered(self) -> dict[Path, int]:
        """The checkpoints and their steps, the newest last."""
        named = ((file, _step(file)) for file in self.folder.glob("step-*.pt"))
        found = {file: step for file, step in named if step is not None and file.is_file()}
        return dict(sorted(found.items(), key=lambda one: one[1]))


def _write(state: dict, file: Path) -> IO[bytes]:
    """Under another name first: what bears the right name is whole and on the disk.

    Returns the open file, which is in use until it is closed.
    """
    stream = new_in_use(lambda: file.parent / PART.format(secrets.token_hex(8)))
    part = Path(stream.name)
    try:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
        if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(part):
            raise ValueError(
                f"The position or a part holds {', '.join(unsafe)}, which would not be loaded "
                "again: make plain numbers, texts, lists, dicts or tensors of it."
            )
        os.replace(part, file)
    except BaseException as error:
        with suppress(OSError):
            stream.close()
        part.unlink(missing_ok=True)
        cause = _os_error(error) if isinstance(error, OSError | RuntimeError) else None
        if cause is None:
            raise
        reason = "disk full" if cause.errno in FULL else cause.strerror or cause
        text = f"{reason}: this checkpoint was not written, those before it are unharmed"
        raise OSError(cause.errno, text, str(file)) from cause
    return stream


def _close(streams: dict[Path, IO[bytes]], *files: Path) -> None:
    """Let go of some of the files, or of all."""
    for file in files or [*streams]:
        if file in streams:
            streams.pop(file).close()


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes have left."""
    for path in folder.iterdir():
        if PARTS.fullmatch(path.name):
            remove_unused(path, if_unknown=True)


def _os_error(error: BaseException | None) -> OSError | None:
    """What the system said: torch.save hides it behind a RuntimeError about positions."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def _read(file: Path) -> dict | None:
    """The state in a file; None, and a warning, if it is damaged or not from `save`."""
    try:
        with file.open("rb") as stream:
            in_use(stream)
            with zipfile.ZipFile(stream) as archive:  # torch.load would not notice a wrong bit
                if wrong := archive.testzip():
                    raise ValueError(f"wrong checksum of {wrong}")
            stream.seek(0)
            state = torch.load(stream, map_location="cpu", weights_only=True)
        _check_is_ours(state)
    except FileNotFoundError:  # another process has newer ones
        return None
    except Exception as error:
        log.warning("%s cannot be read: taking the one before it. (%s)", file, error)
        return None
    if state["format"] != FORMAT:
        raise ValueError(f"{file} has format {state['format']}; this version reads {FORMAT}.")
    return state


def _check_is_ours(state: object) -> None:
    """Raise ValueError for what `save` did not write, in this version or another."""
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise ValueError(f"it holds a {type(state).__name__} that `save` did not write")
    if state["format"] == FORMAT and (missing := FIELDS - state.keys()):
        raise ValueError(f"it lacks {', '.join(sorted(missing))}: `save` did not write it")


def _step(file: Path) -> int | None:
    """The step that `save` named a file for; None for names that it does not give."""
    found = re.fullmatch(r"step-([0-9]{8,})\.pt", file.name)
    return int(found[1]) if found else None


def _unwrapped(part: Stateful) -> Stateful:
    """The network itself, so that a checkpoint loads with DistributedDataParallel and without."""
    return part.module if isinstance(part, DistributedDataParallel) else part


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _from_all(mine: dict) -> list[dict]:
    found = [mine] * _world_size()
    if dist.is_initialized():
        dist.all_gather_object(found, mine)
    return found


def _from_rank_0(load: Callable[[], dict | None]) -> dict | None:
    found: list[dict | Exception | None] = [None]
    if _rank() == 0:
        try:
            found = [load()]
        except Exception as error:  # the others would wait for what does not come
            found = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(found, src=0)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
