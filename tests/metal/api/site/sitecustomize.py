"""Answers for macOS's `sw_vers`, which PyObjC's set-up asks even to be downloaded."""

import subprocess
from typing import Any

_real = subprocess.check_output


def _check_output(command: Any, *args: Any, **options: Any) -> bytes:
    if isinstance(command, (list, tuple)) and command and command[0] == "/usr/bin/sw_vers":
        return b"26.5\n"
    return _real(command, *args, **options)


subprocess.check_output = _check_output  # type: ignore[assignment]
