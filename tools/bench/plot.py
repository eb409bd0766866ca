# SPDX-License-Identifier: MIT
"""The plot: speed-up over the baseline by size, a column for each world size and a row for each case.

No background and mid-tone colours, so that it reads on a light page and on a dark one.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from .contenders import ACCELERATE, BASELINE, KNOWN, RAW, TORCHMETRICS, UNKNOWN
from .grid import CASES, MODES, Mode, Point, bytes_in_words
from .results import Results

_TEXT, _GRID = "#7d8590", "#7d859040"
_STYLES: dict[str, dict[str, Any]] = {
    KNOWN: {"color": "#e8590c", "linewidth": 2.6, "marker": "o", "zorder": 5},
    UNKNOWN: {"color": "#f08c4a", "linewidth": 1.8, "marker": "o", "linestyle": (0, (4, 2)), "zorder": 4},
    TORCHMETRICS: {"color": "#2f9e8f", "linewidth": 1.5, "marker": "s"},
    ACCELERATE: {"color": "#4c7fd9", "linewidth": 1.5, "marker": "^"},
    RAW: {"color": "#868e96", "linewidth": 1.2, "linestyle": (0, (1, 1.5))},
}


# the same data give the same file: no date, and ids that do not change from run to run
_LOOK: dict[Any, Any] = {
    **{"svg.fonttype": "none", "svg.hashsalt": "bench", "savefig.transparent": True, "font.size": 9},
    **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor"], _TEXT),
    **dict.fromkeys(["axes.edgecolor", "grid.color"], _GRID),
    **dict.fromkeys(["xtick.major.size", "ytick.major.size"], 0),
    **{"axes.grid": True, "legend.frameon": False, "figure.constrained_layout.use": True, "lines.markersize": 4},
}


def draw(results: Results, mode: Mode, path: Path) -> Path:
    """Write an SVG."""
    points = results.points(mode)
    worlds = sorted({point.world for point in points})
    cases = [case for case in CASES if any(point.case == case for point in points)]
    with pyplot.rc_context(_LOOK):
        size = (3.2 * len(worlds) + 0.6, 2.05 * len(cases) + 1.1)
        figure, grid = pyplot.subplots(len(cases), len(worlds), figsize=size, sharex=True, sharey=True, squeeze=False)
        for row, case in enumerate(cases):
            grid[row][0].set_ylabel(case)
            for column, world in enumerate(worlds):
                grid[0][column].set_title(f"{world} ranks", fontsize=10)
                here = [point for point in points if (point.world, point.case) == (world, case)]
                _panel(grid[row][column], results, mode, here)
        handles = {line.get_label(): line for axes in grid.flat for line in axes.get_lines()}
        lines = [handles[name] for name in _STYLES if name in handles]
        figure.legend(handles=lines, loc="outside lower center", ncols=5)
        figure.suptitle(f"{MODES[mode]}: times faster than {BASELINE} (by mean bytes a rank)")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
    return path


def _panel(axes: Any, results: Results, mode: Mode, points: list[Point]) -> None:
    sizes = sorted({point.mean_bytes for point in points})
    for name, style in _STYLES.items():
        ratios = {s: results.speed_up([p for p in points if p.mean_bytes == s], mode, name) for s in sizes}
        there = {size: ratio for size, ratio in ratios.items() if ratio is not None}
        if there:
            axes.plot(there.keys(), there.values(), label=name, **style)
    noise = [results.noise(mode, size) for size in sizes]
    axes.fill_between(sizes, [1 / n for n in noise], noise, color=_TEXT, alpha=0.18, linewidth=0)
    axes.axhline(1, color=_TEXT, linewidth=0.8)
    axes.loglog(base=2)
    axes.minorticks_off()
    axes.set_xticks(sizes, [bytes_in_words(size) for size in sizes], fontsize=8)
    axes.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}×")
