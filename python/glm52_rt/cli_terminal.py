"""What commands write: text as it comes, a bar while a prompt is read, times behind it, one line for an error.

Text goes to standard output, everything about it to standard error. Bars and styles are for terminals alone.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, TextIO

from .engine import Stats

# C0 and C1 control characters but tab and newline: a model's text must not steer a terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BAR_CELLS = 24
_BAR_SECONDS = 0.1
_STATUS_SECONDS = 0.2


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def visible(text: str) -> str:
    """Text with control characters as the symbols that stand for them."""
    return _CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)


def one_line(text: str) -> str:
    """A message as one line, nothing in it that a terminal obeys."""
    return visible(" ".join(text.split("\n")))


def complain(text: str, kind: str = "error") -> None:
    """`glm52: error: ...` on standard error."""
    print(f"glm52: {kind}: {one_line(text)}", file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Has characters that the locale lacks written as escapes instead of failing, and a closed stream go nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


class Writer:
    """Standard output, piece by piece."""

    def __init__(self) -> None:
        self._shown = is_terminal(sys.stdout)
        self._styled = self._shown and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._in_line = False

    def write(self, text: str, dim: bool = False) -> None:
        """Writes and flushes; dim is for what is not the answer itself."""
        if not text:
            return
        self._in_line = not text.endswith("\n")
        text = visible(text) if self._shown else text
        sys.stdout.write(f"\x1b[2m{text}\x1b[22m" if dim and self._styled else text)
        sys.stdout.flush()

    def end_line(self) -> None:
        """A newline, unless a line has just ended."""
        if self._in_line:
            self.write("\n")


class StatusLine:
    """A line on standard error that is written over, on a terminal only, every so many seconds at most."""

    def __init__(self, shown: bool | None = None, seconds: float = _STATUS_SECONDS) -> None:
        self._shown = is_terminal(sys.stderr) if shown is None else shown
        self._seconds, self._started, self._next, self._drawn = seconds, time.monotonic(), 0.0, False

    def due(self, is_last: bool = False) -> float | None:
        """Seconds since the start if a new text is due, else None; the last text always is."""
        now = time.monotonic()
        if not self._shown or (now < self._next and not is_last):
            return None
        self._next = now + self._seconds
        return now - self._started

    def show(self, text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


class PrefillBar(StatusLine):
    """progress for Engine.prefill: a bar. first is the position where the prefill starts, last where it ends."""

    def __init__(self, first: int, last: int, shown: bool | None = None) -> None:
        super().__init__(shown, _BAR_SECONDS)
        self._first, self._last = first, last

    def __call__(self, position: int) -> None:
        elapsed = self.due()
        if elapsed is None:
            return
        done, total = position - self._first, max(1, self._last - self._first)
        filled = min(_BAR_CELLS, _BAR_CELLS * done // total)
        rate = f", {done / elapsed:.1f} tokens/s" if done and elapsed > 0 else ""
        bar = "#" * filled + "-" * (_BAR_CELLS - filled)
        self.show(f"prefill [{bar}] {done}/{total}{rate}")


def timings(before: Stats, after: Stats) -> dict[str, Any]:
    """What the engine measured between two stats: tokens, seconds and tokens/s (None without tokens)."""
    found: dict[str, Any] = {}
    for name, short in (("prefill", "prefill"), ("decode", "eval")):
        tokens = getattr(after, f"{short}_tokens") - getattr(before, f"{short}_tokens")
        seconds = (getattr(after, f"{short}_ns") - getattr(before, f"{short}_ns")) / 1e9
        found[f"{name}_tokens"] = tokens
        found[f"{name}_seconds"] = seconds
        found[f"{name}_tokens_per_second"] = tokens / seconds if tokens and seconds else None
    return found


def drafts_of(before: Stats, after: Stats) -> dict[str, Any] | None:
    """What multi-token prediction did between two stats; None if it was not asked to do anything."""
    if not (after.mtp_passes or after.mtp_off):
        return None
    names = ("mtp_cycles", "mtp_drafted", "mtp_accepted")
    found = {name.removeprefix("mtp_"): getattr(after, name) - getattr(before, name) for name in names}
    return {**found, "switched_off": bool(after.mtp_off)}


def drafts_line(measured: dict[str, Any] | None) -> str:
    """drafts_of() for people; "" for None."""
    if measured is None:
        return ""
    line = f", {measured['accepted']} of {measured['drafted']} drafts taken" if measured["drafted"] else ""
    return line + (", drafts switched off: they do not pay here" if measured["switched_off"] else "")


def timing_line(measured: dict[str, Any]) -> str:
    """timings() for people."""
    parts = []
    for name in ("prefill", "decode"):
        rate = measured[f"{name}_tokens_per_second"]
        if rate is not None:
            parts.append(f"{name} {measured[f'{name}_tokens']} tokens at {rate:.2f} tokens/s")
    return ", ".join(parts) or "nothing computed"
