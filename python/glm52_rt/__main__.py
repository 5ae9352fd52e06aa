"""python -m glm52_rt: the command line without an installed script."""

import sys

from .cli import main

sys.exit(main())
