"""`python -m d2lpar` is the command `d2lpar`."""

from .command.cli import entry

entry()
