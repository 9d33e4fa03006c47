"""`d2lpar run` in a fresh process, of which it forks the program's."""

from types import SimpleNamespace

import warm_process

CODE = """
import sys
from d2lpar.command import cli
from d2lpar.vgpu.programs import progress
progress.FIRST_S = 600  # on a slow machine it speaks on stderr, too
{more}
try:
    status = cli.main({words!r})
except SystemExit as end:  # argparse's way to end
    status = end.code
sys.stdout.flush(), sys.stderr.flush()
sys.exit(status)
"""


def run(*words: object, more: str = "", env: dict[str, str] | None = None) -> SimpleNamespace:
    """The status of the command, what it wrote, in lines, too; `more` is run before."""
    code = CODE.format(words=["run", *map(str, words)], more=more)
    done = warm_process.run(code, env)
    return SimpleNamespace(
        status=done.returncode, out=done.stdout, lines=done.stdout.splitlines(), err=done.stderr
    )
