"""What a student's runs leave for later ones: small JSON files in a folder beside the notebook.

Two notebooks may change one file at the same time: neither loses what the other has written.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from . import waits, whole_file
from .printing import say

FOLDER = ".d2lpar"  # in the folder of the notebook
VARIABLE = "D2LPAR_KEEP"  # another folder, or "no"
NOTHING = "no"
LOCK = ".lock"  # in the folder of a file that is changed
TEXT_ASIDE = "d2lpar: {file} could not be read ({error}): it is {aside} now, and a new one is begun"


def folder(beside: Path | None = None) -> Path | None:
    """Where things are kept, or None if `D2LPAR_KEEP=no` asks for nothing to be; of the notebooks
    in the folder `beside` (None: the current one)."""
    chosen = os.environ.get(VARIABLE) or FOLDER
    path = Path(chosen).expanduser()
    return None if chosen == NOTHING else (beside / path if beside else path).absolute()


def read(name: str, beside: Path | None = None) -> dict:
    """What was kept under a name; empty if there is nothing that can be read."""
    where = folder(beside)
    if where is not None:
        with contextlib.suppress(OSError, ValueError):
            return json_object(where / f"{name}.json")
    return {}


def write(name: str, key: str, value: object) -> None:
    """Keep `value` under a name and a key, beside what is there. Where nothing can be written,
    nothing is kept: a lesson goes on without."""
    where = folder()
    if where is None:
        return
    with contextlib.suppress(OSError), changed(where / f"{name}.json") as found:
        found[key] = value


@contextlib.contextmanager
def changed(file: Path, check: Callable[[dict], object] = lambda _: None) -> Iterator[dict]:
    """The object in a JSON file, which is what the block has made of it at the end; one process
    has it at a time.

    It is empty where there is no file. One that holds no object, or one for which `check` raises
    ValueError, is put aside, which a line on stderr says. Raises OSError where it cannot be read or
    written, TimeoutError while another process goes on and on with it.
    """
    with waits.locked(file.with_name(LOCK)):
        found: dict = {}
        try:
            found = json_object(file)
            check(found)
        except FileNotFoundError:
            pass
        except ValueError as error:
            found, aside = {}, whole_file.put_aside(file)
            told = TEXT_ASIDE.format(file=file, error=error, aside=aside.name)
            say(told, stream=sys.stderr)
        before = _text(found)
        yield found
        if _text(found) != before:
            whole_file.write(file, _text(found))


def json_object(file: Path) -> dict:
    """The object in a JSON file. Raises OSError, and ValueError where there is none in it."""
    try:
        found = json.loads(whole_file.read(file, "a JSON file"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__} in place of an object")
    return found


def _text(found: dict) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
