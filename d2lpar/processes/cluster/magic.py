"""The cell magic `%%px`: a cell that every rank runs."""

from __future__ import annotations

from collections.abc import Callable

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from . import messages
from .failures import RanksEndedError
from .started import current


@magics_class
class RankMagics(Magics):
    """`%%px [--rank 0[,1…]] [--live NAME]`, and `%px STATEMENT` for all ranks."""

    @no_var_expand
    @magic_arguments()
    @argument("-r", "--rank", default="", help="the ranks that run it, such as 0 or 0,1")
    @argument("-l", "--live", help="a callable(rank, values) that gets what par.report sends")
    @line_cell_magic
    def px(self, line: str, cell: str | None = None) -> None:
        """Run the cell on every rank of `par.cluster(n)`; what they print appears by rank.

        Raises RanksEndedError if no ranks were started.
        """
        ranks = current()
        if ranks is None:
            raise RanksEndedError(messages.NOT_STARTED)
        if cell is None:
            ranks.run_cell(line)
            return
        asked = parse_argstring(self.px, line)
        if not cell.lstrip().startswith("%%"):
            cell = f"# %%px\n{cell}"  # so that the lines of a traceback are counted as they stand
        ranks.run_cell(
            cell,
            ranks=_numbers(asked.rank, ranks.n),
            on_report=self._callable(asked.live) if asked.live else None,
        )

    def _callable(self, name: str) -> Callable:
        assert self.shell is not None  # magics are registered with one
        names = self.shell.user_ns
        found = names.get(name)
        if callable(found):
            return found
        what = "not defined" if name not in names else f"a {type(found).__name__}"
        raise ValueError(messages.ERROR_LIVE.format(name=name, what=what))


def _numbers(text: str, n: int) -> list[int] | None:
    """The ranks of "0" or "0,1"; None, for all, of no text."""
    if not text:
        return None
    words = text.split(",")
    if all(word.isdigit() and int(word) < n for word in words):
        return sorted({int(word) for word in words})
    raise ValueError(messages.ERROR_RANK.format(last=n - 1, text=text))
