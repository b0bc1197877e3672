"""What a picture is drawn from: edges by name, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PriorGraphError
from ..prior import PriorGraph
from ..prior.names import (
    NameTable,
    brief,
    check_text,
    encode,
    is_frame,
    listing,
    near_names,
    plain,
    show,
    unknown_names,
)
from ..prior.signs import parse_signs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Edges", "edges_of"]


@dataclass(frozen=True)
class Edges:
    """Edges between numbered nodes.

    Attributes
    ----------
    names : list of str
        Names of the n nodes; in a bipartite graph sources come first, and a name may stand on both sides.
    source, target : ndarray
        int64 ``(E,)``, numbers of nodes.
    weight : ndarray or None
        float64 ``(E,)``; None where there are none.
    sign : ndarray or None
        int8 ``(E,)``, 1, -1 or 0; None where nothing is known of signs.
    key : ndarray or None
        int64 ``(E,)``, which column of a table the row belongs to.
    key_names : list
        What ``key`` counts.
    split : int or None
        Number of sources of a bipartite graph.
    """

    names: list[str]
    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None = None
    sign: np.ndarray | None = None
    key: np.ndarray | None = None
    key_names: tuple[Any, ...] = ()
    split: int | None = None

    def edge(self, row: int) -> str:
        """An edge in words."""
        return f"{brief(self.names[self.source[row]])} -> {brief(self.names[self.target[row]])}"

    def take(self, rows: np.ndarray) -> Edges:
        """These edges, between the same nodes."""
        columns: dict[str, Any] = {}
        for name in ("source", "target", "weight", "sign", "key"):
            values = getattr(self, name)
            columns[name] = None if values is None else values[rows]
        return replace(self, **columns)


def edges_of(
    data: Any,
    graph: Any,
    choices: Mapping[str, Any],
    *,
    weight: str = "weight",
    by: str | None = None,
) -> Edges:
    """Read a frame with the columns ``source``, ``target`` and ``weight``, or a graph.

    Parameters
    ----------
    data : pandas.DataFrame or PriorGraph
        Where the edges come from.
    graph : PriorGraph or None
        Whose signs count, in place of the frame's.
    choices : mapping
        Column of the frame to the value whose rows are kept, ``"mean"`` for the mean over all its values,
        or None where the frame has one row an edge anyway.
    weight : str
        Column of the weights.
    by : str, optional
        Column whose values stay apart: one row for each edge and value.

    Raises
    ------
    PriorGraphError
        If columns, rows or values are missing, several rows remain for an edge, or the graph does not have
        an edge.
    """
    if graph is not None and not isinstance(graph, PriorGraph):
        raise PriorGraphError(f"'graph' must be a PriorGraph. Got {show(graph)} ({type(graph).__name__}).")
    if isinstance(data, PriorGraph):
        given = [name for name, value in {**choices, "graph": graph}.items() if value is not None]
        if given or by is not None:
            raise PriorGraphError(
                f"{given[0] if given else by!r} goes with a table of edges. Got a PriorGraph. Leave it out."
            )
        return _edges_of_graph(data)
    if not is_frame(data):
        raise PriorGraphError(
            "Edges must come as a DataFrame with the columns 'source', 'target' and 'weight', or as a "
            f"PriorGraph. Got {type(data).__name__}."
        )
    edges = _edges_of_frame(data, choices, weight, by)
    return edges if graph is None else _with_signs(edges, graph)


def _edges_of_graph(graph: PriorGraph) -> Edges:
    source, target = graph.edge_index.numpy()
    split = len(graph.source_nodes) if graph.is_bipartite else None
    return Edges(
        list(graph.nodes),
        source,
        target + (split or 0),
        None if graph.weight is None else graph.weight.numpy(),
        None if graph.sign is None else graph.sign.numpy(),
        split=split,
    )


def _edges_of_frame(frame: pd.DataFrame, choices: Mapping[str, Any], weight: str, by: str | None) -> Edges:
    for column in ("source", "target", weight, *([] if by is None else [by])):
        _check_column(frame, column)
    for column, value in choices.items():
        if value is not None:
            _check_column(frame, column)
            if not (isinstance(value, str) and value == "mean"):
                frame = _rows_where(frame, column, value)
    table = NameTable()
    ends, texts = [], []
    for column in ("source", "target"):
        codes, distinct = encode(frame[column])
        if (codes < 0).any():
            row = int(np.flatnonzero(codes < 0)[0])
            raise PriorGraphError(f"Every row must have a {column}. Got none at row {row}. Drop the row.")
        ends.append(codes)
        texts.append([table.add(value) for value in distinct])
    check_text(table.names)
    order = {name: i for i, name in enumerate(table.names)}
    source, target = (
        np.array([order[name] for name in names], dtype=np.int64)[codes]
        for codes, names in zip(ends, texts, strict=True)
    )
    edges = Edges(table.names, source, target, _numbers(frame[weight], weight))
    _check_finite(edges, weight)
    if "sign" in frame:
        edges = replace(edges, sign=parse_signs(frame["sign"], None, "row {}".format))
    if by is not None:
        key, names = _ordered_codes(frame[by], by)
        edges = replace(edges, key=key, key_names=names)
    return _one_row_each(edges, frame, {c: v for c, v in choices.items() if c in frame and c != by})


def _check_column(frame: pd.DataFrame, column: Any) -> None:
    there = [name for name in frame.columns if isinstance(name, str)]
    if not isinstance(column, str) or there.count(column) != 1:
        raise PriorGraphError(
            f"The table must have one column {show(column)}. Got {listing(map(show, there), len(there))}"
            f"{near_names(column, there) if isinstance(column, str) and column not in there else ''}."
        )


def _rows_where(frame: pd.DataFrame, column: str, value: Any) -> pd.DataFrame:
    # object: a categorical refuses to be compared with what is none of its categories
    try:
        kept = frame[(frame[column].astype(object) == value).to_numpy(dtype=bool)]
    except (TypeError, ValueError):
        kept = frame.iloc[:0]
    if not len(kept):
        found = [show(plain(other)) for other in frame[column].drop_duplicates()]
        raise PriorGraphError(
            f"'{column}' must be 'mean' or one of {listing(found) or 'its values, of which there are none'}. "
            f"Got {show(value)}."
        )
    return kept


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    try:
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError):
        raise PriorGraphError(f"Column {name!r} must hold numbers. Got {column.dtype}.") from None


def _check_finite(edges: Edges, name: str) -> None:
    assert edges.weight is not None
    bad = np.flatnonzero(~np.isfinite(edges.weight))
    if bad.size:
        raise PriorGraphError(
            f"Every edge must have a finite {name}. Got {edges.weight[bad[0]]} for "
            f"{edges.edge(int(bad[0]))}. Drop the row."
        )


def _ordered_codes(column: pd.Series, name: str) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Codes of the values that are there: in the order of categories, of numbers, or of text."""
    import pandas as pd

    values = column if isinstance(column.dtype, pd.CategoricalDtype) else column.astype("category")
    values = values.cat.remove_unused_categories()
    if values.isna().any():
        row = int(np.flatnonzero(values.isna())[0])
        raise PriorGraphError(f"Every row must have a {name}. Got none at row {row}. Drop the row.")
    return values.cat.codes.to_numpy(dtype=np.int64), tuple(plain(v) for v in values.cat.categories)


def _one_row_each(edges: Edges, frame: pd.DataFrame, choices: Mapping[str, Any]) -> Edges:
    """The mean over what may be averaged, and an error where rows are left that nobody chose from."""
    assert edges.weight is not None
    key = np.zeros_like(edges.source) if edges.key is None else edges.key
    rows = np.stack([edges.source, edges.target, key])
    _, first, group, found = np.unique(
        rows, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    group = group.reshape(-1)
    if len(first) == len(key):
        return edges
    apart: dict[str, np.ndarray] = {c: _ordered_codes(frame[c], c)[0] for c in choices}
    open_ = [c for c in choices if choices[c] is None and (apart[c] != apart[c][first][group]).any()]
    distinct = np.unique(np.concatenate([rows, *(codes[None] for codes in apart.values())]), axis=1).shape[1]
    if open_ or distinct < len(key):
        at = int(first[np.argmax(found)])
        same = np.flatnonzero(group == group[at])
        which = "; ".join(
            f"{c} {listing(show(plain(v)) for v in frame[c].iloc[same].unique())}" for c in open_
        )
        hint = " and ".join(f"{c}=… or {c}='mean'" for c in open_)
        raise PriorGraphError(
            f"Each edge must have one row. Got {len(same)} for {edges.edge(at)}"
            + (f" ({which}). Choose {hint}." if open_ else ". Drop the others, or add them up.")
        )
    if edges.sign is not None and (edges.sign != edges.sign[first][group]).any():
        at = int(np.flatnonzero(edges.sign != edges.sign[first][group])[0])
        raise PriorGraphError(f"Rows of one edge must have one sign. Got several for {edges.edge(at)}.")
    mean = np.bincount(group, edges.weight) / found
    return replace(edges.take(first), weight=mean)


def _with_signs(edges: Edges, graph: PriorGraph) -> Edges:
    """The nodes and signs of the graph; a self-loop that a layer added is none of its edges."""
    position = {name: i for i, name in enumerate(graph.source_nodes)}
    below = {name: i for i, name in enumerate(graph.target_nodes)}
    for name in edges.names:
        if name not in position and name not in below:
            raise PriorGraphError(
                f"Every node of the table must be in the graph. Got {unknown_names([name], graph.nodes)}."
            )
    given, count = graph.edge_index.numpy(), len(graph.target_nodes)
    known = given[0] * count + given[1]  # ascending: the order of a graph's edges
    source = np.array([position.get(name, -1) for name in edges.names])[edges.source]
    target = np.array([below.get(name, -1) for name in edges.names])[edges.target]
    wanted = source * count + target
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    there = (source >= 0) & (target >= 0)
    there &= (known[at] == wanted) if len(known) else False
    absent = np.flatnonzero(~there & ((edges.source != edges.target) | graph.is_bipartite))
    if absent.size:
        raise PriorGraphError(
            "Every edge of the table must be in the graph. Got "
            f"{listing((edges.edge(row) for row in absent.tolist()), len(absent))}. "
            "Pass the graph the table is of."
        )
    signs = None if graph.sign is None else np.where(there, graph.sign.numpy()[at], 0).astype(np.int8)
    split = len(graph.source_nodes) if graph.is_bipartite else None
    return replace(
        edges, names=list(graph.nodes), source=source, target=target + (split or 0), sign=signs, split=split
    )
