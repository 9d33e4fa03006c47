"""What the package prints can be printed everywhere, also in ASCII; what it writes is whole."""

import ast
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import d2lpar as par
from d2lpar.command import cli
from d2lpar.processes.cluster import output
from d2lpar.timeline import printing, whole_file
from d2lpar.timeline.printing import printable, say

PROJECT = Path(__file__).parents[2]


def stream(encoding: str = "ascii", errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding, errors, newline="")


def written(to: io.TextIOWrapper) -> bytes:
    to.flush()
    return to.buffer.getvalue()


TEXT = "9.6 µs ± 1, 2 × 3 · and 中 …"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", TEXT),
        ("latin-1", r"9.6 us +- 1, 2 x 3 - and \u4e2d ..."),
        ("ascii", r"9.6 us +- 1, 2 x 3 - and \u4e2d ..."),
    ],
)
def test_what_the_encoding_lacks_is_written_in_what_it_has(encoding, expected):
    with redirect_stdout(stream(encoding)) as to:
        say(TEXT)
    assert written(to) == f"{expected}\n".encode(encoding)


def test_a_program_may_replace_print(monkeypatch):
    monkeypatch.setattr("builtins.print", lambda *texts: None)  # as ranks do that shall be silent
    with redirect_stdout(stream()) as to:
        say("12 ms", flush=True)
    assert to.buffer.getvalue() == b"12 ms\n"


def test_what_can_be_written_stays_as_it_is():
    assert printable("1 µs · 2 ×", stream("latin-1")) == "1 µs · 2 ×"
    assert printable("a·b", stream("ascii", "namereplace")) == "a·b"  # the user chose how
    assert printable(os.fsdecode(b"caf\xc3"), stream("utf-8", "surrogateescape")) == "caf\udcc3"
    assert printable("a·b", io.StringIO()) == printable("a·b", None) == "a·b"


def emulated() -> None:
    with par.emulate_cuda(2):
        par.devices(2)


def live_plot() -> None:
    with par.plots.LivePlot(curves=["a"], title="loss · accuracy") as plot:
        plot.add(1, {"a": 2.0})


def live_gantt() -> None:
    gpus = par.devices(2, kind="virtual", verbose=False)
    with par.plots.LiveGantt(par.record()):
        torch.ones(3, device=gpus[0]) + 1


PRINTED = {
    "a machine": (lambda: cli.main(["machines", "64x8x-p100-dgx1-4xib-edr"]), "9.6 us, shared"),
    "devices": (lambda: par.devices(2, kind="virtual"), "vgpu:0, vgpu:1  -  2 virtual"),
    "emulated devices": (emulated, "cuda:0, cuda:1  -  2 emulated"),
    "a live plot": (live_plot, "loss - accuracy\n"),
    "a live Gantt chart": (live_gantt, "Gantt chart of host - main, vgpu:0 - stream 0"),
    "ranks": (lambda: output.show([output.Output(0, ["2 × 3\n"])]), "[rank 0] 2 x 3\n"),
}


@pytest.mark.parametrize("what", PRINTED)
def test_nothing_that_the_package_prints_is_an_error(what):
    work, expected = PRINTED[what]
    with redirect_stdout(stream()) as to:
        work()
    assert expected in written(to).decode("ascii")


def test_nor_is_the_bar_of_a_live_plot_on_a_terminal():
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    with redirect_stdout(Terminal(io.BytesIO(), "ascii")) as to:
        live_plot()
    assert "x 1 - a 2" in written(to).decode("ascii")


def test_the_command_in_the_locale_c():
    found = subprocess.run(
        [sys.executable, "-m", "d2lpar", "machines", "64x8x-p100-dgx1-4xib-edr"],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""},
        cwd=PROJECT,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert b"latency 9.6 " in found.stdout


def plain_prints(file: Path) -> list[str]:
    """Calls of `print` in a module, but for those on stderr, which escapes what it lacks."""
    return [
        f"{file.name}:{call.lineno}"
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "print"
        and not any(ast.unparse(given) == "file=sys.stderr" for given in call.keywords)
    ]


def test_the_package_prints_by_say_alone():
    files = (PROJECT / "d2lpar").rglob("*.py")
    assert [place for file in files for place in plain_prints(file)] == []


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    whole_file.write(file, "one\n")
    assert file.read_bytes() == b"one\n"

    def full(source, target):
        raise OSError("no space is left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        whole_file.write(file, "two\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert file.read_bytes() == b"one\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_marks_have_colours_in_a_terminal_whose_user_wants_them(monkeypatch, environment, colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    say("✗ wrong: 2 ✓ 3\n  1 ✓ right", stream=stream)
    shown = stream.getvalue()
    assert re.sub("\x1b\\[\\d+m", "", shown) == "✗ wrong: 2 ✓ 3\n  1 ✓ right\n"
    assert shown.count("\x1b[") == (4 if colored else 0)


@pytest.mark.parametrize(
    ("environment", "metadata", "colored"),
    [({}, {"cellId": "a"}, True), ({}, {}, False), ({"NO_COLOR": "1"}, {"cellId": "a"}, False)],
)
def test_marks_have_colours_in_a_notebook_at_which_somebody_looks(
    monkeypatch, environment, metadata, colored
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shell = SimpleNamespace(get_parent=lambda: {"metadata": metadata})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    say("✓ right", stream=stream)
    assert stream.getvalue().count("\x1b[") == (2 if colored else 0)


def luminance(red: int, green: int, blue: int) -> float:
    """Of a colour of sRGB, as WCAG 2 has it."""
    parts = (c / 255 for c in (red, green, blue))
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("page", [(255, 255, 255), (17, 17, 17)])  # JupyterLab, light and dark
def test_marks_of_a_notebook_can_be_seen_on_light_and_dark_pages(page):
    for shade in printing.SHADES.values():
        lights = sorted((luminance(*map(int, shade.split(";")[3:])), luminance(*page)))
        assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 3, shade  # WCAG 2.1, 1.4.11


def test_a_file_has_no_colours(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = io.StringIO()
    say("✓ right", stream=stream)
    assert stream.getvalue() == "✓ right\n"
