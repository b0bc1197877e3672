"""A picture of some edges by name: width says how strong, colour and end say of which sign."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PriorGraphError
from ..prior.names import check_choice, show
from .picture_choice import labels, select
from .picture_edges import Edges, edges_of
from .picture_layout import LAYOUTS, bend, place, ports

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from ..prior import PriorGraph

__all__ = ["COLOURS", "SIGN_WORDS", "line_widths", "plot_subgraph"]

#: Told apart by people of every colour vision, and in grey by the ends of the edges.
COLOURS = {1: "#0072B2", -1: "#D55E00", 0: "#7A7A7A"}
SIGN_WORDS = {1: "activation", -1: "inhibition", 0: "sign unknown"}
_FONT, _MARGIN, _LEGEND_ROW = 9.0, 14.0, 15.0
_WIDEST, _PLAIN = 4.5, 1.3


def plot_subgraph(
    data: pd.DataFrame | PriorGraph,
    *,
    nodes: Any = None,
    top_k: int | None = 30,
    around: Any = None,
    hops: int = 1,
    graph: PriorGraph | None = None,
    weight: str = "weight",
    layer: Any = None,
    head: Any = None,
    group: Any = None,
    layout: str = "auto",
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the strongest edges between named nodes.

    The width of an edge is in proportion to the absolute value of its weight. Activation is blue and ends
    in an arrow, inhibition is orange and ends in a bar, an edge of unknown sign is grey. Nothing is drawn
    at random: the same edges give the same picture.

    Parameters
    ----------
    data : pandas.DataFrame or PriorGraph
        A table with the columns ``source``, ``target`` and ``weight``, and perhaps ``sign``, ``layer``,
        ``head`` and ``group``; or a graph, whose own signs and weights are drawn.
    nodes : sequence, optional
        Names of the nodes to draw, with the edges between them.
    top_k : int or None, default 30
        How many edges at most, those of the largest absolute weight; None for all.
    around : name or sequence of names, optional
        In place of ``nodes``: edges up to ``hops`` steps away, counted along or against edges.
    hops : int, default 1
        1 for the edges of ``around`` alone. The nearest are drawn first, of these the strongest.
    graph : PriorGraph, optional
        Where signs come from, in place of the table's column. It must have every edge of the table but the
        self-loops.
    weight : str, default "weight"
        The table's column of weights.
    layer, head, group : optional
        Whose rows to draw, or ``"mean"`` for the mean over all of them. Needed where the table has several
        rows for an edge: nothing is averaged unasked.
    layout : str, default "auto"
        ``"layered"`` from left to right, ``"spread"`` by distance in the graph, or ``"auto"``: in layers
        where there are no cycles.
    title : str, optional
        Above the picture.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None for a new figure just large enough, ``result.figure``.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    PriorGraphError
        If names, columns or edges are not there, an edge has several rows, or there is nothing to draw.
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> from pyg_kpnn import PriorGraph
    >>> graph = PriorGraph.from_edges([("a", "b"), ("b", "c")], sign=[1, -1])
    >>> axes = plot_subgraph(graph)  # doctest: +SKIP
    >>> axes.figure.savefig("network.png")  # doctest: +SKIP
    """
    check_choice(layout, LAYOUTS, "layout")
    check_axes(ax)
    choices = {"layer": layer, "head": head, "group": group}
    edges = edges_of(data, graph, choices, weight=weight)
    edges = select(edges, nodes=nodes, top_k=top_k, around=around, hops=hops)
    texts = labels(edges.names)
    sizes = np.array([text_size(text, _FONT) for text in texts]) + np.array([10.0, 7.0])
    at, in_layers = place(edges, sizes, "layered" if edges.split is not None and layout == "auto" else layout)
    entries = _legend_entries(edges)  # words and a line each
    longest = 36.0 + max((text_size(words, _FONT)[0] for words, _ in entries), default=0.0)

    # the canvas, in points: boxes, loops above them, legend below
    low, high = (at - sizes / 2).min(0) - _MARGIN, (at + sizes / 2).max(0) + _MARGIN
    if (edges.source == edges.target).any():
        high[1] += 14.0
    wide = 0.0 if title is None or ax is not None else text_size(title, 1.25 * _FONT)[0] + 2 * _MARGIN
    short = max(longest + 2 * _MARGIN, wide, 150.0) - (high[0] - low[0])
    if short > 0:
        low[0], high[0] = low[0] - short / 2, high[0] + short / 2
    columns = max(1, min(len(entries), int((high[0] - low[0] - 2 * _MARGIN) // longest)))
    low[1] -= _LEGEND_ROW * math.ceil(len(entries) / columns) + (6.0 if entries else 0.0)
    ax, scale = _canvas(ax, low, high, title)

    boxes = _draw_nodes(ax, texts, at, sizes, scale)
    _draw_edges(ax, edges, ports(edges, at, sizes, in_layers), (at, sizes), boxes, scale)
    if entries:
        for _, handle in entries:
            handle.set_linewidth(scale * handle.get_linewidth())
        ax.legend(
            handles=[handle for _, handle in entries],
            loc="lower center",
            ncols=columns,
            frameon=False,
            fontsize=_FONT * scale,
            borderaxespad=0.2,
            borderpad=0.2,
            handlelength=2.0,
            columnspacing=1.2,
        )
    return ax


def check_axes(ax: Any) -> None:
    """matplotlib must be there, and ``ax`` be one of its axes."""
    try:
        from matplotlib.axes import Axes
    except ImportError as error:
        raise ImportError('Pictures need matplotlib: pip install "pyg_kpnn[plot]".') from error
    if ax is not None and not isinstance(ax, Axes):
        raise PriorGraphError(f"'ax' must be matplotlib axes. Got {show(ax)} ({type(ax).__name__}).")


def text_size(text: str, size: float) -> np.ndarray:
    """Width and height of a line of text in points, without drawing it."""
    import warnings

    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sign the font lacks is drawn as a box, and measured as one
        width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)
    return np.array([width, 1.2 * size])


def line_widths(edges: Edges, widest: float = _WIDEST) -> np.ndarray:
    """In proportion to the absolute weight, but never so thin that an edge is lost."""
    if edges.weight is None or not edges.weight.size:
        return np.full(len(edges.source), _PLAIN)
    size = np.abs(edges.weight)
    top = float(size.max())
    return 0.5 + (widest - 0.5) * (size / top if top > 0 else size)


def sign_of(edges: Edges, row: int) -> int:
    return 0 if edges.sign is None else int(edges.sign[row])


def _legend_entries(edges: Edges) -> list[tuple[str, Any]]:
    from matplotlib.lines import Line2D

    out = []
    if edges.sign is not None:
        for sign, words in SIGN_WORDS.items():
            if (edges.sign == sign).any():
                out.append((words, Line2D([], [], color=COLOURS[sign], linewidth=2.0, label=words)))
    if edges.weight is not None and edges.weight.size:
        widths, size = line_widths(edges), np.abs(edges.weight)
        ends = {f"weight {edges.weight[row]:.3g}": row for row in (int(size.argmin()), int(size.argmax()))}
        for words, row in ends.items():  # one entry where both read the same
            out.append((words, Line2D([], [], color="#404040", linewidth=widths[row], label=words)))
    return out


def _canvas(ax: Any, low: np.ndarray, high: np.ndarray, title: str | None) -> tuple[Any, float]:
    """Axes with the limits ``low`` to ``high``, and how many points on paper are one point of these."""
    from matplotlib.figure import Figure

    extent = high - low
    if ax is None:
        above = 0.0 if title is None else 2.2 * _FONT
        # a page without end helps nobody: from here on everything shrinks
        scale = min(1.0, 60.0 * 72.0 / float(extent.max() + above))
        figure = Figure(figsize=scale * (extent + np.array([0.0, above])) / 72.0)
        ax = figure.add_axes((0.0, 0.0, 1.0, float(extent[1] / (extent[1] + above))))
    else:
        inches = ax.get_window_extent().size / ax.figure.dpi
        scale = float((72.0 * inches / extent).min())
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_aspect("equal")
    ax.set_axis_off()
    if title is not None:
        ax.set_title(title, fontsize=1.25 * _FONT * min(scale, 1.0), pad=3.0, parse_math=False)
    return ax, scale


def _draw_nodes(ax: Any, texts: list[str], at: np.ndarray, sizes: np.ndarray, scale: float) -> list[Any]:
    from matplotlib.patches import FancyBboxPatch

    boxes = []
    for text, (x, y), (width, height) in zip(texts, at, sizes, strict=True):
        box = FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=4",
            facecolor="#F4F4F2",
            edgecolor="#404040",
            linewidth=0.7 * scale,
            zorder=3,
        )
        boxes.append(ax.add_patch(box))
        ax.text(
            x, y, text, ha="center", va="center_baseline", fontsize=_FONT * scale, parse_math=False, zorder=4
        )
    return boxes


def _draw_edges(
    ax: Any,
    edges: Edges,
    ends: np.ndarray,
    where: tuple[np.ndarray, np.ndarray],
    boxes: list[Any],
    scale: float,
) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    at, sizes = where
    widths, bends = scale * line_widths(edges), bend(edges, ends, at, sizes)
    for row in reversed(range(len(edges.source))):  # the strongest edge lies on top
        s, t = int(edges.source[row]), int(edges.target[row])
        sign = sign_of(edges, row)
        bar = sign < 0
        look: dict[str, Any] = {
            "arrowstyle": "-[,widthB=0.45,lengthB=0" if bar else "-|>,head_length=0.5,head_width=0.25",
            "mutation_scale": 7.0 * scale + (2.0 if bar else 1.6) * widths[row],
            "color": COLOURS[sign],
            "linewidth": widths[row],
            "joinstyle": "miter",
            "capstyle": "butt",
            "zorder": 2,
        }
        if s == t:
            look["path"] = Path(*_loop(at[s], sizes[s]))
        else:
            # cut where it leaves the one box and meets the other; a bar is as thick as its line
            look |= {
                "posA": tuple(ends[row, 0]),
                "posB": tuple(ends[row, 1]),
                "connectionstyle": f"arc3,rad={bends[row]}",
                "patchA": boxes[s],
                "patchB": boxes[t],
                "shrinkA": 0.0,
                "shrinkB": 1.5 * scale + (widths[row] / 2.0 if bar else 0.0),
            }
        ax.add_patch(FancyArrowPatch(**look))


def _loop(centre: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Out of the top of the box, round, and back to it: vertices and codes of a cubic curve."""
    reach = min(size[0] / 4.0, 9.0)
    top = centre[1] + size[1] / 2.0
    right, left = centre[0] + reach, centre[0] - reach
    curve = [[right, top], [right + 10.0, top + 20.0], [left - 10.0, top + 20.0], [left, top]]
    return np.array(curve), [1, 4, 4, 4]  # MOVETO, then CURVE4
