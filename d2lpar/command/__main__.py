"""`python -m d2lpar.command` is the command `d2lpar`."""

import sys

from .cli import main

sys.exit(main())
