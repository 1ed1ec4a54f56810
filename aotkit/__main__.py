"""`python -m aotkit`."""

import sys

from aotkit.cli import main

sys.exit(main())
