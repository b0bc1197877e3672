"""Columns of a data table in the order of the graph's nodes, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import (
    check_choice,
    is_frame,
    is_missing,
    listing,
    name_list,
    name_of,
    near_names,
    show,
    unknown_names,
)

__all__ = ["align_inputs"]


def align_inputs(
    table: Any, graph: PriorGraph, *, nodes: Iterable[Any] | None = None, extra: str = "ignore"
) -> Any:
    """Find the columns of a data table in the order of the graph's nodes.

    ``x[:, align_inputs(names, graph)]`` has one column a node, in the order of ``graph.nodes``. Columns
    are matched by ``str(name)``, exactly: nothing is upper-cased or trimmed.

    Parameters
    ----------
    table : sequence of names, or pandas.DataFrame
        The names of the table's columns, or the table itself with samples in rows.
    graph : PriorGraph
        A bipartite graph is aligned on its source side. A node wider than one unit still asks for one
        column.
    nodes : iterable of names, optional
        Align to these nodes, in the order given and each once, instead: ``graph.input_nodes``, say.
    extra : {"ignore", "error"}, default "ignore"
        What to do with columns that name no node: leave them out silently, or refuse them.

    Returns
    -------
    torch.Tensor or pandas.DataFrame
        For names an int64 tensor of column positions; for a frame a new frame with exactly these columns,
        labelled by name.

    Raises
    ------
    PriorGraphError
        A column named twice, a node without a column (with the nearest column, or the hint that the
        table is turned), or, under ``extra="error"``, a column without a node. A column label of a frame
        that is missing (NaN) is no name.

    Examples
    --------
    >>> from pyg_kpnn.prior import PriorGraph, align_inputs
    >>> graph = PriorGraph.from_edges([("b", "c"), ("a", "c")])
    >>> align_inputs(["c", "age", "a", "b"], graph).tolist()
    [2, 3, 0]
    """
    if not isinstance(graph, PriorGraph):
        raise PriorGraphError(f"'graph' must be a PriorGraph. Got {type(graph).__name__}.")
    check_choice(extra, ("ignore", "error"), "extra")
    framed = is_frame(table)
    labels = list(table.columns) if framed else name_list(table, "table", of="column names", ordered=True)
    columns = [name_of(label, "Column names") for label in labels]
    at: dict[str, int] = {}
    twice: list[str] = []
    for place, name in enumerate(columns):
        if is_missing(labels[place]):  # NaN is not the node "nan"
            continue
        first = at.setdefault(name, place)
        if first != place:
            twice.append(
                f"{show(labels[first])} at column {first} and {show(labels[place])} at column {place}"
            )
    if twice:
        raise PriorGraphError(
            f"Every column must have a name of its own. Got {listing(twice)}. Rename or drop one of each."
        )

    known = graph.source_nodes
    wanted = list(known)
    if nodes is not None:
        wanted = [name_of(name) for name in name_list(nodes, "nodes", ordered=True)]
        again = sorted(name for name, count in Counter(wanted).items() if count > 1)
        if again:
            raise PriorGraphError(
                f"'nodes' must name each node once. Got {listing(map(show, again))} more than once."
            )
        either = set(graph.nodes)
        strange = [name for name in wanted if name not in either]
        if strange:
            raise PriorGraphError(
                f"'nodes' must be nodes of the graph. Got {unknown_names(strange, graph.nodes)}."
            )
    missing = [name for name in wanted if name not in at]
    if missing:
        rows = set(map(str, table.index)) if framed else set()
        turned = sum(name in rows for name in missing)
        advice = "Rename the columns, or take graph.subgraph(names both have)."
        if turned:
            advice = f"{turned} of them are in the index: pass table.T."
        names = list(at)
        shown = (f"{show(name)}{near_names(name, names)}" for name in missing)
        raise PriorGraphError(
            f"Every node must have a column of its name. Got no column for {len(missing)} of {len(wanted)} "
            f"nodes: {listing(shown, len(missing))}. {advice}"
        )
    if extra == "error":
        needed = {at[name] for name in wanted}
        surplus = [name for place, name in enumerate(columns) if place not in needed]
        if surplus:
            raise PriorGraphError(
                f"Every column must name a node (extra='error'). Got {unknown_names(surplus, wanted)}. "
                "Drop these columns, or pass extra='ignore'."
            )
    places = [at[name] for name in wanted]
    if framed:
        aligned = table.iloc[:, places].copy()  # a view would warn when the user writes to it
        aligned.columns = wanted
        return aligned
    index: Tensor = torch.tensor(places, dtype=torch.int64)
    return index
