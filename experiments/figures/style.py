"""One look for all figures: they are read at half their size, and the legend is off the data."""

import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PAPER = {'color': '#b71c1c', 'marker': '*', 'markersize': 15, 'linestyle': 'none', 'zorder': 5}
TRUTH = {'color': '0.25', 'linestyle': '--', 'linewidth': 1.5}
EXPECTED = {'color': '0.45', 'linestyle': ':', 'linewidth': 2.0}
OURS, PAPERS_SCORE, CHOSEN = '#1b5e20', '#0d47a1', '#e65100'  # what is drawn in several figures
COLORS = (PAPERS_SCORE, OURS, CHOSEN, '#6a1b9a', '#00838f', '#827717', '#ad1457', '#4e342e', '0.4')

_LOOK = {
    'font.size': 13,
    'axes.labelsize': 14,
    'axes.titlesize': 14,
    'axes.titlelocation': 'left',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'grid.color': '0.9',
    'axes.axisbelow': True,
    'legend.frameon': False,
    'legend.fontsize': 12,
    'lines.linewidth': 2.2,
    'lines.markersize': 7,
}


def figure(
    title: str, xlabel: str, ylabel: str, *, size: tuple[float, float] = (8.4, 5.6), **settings: Any
) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes."""
    drawn, (axes,) = panels(title, [(xlabel, ylabel)], size=size)
    axes.set(**settings)
    return drawn, axes


def panels(
    title: str, labels: Sequence[tuple[str, str]], *, size: tuple[float, float] = (11.5, 5.4)
) -> tuple[Figure, list[Axes]]:
    """An empty figure with axes side by side."""
    with matplotlib.rc_context(_LOOK):
        drawn = Figure(figsize=size, layout='constrained')
        found = list(drawn.subplots(1, len(labels), squeeze=False)[0])
        drawn.suptitle(title, x=0.01, ha='left', fontsize=_LOOK['axes.titlesize'])
        for axes, (xlabel, ylabel) in zip(found, labels, strict=True):
            axes.set(xlabel=xlabel, ylabel=ylabel)
    return drawn, found


def band(axes: Axes, x: Sequence[float], values: Sequence[Sequence[float]], **options: Any) -> None:
    """The mean of several seeds, and a band from the least of them to the most."""
    means = [np.mean(one) for one in values]
    axes.plot(x, means, **{'marker': 'o'} | options)
    least, most = ([edge(one) for one in values] for edge in (np.min, np.max))
    axes.fill_between(x, least, most, color=options['color'], alpha=0.15, linewidth=0)


def ticks(axes: Axes, values: Iterable[float]) -> None:
    """Exactly these on the horizontal axis, as they are said."""
    values = list(values)
    axes.set_xticks(values, [f'{value:,g}' for value in values])
    axes.minorticks_off()


def save(drawn: Figure, path: pathlib.Path, columns: int = 2) -> None:
    """With the legend below the axes."""
    with matplotlib.rc_context(_LOOK):
        if any(axes.get_legend_handles_labels()[1] for axes in drawn.axes):
            handles: dict[str, Any] = {}
            for axes in drawn.axes:
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                    handles.setdefault(label, handle)
            drawn.legend(handles.values(), handles.keys(), loc='outside lower left', ncols=columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, dpi=100)
