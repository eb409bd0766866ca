# SPDX-License-Identifier: MIT
"""The plots, with every interval drawn. No background, mid-tone colours: they read on a light page and a dark one."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from .contenders import ACCELERATE, ALL_REDUCE, FUNCTIONAL, KNOWN, NULL, OURS, PAD, RAW, TORCHMETRICS
from .estimate import Estimate, geometric_mean
from .grid import DIRECTIONS, FORMS, KIB, LARGEST, Direction, Point, bytes_in_words
from .results import Results

_TEXT, _GRID = "#7d8590", "#7d859040"
_STYLES: dict[str, dict[str, Any]] = {
    PAD: {"color": "#e8590c", "marker": "o", "linewidth": 2.2},
    FUNCTIONAL: {"color": "#b36ae2", "marker": "D"},
    TORCHMETRICS: {"color": "#2f9e8f", "marker": "s"},
    ACCELERATE: {"color": "#4c7fd9", "marker": "^"},
    ALL_REDUCE: {"color": "#b36ae2", "marker": "D"},
    RAW + KNOWN: {"color": "#868e96", "marker": ".", "linestyle": (0, (1, 1.5))},
    NULL: {"color": "#868e96", "marker": "", "linestyle": (0, (4, 2))},
    OURS: {"color": "#2b8a3e", "marker": "o", "linewidth": 2.2},
    OURS + KNOWN: {"color": "#2b8a3e", "marker": "o", "linestyle": (0, (4, 2))},
}
# the same data give the same file: no date, and ids that do not change from run to run
_LOOK: dict[Any, Any] = {
    **{"svg.fonttype": "none", "svg.hashsalt": "bench", "savefig.transparent": True, "font.size": 9},
    **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor"], _TEXT),
    **dict.fromkeys(["axes.edgecolor", "grid.color"], _GRID),
    **dict.fromkeys(["xtick.major.size", "ytick.major.size"], 0),
    **{"axes.grid": True, "legend.frameon": False, "figure.constrained_layout.use": True, "lines.markersize": 4},
}


@contextmanager
def _figure(path: Path, title: str, rows: int, columns: int) -> Iterator[Any]:
    """A grid of axes; written to `path`, with a legend, in the end."""
    with pyplot.rc_context(_LOOK):
        size = (3.2 * columns + 0.6, 2.05 * rows + 1.1)
        figure, grid = pyplot.subplots(rows, columns, figsize=size, sharex=True, sharey="row", squeeze=False)
        yield grid
        legend = {
            name: drawn for axes in grid.flat for drawn, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=columns + 1)
        figure.suptitle(title)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def _panel(axes: Any, lines: dict[str, dict[int, Estimate]], ticks: dict[int, str], unit: str) -> None:
    for name, found in lines.items():
        if found:
            errors = [
                [one.centre - one.low for one in found.values()],
                [one.high - one.centre for one in found.values()],
            ]
            centres = [one.centre for one in found.values()]
            axes.errorbar(found.keys(), centres, errors, label=name, elinewidth=1, capsize=2, **_STYLES[name])
    axes.loglog(base=2)
    axes.minorticks_off()
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{unit}")


def draw_ratios(results: Results, direction: Direction, path: Path) -> None:
    """How many times as long as the core each contender takes, by size: a column a world size, a row a form."""
    here = [p for p in results.timings if p.direction == direction and p.world in LARGEST]
    worlds, ticks = sorted({p.world for p in here}), {p.mean_bytes: bytes_in_words(p.mean_bytes) for p in here}
    title = f"{DIRECTIONS[direction]}: times as long as the core, by bytes a rank (bars: 95 % intervals)"
    with _figure(path, title, len(FORMS), max(1, len(worlds))) as grid:
        for (row, form), (column, world) in product(enumerate(FORMS), enumerate(worlds)):
            points = [p for p in here if (p.form, p.world) == (form, world)]
            lines = {name: _means(results.times(name, points)) for name in _STYLES if name != OURS + KNOWN}
            _panel(grid[row][column], lines, ticks, "×")
            grid[row][column].axhline(1, color=_TEXT, linewidth=0.8)
            grid[row][0].set_ylabel(form)
            grid[0][column].set_title(f"{world} ranks", fontsize=10)


def _means(found: dict[Point, Estimate]) -> dict[int, Estimate]:
    """By size, over dims."""
    sizes = sorted({point.mean_bytes for point in found})
    return {size: geometric_mean([found[p] for p in found if p.mean_bytes == size]) for size in sizes}


def draw_growth(results: Results, path: Path) -> None:
    """Milliseconds by world size: a column for each direction, a row for each of two sizes."""
    directions: tuple[Direction, ...] = ("forward", "both")
    sizes, names = (4 * KIB, 256 * KIB), (OURS, OURS + KNOWN, PAD, FUNCTIONAL, RAW + KNOWN)
    with _figure(path, "ragged rows, dim 0: milliseconds by number of ranks", len(sizes), len(directions)) as grid:
        for (row, size), (column, direction) in product(enumerate(sizes), enumerate(directions)):
            here = {p.world: at for p, at in results.timings.items() if p[1:] == ("ragged", size, 0, direction)}
            lines = {name: {world: at[name].ms for world, at in here.items() if name in at} for name in names}
            _panel(grid[row][column], lines, {p.world: str(p.world) for p in results.timings}, " ms")
            grid[row][0].set_ylabel(f"{bytes_in_words(size)} a rank")
            grid[0][column].set_title(DIRECTIONS[direction], fontsize=10)
