"""The validation losses of a training log as a picture: plot_loss.py LOG PICTURE (.png or .svg). Needs matplotlib."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from glm52_rt.plots import Canvas, line_style

SETS = (
    ("text", "dense", "text, windows of 512, dense"),
    ("text", "sparse", "text, windows of 512, sparse"),
    ("text-long", "sparse", "text, windows of 1024, sparse"),
    ("chat-held", "sparse", "conversations, 512, sparse"),
)
_STEP = re.compile(r"\] step \d+ .* ([\d.]+) M tokens epoch")
_EVAL = re.compile(r"\] EVAL (\S+) (dense|sparse): loss ([\d.]+)")

Points = dict[tuple[str, str], list[tuple[float, float]]]


def read(lines: list[str]) -> tuple[Points, list[float]]:
    """Per set and attention (millions of tokens, loss in nats per token); where each run but the first began."""
    points: Points = {}
    begins: list[float] = []
    tokens = 0.0
    for line in lines:
        if line.startswith("== run") and tokens:
            begins.append(tokens)
        step, evaluation = _STEP.search(line), _EVAL.search(line)
        if step:
            tokens = float(step[1])
        if evaluation:
            points.setdefault((evaluation[1], evaluation[2]), []).append((tokens, float(evaluation[3])))
    return points, begins


def main(log: str, picture: str) -> None:
    points, begins = read(Path(log).read_text(encoding="utf-8").splitlines())
    with Canvas(picture, (8.2, 4)) as canvas:
        axes = canvas.axes()
        for number, (name, attention, label) in enumerate(SETS):
            axes.plot(*zip(*points[name, attention], strict=True), label=label, **line_style(number))
        for number, tokens in enumerate(begins, 2):
            axes.axvline(tokens, color="0.4", linewidth=1)
            axes.text(tokens, 1.0, f" run {number}", transform=axes.get_xaxis_transform(), va="top", fontsize=10)
        axes.set(xlabel="million tokens of training", ylabel="validation loss, nats per token")
        axes.set_ylim(bottom=0)
        axes.legend(loc="center left", bbox_to_anchor=(0.38, 0.32))


if __name__ == "__main__":
    main(*sys.argv[1:3])
