"""The command line, `glm52`.

Exit codes: 0 done; 1 refused or failed, with one line `glm52: error: ...` on standard error; 2 usage; 130 interrupted.
Environment, clocks, random seeds and the process itself are touched here and in cli_*.py, nowhere else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from . import (
    cli_bench,
    cli_chat,
    cli_doctor,
    cli_files,
    cli_imatrix,
    cli_inspect,
    cli_judge,
    cli_oracle,
    cli_plan,
    cli_plot,
    cli_quantize,
    cli_run,
    cli_trace,
)
from .cli_terminal import complain, prepare_streams
from .errors import Error

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, cli_run.INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glm52", description="Runs GLM-5.2 models from GGUF files.")
    parser.add_argument("--version", action="version", version=f"glm52 {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    cli_run.add_parser(commands)
    cli_chat.add_parser(commands)
    cli_inspect.add_parsers(commands)
    cli_files.add_parsers(commands)
    cli_plan.add_parser(commands)
    cli_trace.add_parser(commands)
    cli_oracle.add_parser(commands)
    cli_judge.add_parsers(commands)
    cli_bench.add_parser(commands)
    cli_doctor.add_parser(commands)
    cli_imatrix.add_parser(commands)
    cli_quantize.add_parser(commands)
    cli_plot.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (None: that of the process) and returns its exit code."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as ended:  # argparse has printed usage, help or the version
        return ended.code if isinstance(ended.code, int) else USAGE
    prepare_streams()
    try:
        code = args.command(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        complain("standard output was closed")
    except Error as error:
        complain(str(error))
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        complain("out of memory")
    return FAILED


def _silence_stdout() -> None:
    """Has what is still buffered for a closed pipe go nowhere, so that the interpreter does not trip over it."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _version() -> str:
    try:
        return metadata.version("glm52-rt")
    except metadata.PackageNotFoundError:
        return "(not installed)"
