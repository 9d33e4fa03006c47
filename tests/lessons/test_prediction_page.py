"""The pages on predicting one's own program, or a model: their code prints what stands there."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import running

from d2lpar.command import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "run-your-own-program.md": 6,
    "does-it-fit.md": 4,
}  # and how many of their outputs stand there
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
REAL_TIME = re.compile(r"in [\d.]+ s of this machine's time")  # the one figure that is measured


def blocks(text: str) -> list[tuple[str, str]]:
    return BLOCK.findall(text)


def printed_by(kind: str, code: str, names: dict[str, object]) -> str:
    """What a block prints; a block that begins with a file's name is saved as that, and run by the
    shell's line that follows."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if kind == "sh":
            command, name, *words = shlex.split(code)
            assert (command, name) in {("d2lpar", "run"), ("d2lpar", "plan")}
            if name == "plan":
                assert cli.main([name, *words]) == 0
                return out.getvalue().strip()
            ran = running.run(*words)
            assert ran.status == 0, ran.err
            print(ran.out, end="")
        elif name := FILE.match(code):
            Path(name[1]).write_text(code, encoding="utf-8")
        else:
            exec(compile(code, "a page", "exec"), names)
    return REAL_TIME.sub("in … s of this machine's time", out.getvalue().strip())


def runs(text: str) -> list[tuple[str, str]]:
    """What each block of the page that prints has printed, and what stands there."""
    names: dict[str, object] = {}
    found, printed = [], ""
    for kind, code in blocks(text):
        if kind == "text":
            found.append((printed, code.strip()))
        else:
            printed = printed_by(kind, code, names)
    return found


@pytest.mark.parametrize(("page", "outputs"), PAGES.items())
def test_each_example_prints_what_the_page_says(tmp_path, monkeypatch, page, outputs):
    monkeypatch.chdir(tmp_path)
    found = runs((DOCS / page).read_text(encoding="utf-8"))
    assert len(found) == outputs
    for printed, expected in found:
        assert printed == expected


@pytest.mark.parametrize(("shown", "same"), [("4\n", True), ("5\n", False)])
def test_a_wrong_figure_on_the_page_would_be_seen(shown, same):
    [(printed, expected)] = runs(f"```python\nprint(2 + 2)\n```\n\n```text\n{shown}```\n")
    assert (printed == expected) == same
