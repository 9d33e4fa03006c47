"""`d2lpar run` in a fresh process, of which it forks the program's."""

import sys
from types import SimpleNamespace

import warm_process

CODE = """
import multiprocessing, sys
multiprocessing.set_start_method(None, force=True)  # nobody has said it yet
sys.path[:] = {path!r}
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
    """The status of the command, what it wrote, in lines, too; `more` is run before. Modules are
    found where this process finds them."""
    code = CODE.format(words=["run", *map(str, words)], path=sys.path, more=more)
    done = warm_process.run(code, env)
    return SimpleNamespace(
        status=done.returncode, out=done.stdout, lines=done.stdout.splitlines(), err=done.stderr
    )
