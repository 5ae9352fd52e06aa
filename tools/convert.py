#!/usr/bin/env python3
"""glm52 convert, from a checkout: convert.py FOLDER -o FILE [--type bf16] ... (--help)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from glm52_rt.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
