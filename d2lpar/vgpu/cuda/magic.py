"""The cell magic `%%emulate_cuda 2` of `%load_ext d2lpar`."""

from __future__ import annotations

import ast

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from . import block


def load(shell: InteractiveShell) -> None:
    """Make `%%emulate_cuda` known to the shell."""
    shell.register_magics(EmulationMagics)


@magics_class
class EmulationMagics(Magics):
    """`%%emulate_cuda [n] [--machine NAME] [--shape-only] [--quiet]`."""

    @magic_arguments()
    @argument("n", type=int, nargs="?", default=1, help="how many GPUs the cell sees")
    @argument("-m", "--machine", help="what is simulated: a name of the catalogue")
    @argument("-s", "--shape-only", action="store_true", help="compute no values")
    @argument("-q", "--quiet", action="store_true", help="do not print what is emulated")
    @cell_magic
    def emulate_cuda(self, line: str, cell: str) -> None:
        """Run the cell, written for CUDA, on virtual GPUs: see `d2lpar.emulate_cuda`."""
        __tracebackhide__ = True  # IPython leaves this function out of a cell's traceback
        asked = parse_argstring(self.emulate_cuda, line)
        with block.emulate_cuda(
            asked.n, asked.machine, shape_only=asked.shape_only, verbose=not asked.quiet
        ):
            self._run(cell)

    def _run(self, cell: str) -> None:
        """Run a cell, and show the value of its last line, if that is an expression."""
        __tracebackhide__ = True
        shell = self.shell
        assert shell is not None  # it called
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        tree = shell.transform_ast(ast.parse(source, name))
        *first, last = tree.body or [ast.Pass(lineno=1, col_offset=0)]
        shows = isinstance(last, ast.Expr) and not cell.rstrip().endswith(";")
        body = ast.Module(first if shows else tree.body, tree.type_ignores)
        exec(shell.compile(body, name, "exec"), shell.user_ns)
        if shows:  # here and not by IPython, so that a tensor's text says "cuda:1"
            value = eval(shell.compile(ast.Expression(last.value), name, "eval"), shell.user_ns)
            shell.displayhook(value)
