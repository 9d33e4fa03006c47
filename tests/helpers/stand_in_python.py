"""Plays the user's Python, with its venv, pip and uv, in the tests of set-up.

Like a real one it installs into the environment whose bin/python was called, and where pyvenv.cfg
is missing, into its own folder. A package is a file in lib, so that nothing is downloaded.
"""

import importlib.util
import os
import re
import signal
import sys
import time
from pathlib import Path

LAUNCHER = """\
#!/bin/sh
exec "$STAND_IN_PYTHON" -I -S "$STAND_IN_CODE" "$0" "$@"
"""


def install_at(folder: Path) -> Path:
    """Puts a stand-in into a folder, and returns its python3."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "lib" / "pip").write_text("the user's")
    python = folder / "bin" / "python3"
    python.write_text(LAUNCHER)
    python.chmod(0o755)
    return python


def environment() -> dict[str, str]:
    """What the launcher needs to know."""
    return {"STAND_IN_PYTHON": sys.executable, "STAND_IN_CODE": str(Path(__file__).resolve())}


def prefixes(python: str) -> tuple[Path, Path]:
    """A Python's sys.prefix and sys.base_prefix."""
    base = Path(python).resolve().parent.parent
    folder = Path(python).absolute().parent.parent
    return (folder if (folder / "pyvenv.cfg").exists() else base), base


def ask(python: str, code: str) -> None:
    prefix, base = prefixes(python)
    sys.prefix, sys.base_prefix = str(prefix), str(base)
    standard = {"ensurepip"}
    importlib.util.find_spec = lambda name: name in standard or (prefix / "lib" / name).exists()
    exec(code)


def make_venv(python: str, folder: Path) -> None:
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "pyvenv.cfg").write_text("home = here\n")
    (folder / "bin" / "python").symlink_to(Path(python).resolve())
    put(folder, ["pip"])


def put(prefix: Path, packages: list[str]) -> None:
    for package in packages:
        (prefix / "lib" / package).touch()
    signal_caller(prefix)
    for package in packages:
        (prefix / "lib" / package).write_text("complete")


def signal_caller(prefix: Path) -> None:
    """In the midst of the command that a test chose, sends set-up a signal, and goes on."""
    chosen = int(os.environ.get("STAND_IN_COMMAND", 0))
    if not chosen:
        return
    count = Path(os.environ["STAND_IN_COUNT"])
    with count.open("a") as file:
        file.write("command\n")
    if len(count.read_text().split()) != chosen:
        return
    os.kill(os.getppid(), signal.Signals[os.environ["STAND_IN_SIGNAL"]])
    end_s = time.monotonic() + float(os.environ["STAND_IN_GO_ON_S"])
    stop = count.with_name("stop")
    number = 0
    while time.monotonic() < end_s and not stop.exists():  # a folder being emptied fills again
        number += 1
        (prefix / "lib").mkdir(parents=True, exist_ok=True)
        (prefix / "lib" / f"{number % 100}").touch()


def install(module: str, prefix: Path, arguments: list[str]) -> None:
    if not (prefix / "lib" / module).exists():
        sys.exit(f"No module named {module}")
    if "cpu" in arguments and os.environ.get("STAND_IN_UNREACHABLE"):
        sys.exit("the index of builds without CUDA does not answer")
    if "--dry-run" in arguments:
        return
    asked = sys.stdin.read() if "--requirement" in arguments else " ".join(arguments)
    names = re.findall(r"^(?:.* )?([\w-]+)==", asked, re.MULTILINE)
    if "--require-hashes" in arguments and len(names) != asked.count("--hash"):
        sys.exit("a hash is missing")
    put(prefix, names or ["d2lpar"])


def main(python: str, arguments: list[str]) -> None:
    match arguments:
        case [*_, "-c", code]:
            ask(python, code)
        case ["-m", "venv", folder]:
            make_venv(python, Path(folder))
        case ["-m", "ensurepip"]:
            put(prefixes(python)[0], ["pip"])
        case ["-m", "pip", *rest]:
            elsewhere = os.environ.get("PIP_PREFIX")
            install("pip", Path(elsewhere) if elsewhere else prefixes(python)[0], rest)
        case ["-m", "uv", "venv", *_, folder]:
            (Path(folder) / "pyvenv.cfg").write_text("home = here\nrelocatable = true\n")
        case ["-m", "uv", "pip", *rest]:
            install("uv", prefixes(rest[rest.index("--python") + 1])[0], rest)
        case _:
            sys.exit(f"the stand-in cannot {arguments}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
