"""Edge weights side by side as a heat map, and how training went as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PriorGraphError
from ..nn.checks import flag, positive_int
from ..prior.names import check_choice, is_frame, listing, show
from .picture_choice import labels
from .picture_edges import edges_of
from .subgraph_figure import check_axes, plot_subgraph, text_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["plot_edge_heatmap", "plot_subgraph", "plot_training"]

#: Losses in the first two, other values after them; apart for every colour vision.
_CURVES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_LOW_IS_GOOD = ("loss", "error", "mse", "mae", "rmse", "perplexity", "nll")


def plot_edge_heatmap(
    frame: pd.DataFrame,
    *,
    by: str = "group",
    top_k: int | None = 40,
    sort: str = "spread",
    weight: str = "weight",
    layer: Any = None,
    head: Any = None,
    group: Any = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One row an edge, ``source → target``, one column a group, head or layer, colour for the weight.

    Parameters
    ----------
    frame : pandas.DataFrame
        A table with the columns ``source``, ``target``, ``weight`` and the one of ``by``.
    by : {"group", "head", "layer"}
        What the columns are.
    top_k : int or None, default 40
        How many edges at most; None for all.
    sort : {"spread", "weight"}
        Which edges come first: those whose largest and smallest weight are furthest apart, or those of the
        largest mean absolute weight.
    weight : str, default "weight"
        The table's column of weights.
    layer, head, group : optional
        Whose rows to draw, or ``"mean"`` for the mean over all of them. Needed where the table has several
        rows for an edge and column: nothing is averaged unasked.
    title : str, optional
        Above the map.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None for a new figure. The colour bar stands beside it.

    Returns
    -------
    matplotlib.axes.Axes
        A cell without a row in the table stays grey.

    Raises
    ------
    PriorGraphError
        If columns or rows are not there, an edge has several rows, or there is nothing to draw.
    ImportError
        If matplotlib is not installed.
    """
    check_choice(by, ("group", "head", "layer"), "by")
    check_choice(sort, ("spread", "weight"), "sort")
    check_axes(ax)
    choices = {"layer": layer, "head": head, "group": group}
    if choices[by] is not None:
        raise PriorGraphError(f"{by!r} makes the columns. Got {by}={show(choices[by])} too. Leave one out.")
    edges = edges_of(frame, None, choices, weight=weight, by=by)
    if not len(edges.source):
        raise PriorGraphError("There must be an edge to draw. Got a table without rows.")
    assert edges.weight is not None
    assert edges.key is not None
    ends, row = np.unique(np.stack([edges.source, edges.target]), axis=1, return_inverse=True)
    values = np.full((ends.shape[1], len(edges.key_names)), np.nan)
    values[row.reshape(-1), edges.key] = edges.weight
    mean = np.nanmean(np.abs(values), axis=1)
    spread = np.nanmax(values, axis=1) - np.nanmin(values, axis=1)
    first, second = (spread, mean) if sort == "spread" else (mean, spread)
    order = np.lexsort((ends[1], ends[0], -second, -first))
    order = order if top_k is None else order[: positive_int("top_k", top_k)]
    # shortened among those shown: two names that would look the same stay in full
    used = sorted(set(ends[:, order].reshape(-1).tolist()))
    short = dict(zip(used, labels([edges.names[i] for i in used], 20), strict=True))
    rows = [f"{short[s]} → {short[t]}" for s, t in ends[:, order].T.tolist()]
    columns = labels([str(name) for name in edges.key_names], 20)
    return _draw_map(ax, values[order], rows, columns, (by, weight, title))


def _draw_map(
    ax: Any, values: np.ndarray, rows: list[str], columns: list[str], words: tuple[str, str, str | None]
) -> Any:
    from matplotlib.figure import Figure

    by, weight, title = words
    if ax is None:
        left = max(text_size(text, 8.0)[0] for text in rows) / 72.0
        wide = max(0.36 * len(columns), 1.2) + left + 1.5
        figure = Figure(figsize=(wide, max(0.2 * len(rows), 0.8) + 1.2), layout="constrained")
        ax = figure.subplots()
    limit = float(np.nanmax(np.abs(values)))
    signed = bool((values < 0).any())
    ax.set_facecolor("#D9D9D9")  # shows where there is no value
    low = -limit if signed else min(0.0, float(np.nanmin(values)))
    image = ax.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        cmap="RdBu_r" if signed else "cividis",
        vmin=low,
        vmax=limit if limit > 0 else 1.0,
    )
    ax.set_yticks(range(len(rows)), rows, fontsize=8.0, parse_math=False)
    narrow = max(text_size(text, 8.0)[0] for text in columns) < 20.0
    ax.set_xticks(
        range(len(columns)),
        columns,
        fontsize=8.0,
        parse_math=False,
        rotation=0 if narrow else 45,
        ha="center" if narrow else "right",
        rotation_mode="anchor" if not narrow else "default",
    )
    ax.set_xlabel(by)
    bar = ax.figure.colorbar(image, ax=ax)
    bar.ax.set_title(weight, fontsize=8.0, parse_math=False)
    bar.ax.tick_params(labelsize=8.0)
    if title is not None:
        ax.set_title(title, fontsize=10.0, parse_math=False)
    return ax


def plot_training(
    history: Mapping[str, Any] | pd.DataFrame,
    *,
    log: bool = False,
    best: str | None = None,
    mode: str | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Curves of training: losses on the left axis, everything else on the right, the best epoch marked.

    Parameters
    ----------
    history : mapping of sequences, or pandas.DataFrame
        One column a curve, ``train_loss``, ``val_loss`` and others; ``epoch`` counts from 1 where it is not
        given. A value that is missing or NaN is left out, so a log with a row for each phase will do.
    log : bool, default False
        Losses on a logarithmic axis; they must be positive.
    best : str, optional
        The curve whose best epoch is marked: ``val_loss`` if there, else the first of ``history``.
    mode : {"min", "max"}, optional
        Which value is the best; by default the smallest of a loss or an error, the largest of all else.
    title : str, optional
        Above the curves.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None for a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The left axis.

    Raises
    ------
    PriorGraphError
        If a column is no row of numbers, columns differ in length, or none has a value.
    ImportError
        If matplotlib is not installed.
    """
    flag("log", log)
    check_choice(mode, (None, "min", "max"), "mode")
    check_axes(ax)
    epochs, curves = _curves(history)
    if best is not None and best not in curves:
        raise PriorGraphError(
            f"'best' must name a curve. Got {show(best)}. "
            f"Curves are {listing(map(show, curves), len(curves))}."
        )
    if best is None:
        best = "val_loss" if "val_loss" in curves else next(iter(curves))
    losses = [name for name in curves if _is_loss(name)]
    for name in losses if log else ():
        if (curves[name] <= 0).any():
            raise PriorGraphError(
                f"A logarithmic axis wants positive losses. Got {np.nanmin(curves[name])} in {name!r}."
            )

    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if ax is None:
        ax = Figure(figsize=(5.6, 3.4), layout="constrained").subplots()
    others = [name for name in curves if name not in losses]
    right = ax.twinx() if losses and others else ax
    lines = []
    for number, name in enumerate([*losses, *others]):
        there = np.isfinite(curves[name])
        axis = ax if name in losses else right
        (line,) = axis.plot(
            epochs[there],
            curves[name][there],
            color=_CURVES[number % len(_CURVES)],
            linestyle="-" if name in losses else "--",
            linewidth=1.6,
            marker="." if there.sum() < 3 else None,
            label=name,
        )
        lines.append(line)
        if name == best:
            small = mode == "min" or (mode is None and _is_loss(name))
            at = int(np.nanargmin(curves[name]) if small else np.nanargmax(curves[name]))
            axis.plot(epochs[at], curves[name][at], "o", color=line.get_color(), markersize=6.0, zorder=4)
            mark = ax.axvline(
                epochs[at], color="#7A7A7A", linestyle=":", linewidth=1.0, label=f"best epoch {epochs[at]:g}"
            )
    lines.append(mark)
    if log and losses:
        ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("epoch")
    ax.set_ylabel("loss" if losses else ", ".join(others))
    if right is not ax:
        right.set_ylabel(", ".join(others))
    # beside the axes, where no curve runs
    ax.legend(
        handles=lines,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=min(3, len(lines)),
        frameon=False,
        fontsize=8.0,
    )
    if title is not None:
        pad = 8.0 + 14.0 * math.ceil(len(lines) / 3)
        ax.set_title(title, fontsize=10.0, pad=pad, parse_math=False)
    return ax


def _is_loss(name: str) -> bool:
    return any(word in name.lower() for word in _LOW_IS_GOOD)


def _curves(history: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Epochs, and every column that has a value."""
    if not is_frame(history) and not isinstance(history, Mapping):
        raise PriorGraphError(
            f"'history' must be a mapping from name to values or a DataFrame. Got {type(history).__name__}."
        )
    columns: dict[str, np.ndarray] = {}
    for name in history:
        try:
            values = np.asarray(
                [math.nan if value is None else float(value) for value in history[name]], dtype=np.float64
            )
        except (TypeError, ValueError):
            raise PriorGraphError(
                f"'history' must hold numbers. Got something else in {show(name)}."
            ) from None
        if not isinstance(name, str):
            raise PriorGraphError(f"'history' must name its columns by text. Got {show(name)}.")
        columns[name] = values
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        shown = (f"{show(name)} {size}" for name, size in sizes.items())
        raise PriorGraphError(
            f"Columns of 'history' must be of one length. Got {listing(shown, len(sizes))}."
        )
    epochs = columns.pop("epoch", None)
    curves = {name: values for name, values in columns.items() if np.isfinite(values).any()}
    if not curves:
        raise PriorGraphError("'history' must have a column with a value. Got none.")
    if epochs is None:
        epochs = np.arange(1.0, len(next(iter(curves.values()))) + 1)
    elif not np.isfinite(epochs).all():
        raise PriorGraphError("Every row of 'history' must have an epoch. Got a missing one.")
    return epochs, {name: np.where(np.isfinite(v), v, np.nan) for name, v in curves.items()}
