"""The cell magic `%%emulate_cuda 2`, which a notebook has once it has imported d2lpar."""

from __future__ import annotations

import ast
import inspect
import sys
from contextlib import AbstractContextManager
from types import CodeType

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

_CALL = "get_ipython().run_cell_magic('emulate_cuda',"  # what IPython makes of such a cell


def know(shell: InteractiveShell) -> None:
    """Make `%%emulate_cuda` known to the shell, once."""
    if EmulationMagics.__name__ not in shell.magics_manager.registry:
        magics = EmulationMagics(shell)
        shell.register_magics(magics)
        shell.input_transformers_post.append(magics.await_cell)


@magics_class
class EmulationMagics(Magics):
    """`%%emulate_cuda [n] [--machine NAME] [--shapes-only] [--quiet]`."""

    @magic_arguments()
    @argument("n", type=int, nargs="?", default=1, help="how many GPUs the cell sees")
    @argument("-m", "--machine", help="what is simulated: a name of the catalogue")
    @argument(
        *("-s", "--shapes-only", "--shape-only"),
        dest="shape_only",
        action="store_true",
        help="compute no values",
    )
    @argument("-q", "--quiet", action="store_true", help="do not print what is emulated")
    @cell_magic
    def emulate_cuda(self, line: str, cell: str) -> object:
        """Run the cell, written for CUDA, on virtual GPUs: see `d2lpar.emulate_cuda`.

        The cell may await, and use other magics, of which `%timeit` and the wall time of `%time`
        are simulated. For a cell that awaits this is a coroutine.
        """
        __tracebackhide__ = True  # IPython leaves this function out of a cell's traceback
        from ..vgpu import emulate_cuda  # all of the engine: importing d2lpar is cheap

        asked = parse_argstring(self.emulate_cuda, line)
        codes, shows = self._compiled(cell)
        block = emulate_cuda(
            asked.n, asked.machine, shape_only=asked.shape_only, verbose=not asked.quiet
        )
        if any(_awaits(code) for code in codes):
            return self._run_awaiting(block, codes, shows)
        with block:
            for code in codes:
                value = eval(code, self._shell.user_ns)
            if shows:  # here and not by IPython, so that a tensor's text says "cuda:1"
                sys.displayhook(value)
        return None

    def await_cell(self, lines: list[str]) -> list[str]:
        """Let IPython await a cell that awaits: so it runs in the notebook's own event loop."""
        if lines and lines[0].startswith(_CALL):
            _, cell = ast.literal_eval("(" + "".join(lines).removeprefix(_CALL))
            if self._shell.should_run_async(
                cell, transformed_cell=self._shell.transform_cell(cell)
            ):
                return ["await " + lines[0], *lines[1:]]
        return lines

    @property
    def _shell(self) -> InteractiveShell:
        assert self.shell is not None  # it called
        return self.shell

    def _compiled(self, cell: str) -> tuple[list[CodeType], bool]:
        """A cell's statements and its last expression, and whether to show that one's value."""
        shell = self._shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        tree = shell.transform_ast(ast.parse(source, name))
        *first, last = tree.body or [ast.Pass(lineno=1, col_offset=0)]
        shows = isinstance(last, ast.Expr) and not cell.rstrip().endswith(";")
        with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0):
            codes = [shell.compile(ast.Module(first, tree.type_ignores), name, "exec")]
            if isinstance(last, ast.Expr):
                codes.append(shell.compile(ast.Expression(last.value), name, "eval"))
            else:
                codes.append(shell.compile(ast.Module([last], []), name, "exec"))
        return codes, shows

    async def _run_awaiting(
        self, block: AbstractContextManager, codes: list[CodeType], shows: bool
    ) -> None:
        __tracebackhide__ = True
        with block:
            for code in codes:
                value = eval(code, self._shell.user_ns)
                if _awaits(code):
                    value = await value
            if shows:
                sys.displayhook(value)


def _awaits(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_COROUTINE)
