"""Edges as a reader found them, on their way to a graph and a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.assemble import assemble
from pyg_kpnn.prior.names import name_list, name_of, show
from pyg_kpnn.prior.report import DroppedRows
from pyg_kpnn.prior.text import Seen

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Rows", "check_flag", "finish"]


def check_flag(value: Any, what: str) -> bool:
    """Refuse what is no bool: a word such as "no" would count as yes."""
    if not isinstance(value, (bool, np.bool_)):
        raise PriorGraphError(f"{what!r} must be True or False. Got {show(value)}.")
    return bool(value)


@dataclass
class Rows:
    """Columns of equal length, where each row stands in the file, and what has been left out so far.

    Attributes
    ----------
    file : str
        What errors and the report call it.
    columns : dict of str to pandas.Series
        ``source`` and ``target``, and ``sign`` and ``weight`` where they are read.
    lines : sequence of int
        Line of every row.
    unit : str
        What ``lines`` counts.
    dropped : list of DroppedRows
        Rows left out so far.
    nodes : list
        Names that are nodes even if no row is left that has them.
    sides : tuple of two lists, optional
        The same for a bipartite graph, by side.
    notes : list of str
        Quirks that only the reader can see.
    where : callable, optional
        Words the place of a row when rows come from two files; no row may be dropped after that.
    """

    file: str
    columns: dict[str, pd.Series]
    lines: Sequence[int] | np.ndarray
    unit: str = "line"
    seen: Seen = field(default_factory=Seen)
    dropped: list[DroppedRows] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    sides: tuple[list[Any], list[Any]] | None = None
    node_lines: int = 0
    notes: list[str] = field(default_factory=list)
    where: Callable[[int], str] | None = None

    def place(self, row: int) -> str:
        """Where a row came from, for error messages."""
        return self.where(row) if self.where else f"{self.unit} {self.lines[row]} of {self.file}"

    def ends(self, rows: np.ndarray) -> tuple[tuple[Any, Any], ...]:
        """Source and target of some rows."""
        pair = (self.columns["source"].to_numpy()[rows], self.columns["target"].to_numpy()[rows])
        return tuple(zip(*(side.tolist() for side in pair), strict=True))

    def drop(self, mask: np.ndarray, reason: str, *, keep_nodes: bool = True) -> None:
        """Leave rows out and remember them; their names stay nodes unless told otherwise."""
        if not mask.any():
            return
        out = np.flatnonzero(mask)
        lines = np.asarray(self.lines)
        ends = self.ends(out)
        named = tuple((_text(s), _text(t)) for s, t in ends)
        self.dropped.append(DroppedRows(reason, tuple(lines[out].tolist()), named))
        if keep_nodes and self.sides is not None:
            for side, names in zip(self.sides, zip(*ends, strict=True), strict=True):
                side.extend(dict.fromkeys(names))
        elif keep_nodes:
            self.nodes.extend(dict.fromkeys(name for pair in ends for name in pair))
        self.lines = lines[~mask]
        self.columns = {role: column[~mask].reset_index(drop=True) for role, column in self.columns.items()}


def _text(value: Any) -> str:
    return "" if value is None or value != value else name_of(value)


def finish(
    rows: Rows,
    *,
    return_report: bool,
    drop_self_loops: bool = False,
    nodes: Iterable[Any] | None = None,
    widths: Mapping[Any, int] | None = None,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    sign_map: Mapping[Any, int] | None = None,
) -> Any:
    """The graph of the rows, or the graph and its report."""
    if rows.sides is not None and (nodes is not None or drop_self_loops):
        raise PriorGraphError(
            "A bipartite graph has two sets of nodes. Got nodes= or drop_self_loops=, which are for graphs "
            "of one set. Drop them."
        )
    if drop_self_loops:
        source, target = rows.columns["source"], rows.columns["target"]
        loop = np.asarray(source.to_numpy() == target.to_numpy(), dtype=bool)
        rows.drop(loop & source.notna().to_numpy(), "self-loop (drop_self_loops=True)")
    more = None if nodes is None else name_list(nodes, "nodes")
    sides = rows.sides
    if not len(rows.columns["source"]):
        raise PriorGraphError(
            f"A graph must have at least one edge. Got no rows in {rows.file}. Check the file or the filter."
        )
    if sides is not None:
        # assemble wants every name of a side; those of the rows come first so that it can check them
        sides = tuple(  # type: ignore[assignment]
            [*dict.fromkeys(rows.columns[role]), *side] if side else None
            for role, side in zip(("source", "target"), sides, strict=True)
        )
    graph = assemble(
        rows.columns["source"],
        rows.columns["target"],
        sign=rows.columns.get("sign"),
        weight=rows.columns.get("weight"),
        nodes=[*rows.nodes, *(more or ())],
        widths=widths,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
        sides=sides,
        place=rows.place,
    )
    if not return_report:
        return graph
    from pyg_kpnn.prior.findings import report_of

    return graph, report_of(rows, graph, on_duplicate, on_conflict, sign_map)
