"""The strongest edges as one HTML file: zoom, drag, and read weights by pointing at them."""

from __future__ import annotations

import html
import importlib
import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PriorGraphError
from ..prior.names import show
from ..prior.output import whole
from .picture_choice import labels, select
from .picture_edges import Edges, edges_of
from .picture_layout import bend, curve, place, ports
from .subgraph_figure import COLOURS, SIGN_WORDS, line_widths, sign_of

if TYPE_CHECKING:
    import pandas as pd

    from ..prior import PriorGraph

__all__ = ["write_network_html"]

#: Size of names in pixels, and how many edges of a node are listed.
_FONT, _LISTED = 12.0, 8

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ margin: 0; font-family: sans-serif; color: #202020; }}
#picture {{ overflow: auto; }}
#picture > div {{ width: fit-content; margin: 0 auto; }}
details {{ margin: 0.5em 1em 2em; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: 0.15em 0.8em; text-align: left; border-bottom: 1px solid #ddd; }}
</style>
</head>
<body>
<div id="picture">{figure}</div>
<details>
<summary>The {count} edges as a table</summary>
<table>
<thead><tr><th>source</th><th>target</th><th>weight</th><th>sign</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</details>
</body>
</html>
"""


def write_network_html(
    data: pd.DataFrame | PriorGraph,
    path: str | os.PathLike[str],
    *,
    nodes: Any = None,
    top_k: int | None = 200,
    around: Any = None,
    hops: int = 1,
    graph: PriorGraph | None = None,
    weight: str = "weight",
    layer: Any = None,
    head: Any = None,
    group: Any = None,
    title: str = "Strongest edges",
) -> Path:
    """Write an interactive picture that needs no other file and no network.

    Pointing at an edge shows ``source → target``, its weight and its sign; pointing at a node its strongest
    edges. Clicking on a sign in the legend hides its edges. Below is the same as a table. Names are shown
    as they are, whatever signs they hold.

    Parameters
    ----------
    data, nodes, around, hops, graph, weight, layer, head, group
        As for :func:`~pyg_kpnn.explain.subgraph_figure.plot_subgraph`.
    path : path-like
        The file to write, of some 5 MB. It is there as a whole or not at all.
    top_k : int or None, default 200
        How many edges at most, those of the largest absolute weight; None for all.
    title : str, default "Strongest edges"
        Of the page.

    Returns
    -------
    pathlib.Path
        ``path``.

    Raises
    ------
    PriorGraphError
        If names, columns or edges are not there, an edge has several rows, or there is nothing to draw.
    ImportError
        If plotly is not installed.
    """
    try:
        go: Any = importlib.import_module("plotly.graph_objects")
    except ImportError as error:
        raise ImportError('The HTML view needs plotly: pip install "pyg_kpnn[plot]".') from error
    if not isinstance(title, str):
        raise PriorGraphError(f"'title' must be text. Got {show(title)} ({type(title).__name__}).")
    if not isinstance(path, (str, os.PathLike)):
        raise PriorGraphError(f"'path' must be a path. Got {show(path)} ({type(path).__name__}).")
    edges = edges_of(data, graph, {"layer": layer, "head": head, "group": group}, weight=weight)
    edges = select(edges, nodes=nodes, top_k=top_k, around=around, hops=hops)
    texts = labels(edges.names, 32)
    sizes = np.array([[_text_width(text) + 14.0, 1.2 * _FONT + 10.0] for text in texts])
    at, in_layers = place(edges, sizes, "auto" if edges.split is None else "layered")
    # a small network need not stay small
    at = at * min(1.7, max(1.0, 1100.0 / float(np.ptp(at[:, 0]) + sizes[:, 0].max())))

    figure = go.Figure(_lines(edges, ports(edges, at, sizes, in_layers), at, sizes))
    low, high = (at - sizes / 2).min(0) - 30.0, (at + sizes / 2).max(0) + 30.0
    width, height = np.ceil(np.maximum(high - low, [560.0, 240.0]))  # a pixel is a pixel: names do not touch
    middle = (low + high) / 2.0
    figure.update_layout(
        title={"text": _shown(title), "x": 0.5},
        template="none",
        font={"family": "Arial, Helvetica, sans-serif", "size": _FONT},
        width=width + 20.0,
        height=height + 90.0,
        hovermode="closest",
        dragmode="pan",
        xaxis={"visible": False, "range": [middle[0] - width / 2, middle[0] + width / 2]},
        yaxis={"visible": False, "range": [middle[1] - height / 2, middle[1] + height / 2]},
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1.0, "yanchor": "bottom"},
        margin={"l": 10, "r": 10, "t": 80, "b": 10},
        hoverlabel={"align": "left"},
        annotations=_boxes(edges, texts, at),
    )
    drawn = figure.to_html(
        full_html=False,
        include_plotlyjs=True,
        include_mathjax=False,
        div_id="network",
        config={
            "displaylogo": False,
            "modeBarButtons": [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
            # the wheel of a page that is higher than a screen has to move the page
            "scrollZoom": bool(height < 700.0),
        },
    )
    page = _PAGE.format(
        title=html.escape(title), figure=drawn, count=len(edges.source), rows="\n".join(_rows(edges))
    )
    path = Path(path)
    with whole(path) as file:
        file.write(page.encode("utf-8"))
    return path


def _shown(text: str) -> str:
    """Text that plotly shows as it is: it reads some tags and entities, wherever it writes."""
    text = " ".join(text.split())
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _weight(edges: Edges, row: int) -> str:
    return "" if edges.weight is None else f"{edges.weight[row]:.4g}"


def _hover(edges: Edges, row: int) -> str:
    source, target = edges.names[edges.source[row]], edges.names[edges.target[row]]
    lines = [f"{_shown(source)} → {_shown(target)}"]
    if edges.weight is not None:
        lines.append(f"weight {_weight(edges, row)}")
    lines.append(SIGN_WORDS[sign_of(edges, row)])
    return "<br>".join(lines)


def _lines(edges: Edges, ends: np.ndarray, at: np.ndarray, sizes: np.ndarray) -> list[dict[str, Any]]:
    """A line for each edge, its end a marker turned along it: an arrow, or a bar for inhibition."""
    widths, bends = line_widths(edges, 6.0), bend(edges, ends, at, sizes)
    signs = [sign_of(edges, row) for row in range(len(widths))]
    lines: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": [None],
            "y": [None],
            "mode": "lines",
            "line": {"color": COLOURS[sign], "width": 3.0},
            "name": words,
            "legendgroup": str(sign),
        }
        for sign, words in SIGN_WORDS.items()
        if sign in signs
    ]
    for row in reversed(range(len(signs))):  # the strongest edge lies on top
        s, t = int(edges.source[row]), int(edges.target[row])
        colour, bar, width = COLOURS[signs[row]], signs[row] < 0, float(widths[row])
        if s == t:
            points = _loop(at[s], sizes[s])
        else:
            points = curve(ends[row, 0], ends[row, 1], bends[row])
            points = _outside(points, at[[s, t]], sizes[[s, t]])
        before = [0.0] * (len(points) - 1)  # only the last point has a marker
        lines.append(
            {
                "type": "scatter",
                "x": points[:, 0].round(2).tolist(),
                "y": points[:, 1].round(2).tolist(),
                "mode": "lines+markers",
                "line": {"color": colour, "width": width, "simplify": False},
                "marker": {
                    "symbol": "line-ew" if bar else "arrow-wide",
                    "angleref": "previous",
                    "size": [*before, (6.0 if bar else 7.0) + 1.6 * width],
                    "opacity": 1.0,
                    "color": colour,
                    "line": {"color": colour, "width": [*before, max(width, 1.5) if bar else 0.0]},
                },
                "legendgroup": str(signs[row]),
                "showlegend": False,
                "hoverinfo": "text",
                "hovertext": _hover(edges, row),
            }
        )
    return lines


def _outside(points: np.ndarray, at: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The part of an edge between its two boxes."""
    hidden = (np.abs(points[:, None] - at[None]) < sizes[None] / 2.0).all(2)
    first = int(np.flatnonzero(~hidden[:, 0])[0]) if not hidden[:, 0].all() else 0
    after = np.flatnonzero(hidden[first:, 1])
    stop = first + int(after[0]) if after.size else len(points)
    return points[first:stop] if stop - first >= 2 else points


def _loop(centre: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Out of the top of the box and back to it."""
    angle = np.linspace(-0.3 * np.pi, 1.3 * np.pi, 25)[:, None]
    circle = 9.0 * np.concatenate([np.cos(angle), np.sin(angle)], 1)
    return np.asarray(centre + np.array([0.0, size[1] / 2.0 + 9.0 * np.sin(0.3 * np.pi)]) + circle)


def _boxes(edges: Edges, texts: list[str], at: np.ndarray) -> list[dict[str, Any]]:
    """A box around each name, above the edges; pointing at it lists its strongest edges."""
    boxes = []
    for node, name in enumerate(edges.names):
        rows = np.flatnonzero((edges.source == node) | (edges.target == node)).tolist()
        lines = [f"<b>{_shown(name)}</b>"]
        for row in rows[:_LISTED]:  # the strongest come first
            out = edges.source[row] == node
            other = edges.names[edges.target[row] if out else edges.source[row]]
            lines.append(f"{'→' if out else '←'} {_shown(other)} {_weight(edges, row)}".rstrip())
        if len(rows) > _LISTED:
            lines.append(f"and {len(rows) - _LISTED} more")
        boxes.append(
            {
                "x": round(float(at[node, 0]), 2),
                "y": round(float(at[node, 1]), 2),
                "text": _shown(texts[node]),
                "showarrow": False,
                "bgcolor": "#F4F4F2",
                "bordercolor": "#404040",
                "borderwidth": 0.8,
                "borderpad": 3.0,
                "hovertext": "<br>".join(lines),
                "hoverlabel": {"bgcolor": "#FFFFFF", "bordercolor": "#404040"},
            }
        )
    return boxes


def _text_width(text: str) -> float:
    """About what a browser makes of it in Arial or a font of its widths, in pixels."""
    wide = 0.0
    for sign in text:
        if unicodedata.east_asian_width(sign) in "WF":
            wide += 1.0
        elif sign in "iljtfrI.,:;'|![]() ":
            wide += 0.32
        else:
            wide += 0.9 if sign in "mwMW@%" else 0.7 if sign.isupper() else 0.56
    return _FONT * wide


def _rows(edges: Edges) -> list[str]:
    rows = []
    for row in range(len(edges.source)):
        cells = [
            edges.names[edges.source[row]],
            edges.names[edges.target[row]],
            _weight(edges, row),
            SIGN_WORDS[sign_of(edges, row)],
        ]
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return rows
