"""Prints all kernels as the one Metal source that metal.m compiles.

metal_text.py FOLDER      the folder of the generated headers
"""

import sys
from pathlib import Path

import msl
from emit_metal import ROOT, concatenated

if __name__ == "__main__":
    kernels = sorted((ROOT / "native/gpu/kernels").glob("*.metal"))
    sys.stdout.write(concatenated(msl.load(kernels, [Path(sys.argv[1])], ROOT)))
