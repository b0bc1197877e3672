"""Columns of a data table in the order of the graph's nodes, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

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

if TYPE_CHECKING:
    from pyg_kpnn.prior.match import MatchReport

__all__ = ["align_inputs"]


def is_anndata(value: Any) -> bool:
    """Whether ``value`` is an AnnData, without importing anndata."""
    return all(hasattr(value, part) for part in ("var_names", "obs_names", "X"))


def need_graph(graph: Any) -> None:
    """Refuse what is no graph."""
    if not isinstance(graph, PriorGraph):
        raise PriorGraphError(f"'graph' must be a PriorGraph. Got {type(graph).__name__}.")


def named_columns(table: Any, what: str = "table", *, ordered: bool = False) -> dict[str, int]:
    """Name to position of the columns of a frame or AnnData, or of a sequence of names; each name once.

    A label of a frame or an index that is missing (NaN) is no name and left out.
    """
    if is_frame(table) or is_anndata(table):
        labels = list(table.columns if is_frame(table) else table.var_names)
    else:
        labels = name_list(table, what, of="column names", ordered=ordered)
    at: dict[str, int] = {}
    twice: list[str] = []
    for place, label in enumerate(labels):
        if is_missing(label):  # NaN is not the node "nan"
            continue
        first = at.setdefault(name_of(label, "Column names"), place)
        if first != place:
            twice.append(f"{show(labels[first])} at column {first} and {show(label)} at column {place}")
    if twice:
        raise PriorGraphError(
            f"Every column must have a name of its own. Got {listing(twice)}. Rename or drop one of each."
        )
    return at


def named_rows(table: Any) -> set[str]:
    """Names of the rows of a frame or AnnData; none of a sequence of names."""
    rows = table.index if is_frame(table) else table.obs_names if is_anndata(table) else ()
    return set(map(str, rows))


def wanted_nodes(graph: PriorGraph, nodes: Iterable[Any] | None) -> list[str]:
    """The nodes that want a column: all of the source side, or those given, each once."""
    if nodes is None:
        return list(graph.source_nodes)
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
    return wanted


def align_inputs(
    table: Any,
    graph: PriorGraph,
    *,
    nodes: Iterable[Any] | None = None,
    extra: str = "ignore",
    report: bool = False,
) -> Any:
    """Find the columns of a data table in the order of the graph's nodes.

    ``x[:, align_inputs(names, graph)]`` has one column a node, in the order of ``graph.nodes``. Columns
    are matched by ``str(name)``, exactly: nothing is upper-cased or trimmed.

    Parameters
    ----------
    table : sequence of names, pandas.DataFrame or AnnData
        The names of the table's columns, or the table itself with samples in rows.
    graph : PriorGraph
        A bipartite graph is aligned on its source side. A node wider than one unit still asks for one
        column.
    nodes : iterable of names, optional
        Align to these nodes, in the order given and each once, instead: ``graph.input_nodes``, say.
    extra : {"ignore", "error"}, default "ignore"
        What to do with columns that name no node: leave them out (``report=True`` names them), or refuse
        them.
    report : bool, default False
        Also return the :class:`~pyg_kpnn.prior.MatchReport`, whose ``extra`` are the columns left out.

    Returns
    -------
    torch.Tensor or pandas.DataFrame
        For names and AnnData an int64 tensor of column positions; for a frame a new frame with exactly
        these columns, labelled by name. With ``report=True`` a pair of it and the report.

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
    from pyg_kpnn.prior.match import match

    need_graph(graph)
    check_choice(extra, ("ignore", "error"), "extra")
    framed = is_frame(table)
    if not framed and not is_anndata(table):
        table = name_list(table, "table", of="column names", ordered=True)
    at = named_columns(table)
    wanted = wanted_nodes(graph, nodes)
    missing = [name for name in wanted if name not in at]
    if missing:
        _refuse_missing(missing, wanted, at, match(graph, table, nodes=nodes))
    if extra == "error":
        asked = set(wanted)
        surplus = [name for name in at if name not in asked]
        surplus += ["nan"] * (framed and sum(map(is_missing, table.columns)))
        if surplus:
            raise PriorGraphError(
                f"Every column must name a node (extra='error'). Got {unknown_names(surplus, wanted)}. "
                "Drop these columns, or pass extra='ignore'."
            )
    places = [at[name] for name in wanted]
    aligned: Any = torch.tensor(places, dtype=torch.int64)
    if framed:
        aligned = table.iloc[:, places].copy()  # a view would warn when the user writes to it
        aligned.columns = wanted
    return (aligned, match(graph, table, nodes=nodes)) if report else aligned


def _refuse_missing(missing: list[str], wanted: list[str], at: dict[str, int], report: MatchReport) -> None:
    names, count = list(at), len(report.renames())
    ways = f" (match(...).renames() proposes {count})" if count else ""
    advice = f"Rename the columns{ways}, or take graph.restrict_to(table)."
    if report.in_rows:
        advice = f"{report.in_rows} of them are in the index: pass table.T."
    shown = (f"{show(name)}{near_names(name, names)}" for name in missing)
    raise PriorGraphError(
        f"Every node must have a column of its name. Got no column for {len(missing)} of {len(wanted)} "
        f"nodes: {listing(shown, len(missing))}. {advice}"
    )
