"""Pictures of what was recorded and measured. Needs matplotlib, which nothing else does.

Colours are those of Okabe and Ito and the map cividis, both safe for colour-blind eyes; lines also differ in dash and
marker. Sizes are for a page of a README: 11 point text on a picture of some 900 pixels.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from .errors import ArgumentError, UnsupportedError
from .trace import BELADY, Point

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MAP = "cividis"
FORMATS = ("png", "svg")
DPI = 110
_STYLE = {
    "font.size": 11, "axes.titlesize": 12, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "svg.fonttype": "none",
    "svg.hashsalt": "glm52-rt",
}  # fmt: skip


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UnsupportedError("pictures need matplotlib: pip install glm52-rt[plots]") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


class Canvas:
    """A figure that is written to path when the with statement ends without an error; path's end says how, png or
    svg. size: inches."""

    def __init__(self, path: str | os.PathLike[str], size: tuple[float, float] = (8, 4.2)) -> None:
        self._path = os.fspath(path)
        self._kind = os.path.splitext(self._path)[1].lower().lstrip(".")
        if self._kind not in FORMATS:
            raise ArgumentError(f"{self._path}: a picture's name ends in .png or .svg")
        self._pyplot = _pyplot()
        self._size = size

    def __enter__(self) -> Canvas:
        self._style = self._pyplot.rc_context(_STYLE)
        self._style.__enter__()
        self.figure = self._pyplot.figure(figsize=self._size, layout="constrained")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                metadata = {"Date": None} if self._kind == "svg" else {"Software": None}
                self.figure.savefig(self._path, format=self._kind, dpi=DPI, metadata=metadata)
        finally:
            self._pyplot.close(self.figure)
            self._style.__exit__(None, None, None)

    def axes(self, rows: int = 1, columns: int = 1, **options: Any) -> Any:
        return self.figure.subplots(rows, columns, **options)


def line_style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)], "markersize": 5, "linewidth": 1.8,
    }  # fmt: skip


def draw_curves(canvas: Canvas, points: Sequence[Point], title: str = "") -> None:
    """Two panels over the size of the cache: hit rate, and bytes read per token, a line per policy."""
    rates, reads = canvas.axes(1, 2)
    unit, name = scale_bytes(max(point.bytes_per_token for point in points))
    for number, policy in enumerate(dict.fromkeys(point.policy for point in points)):
        own = [point for point in points if point.policy == policy]
        sizes = [point.fraction * 100 for point in own]
        label = "Belady's bound" if policy == BELADY else policy
        rates.plot(sizes, [point.hit_rate * 100 for point in own], label=label, **line_style(number))
        reads.plot(sizes, [point.bytes_per_token / unit for point in own], label=label, **line_style(number))
    rates.set(xlabel="expert cache, % of all experts", ylabel="experts at hand, %", ylim=(0, 101), xlim=(0, 101))
    reads.set(xlabel="expert cache, % of all experts", ylabel=f"read per token, {name}", xlim=(0, 101))
    reads.set_ylim(bottom=0)
    rates.legend(loc="lower right")
    if title:
        canvas.figure.suptitle(title)


def scale_bytes(largest: float) -> tuple[float, str]:
    """(bytes, name) of the unit that makes largest a number of few digits."""
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, name
    return 1, "bytes"


def draw_experts(canvas: Canvas, counts: dict[int, Sequence[int]], title: str = "") -> None:
    """How often each expert of each layer was chosen, over what it would be if all were chosen alike. Experts of a
    layer are sorted by it; the line under which a layer's upper half of the choices lies is drawn."""
    layers = sorted(counts)
    shares = []
    for layer in layers:
        own = np.array(sorted(counts[layer], reverse=True), np.float64)
        shares.append(own / max(own.mean(), 1e-30))
    table = np.array(shares)
    axes = canvas.axes()
    axes.grid(False)
    image = axes.imshow(table, cmap=MAP, aspect="auto", interpolation="nearest", vmin=0, vmax=max(2.0, table.max()))
    half = [int(np.searchsorted(np.cumsum(row), row.sum() / 2)) + 1 for row in table]
    steps = np.repeat(np.array(half) - 0.5, 2)
    edges = np.repeat(np.arange(len(layers) + 1) - 0.5, 2)[1:-1]
    axes.plot(steps, edges, color="white", linewidth=2.5)
    axes.plot(steps, edges, color="black", linewidth=1.2, label="left of the line: half of the choices")
    axes.set(xlabel="experts of a layer, most chosen first", ylabel="layer")
    _ticks(axes.yaxis, len(layers), [str(layer) for layer in layers])
    _ticks(axes.xaxis, table.shape[1], [str(i + 1) for i in range(table.shape[1])])
    if table.size <= 200:
        for (row, column), value in np.ndenumerate(table):
            dark = value < 0.55 * max(2.0, table.max())
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=9,
                      color="white" if dark else "black")  # fmt: skip
    canvas.figure.colorbar(image, ax=axes, label="times chosen / mean of the layer", pad=0.02)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), handlelength=1.5)
    if title:
        axes.set_title(title)


def _ticks(axis: Any, count: int, names: list[str], most: int = 20) -> None:
    step = max(1, math.ceil(count / most))
    axis.set_ticks(range(0, count, step), names[::step])


def draw_selection(
    canvas: Canvas, layers: dict[int, Sequence[Sequence[int]]], full: Sequence[int], first: int, title: str = ""
) -> None:
    """Which positions each query attends to, a panel per layer that runs an indexer; layers behind it reuse its choice.

    layers  per layer and query the selected positions; the first query stands at position first
    full    layers that select for themselves, ascending"""
    from matplotlib.colors import ListedColormap

    columns = min(2, len(full))
    lines = math.ceil(len(full) / columns)
    grid = np.atleast_1d(canvas.axes(lines, columns, sharex=True, sharey=True, squeeze=False)).ravel()
    for axes, layer in zip(grid, full, strict=False):
        rows = layers[layer]
        end = first + len(rows)
        image = np.full((len(rows), end), 2.0)
        for number, selected in enumerate(rows):
            image[number, : first + number + 1] = 1.0
            image[number, list(selected)] = 0.0
        axes.grid(False)
        axes.imshow(image, cmap=ListedColormap([COLOURS[0], "#E8E8E8", "#FFFFFF"]), aspect="auto", vmin=0, vmax=2,
                    interpolation="nearest", extent=(-0.5, end - 0.5, end - 0.5, first - 0.5))  # fmt: skip
        behind = [other for other in layers if other > layer and all(o <= layer or o > other for o in full)]
        shared = f", used again by {_span(behind)}" if behind else ""
        axes.set_title(f"layer {layer}{shared}", fontsize=11)
    for axes in grid[len(full) :]:
        axes.set_visible(False)
    for number, axes in enumerate(grid[: len(full)]):
        if number % columns == 0:
            axes.set_ylabel("query at position")
        if number + columns >= len(full):
            axes.set_xlabel("position attended to")
    heading = "blue: chosen, grey: seen but not chosen"
    canvas.figure.suptitle(f"{title}\n{heading}" if title else heading, fontsize=12)


def _span(layers: list[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"


def draw_timeline(canvas: Canvas, tokens: Sequence[dict[str, float]], title: str = "") -> None:
    """A streamed decoding, token by token: the rate of reads, and how a token's time is shared out between waiting for
    the disk and the rest. tokens: dicts with seconds, read_bytes, wait_seconds."""
    ends = np.cumsum([token["seconds"] for token in tokens])
    starts = np.concatenate(([0.0], ends[:-1]))
    middle, width = (starts + ends) / 2, ends - starts
    rate, time = canvas.axes(2, 1, sharex=True)
    speeds = np.array([token["read_bytes"] for token in tokens]) / np.maximum(width, 1e-12)
    unit, name = scale_bytes(float(speeds.max()))
    rate.step(np.concatenate((starts, ends[-1:])), np.concatenate((speeds, speeds[-1:])) / unit, where="post",
              color=COLOURS[0], linewidth=1.5)  # fmt: skip
    rate.set(ylabel=f"read, {name}/s")
    rate.set_ylim(0, max(1e-9, 1.25 * speeds.max() / unit))  # room for the legend
    mean = sum(token["read_bytes"] for token in tokens) / ends[-1]
    rate.axhline(mean / unit, color=COLOURS[1], linestyle="--", label=f"mean {mean / unit:.2f} {name}/s")
    rate.legend(loc="upper right")
    waits = np.array([token["wait_seconds"] for token in tokens]) * 1e3
    rest = np.maximum(width * 1e3 - waits, 0)
    time.bar(middle, waits, width, color=COLOURS[1], label="waiting for experts", edgecolor="white", linewidth=0.3)
    time.bar(middle, rest, width, bottom=waits, color=COLOURS[4], label="the rest", edgecolor="white", linewidth=0.3,
             hatch="//")  # fmt: skip
    time.set(xlabel="time since the first token, s", ylabel="time of a token, ms", xlim=(0, float(ends[-1])))
    time.legend(loc="upper right", ncols=2)
    time.set_ylim(0, 1.25 * float(width.max()) * 1e3)
    if title:
        canvas.figure.suptitle(title)


def legend_columns(names: Sequence[str]) -> int:
    """Columns of names that fit below the two panels of a bench."""
    return 2 if max(map(len, names)) <= 44 else 1


def draw_bench(
    canvas: Canvas, series: Sequence[tuple[str, dict[str, list[tuple[int, dict[str, float]]]]]], title: str = ""
) -> None:
    """Prefill and decode by context length: medians, and from the slowest to the fastest run. series: (name, measure ->
    [(context, median, min and max in tokens per second)])."""
    panels = canvas.axes(1, 2)
    for axes, measure in zip(panels, ("prefill", "decode"), strict=True):
        for number, (name, measures) in enumerate(series):
            points = sorted(measures[measure], key=lambda point: point[0])
            places = [context for context, _ in points]
            middle = [spread["median"] for _, spread in points]
            low = [spread["median"] - spread["min"] for _, spread in points]
            high = [spread["max"] - spread["median"] for _, spread in points]
            axes.errorbar(places, middle, (low, high), label=name, capsize=4, **line_style(number))
        lengths = sorted({context for _, measures in series for context, _ in measures[measure]})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.minorticks_off()
        axes.set(xlabel="context, tokens", ylabel="tokens per second", title=measure)
        axes.margins(x=0.1)
        axes.set_ylim(bottom=0)
    handles, names = panels[0].get_legend_handles_labels()
    canvas.figure.legend(handles, names, loc="outside lower center", ncols=legend_columns(names))  # clear of all lines
    if title:
        canvas.figure.suptitle(title)
