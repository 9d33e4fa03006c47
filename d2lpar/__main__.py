"""`python -m d2lpar` is the command `d2lpar`."""

import sys

from .command.cli import main

sys.exit(main())
