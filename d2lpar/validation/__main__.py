"""`python -m d2lpar.validation` is `d2lpar validate`."""

import sys

from .command import main

sys.exit(main())
