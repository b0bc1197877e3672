"""What a reader found in a file, and what it left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyg_kpnn.prior.names import brief, listing, show

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DroppedRows", "ReadReport", "RepeatedEdge", "SignCell"]

_WORDS = {1: "+1", -1: "-1", 0: "unknown"}


class DroppedRows(NamedTuple):
    """Rows that gave no edge of their own, for one reason.

    Attributes
    ----------
    reason : str
        Why.
    lines : tuple of int
        Lines of the file, counted from 1 (rows, for a file that has no lines).
    edges : tuple of (str, str)
        Source and target of each, as far as they could be read.
    """

    reason: str
    lines: tuple[int, ...]
    edges: tuple[tuple[str, str], ...]


class RepeatedEdge(NamedTuple):
    """An edge that stands in more than one row.

    Attributes
    ----------
    source, target : str
        Its ends.
    lines : tuple of int
        All of its lines.
    signs : tuple of int
        The sign of each; empty where no signs were read.
    weights : tuple of float
        The weight of each; empty where no weights were read.
    """

    source: str
    target: str
    lines: tuple[int, ...]
    signs: tuple[int, ...]
    weights: tuple[float, ...]


class SignCell(NamedTuple):
    """How the file writes a sign: the cell, the sign it was taken for, and in how many rows."""

    cell: str
    sign: int
    rows: int


def _some(names: tuple[str, ...]) -> str:
    return listing(map(show, map(brief, names)), len(names))


@dataclass(frozen=True)
class ReadReport:
    """What is in a file and in the graph read from it; every row is either kept or among those dropped.

    A row is an edge as the file states it: a line with several targets (SIF, GMT) is several rows.
    ``rows_read == rows_kept + rows_dropped``, and ``rows_kept == edges``.

    Attributes
    ----------
    file : str
        Name of the file; empty for a graph that came from elsewhere (:func:`~pyg_kpnn.prior.describe`).
    rows_read, rows_kept : int
        Rows, and rows that are an edge of the graph.
    dropped : tuple of DroppedRows
        The others by reason, with their lines.
    comments, blanks, skipped, node_lines : int
        Lines that are no rows: comments, blank ones, those ``skip_lines=`` passes over, and those that
        name a node without an edge.
    nodes, edges : int
        Size of the graph.
    sides : (int, int) or None
        Nodes of either side of a bipartite graph.
    duplicates_agreeing, duplicates_conflicting : tuple of RepeatedEdge
        Edges in more than one row: those without both + and - among their signs, and those with.
    self_loops, isolated : tuple of str
        Nodes with an edge to themselves; nodes without an edge.
    components : int
        Pieces of the graph, directions ignored.
    cyclic_components : int
        Sets of more than one node in which every node leads to every other.
    example_cycle : tuple of str
        A cycle, its first node again at the end; a self-loop counts. Empty for a DAG.
    reciprocal_pairs : int
        Pairs of nodes with an edge each way.
    sign_counts : (int, int, int) or None
        Edges with sign +1, -1 and unknown; None where the graph has no signs.
    sign_cells : tuple of SignCell
        How the file writes signs.
    case_twins : tuple of tuple of str
        Names that differ only in case.
    quirks : tuple of str
        Everything worth knowing before the graph is used, a sentence each.

    Examples
    --------
    >>> from pyg_kpnn.prior import PriorGraph, describe
    >>> report = describe(PriorGraph.from_edges([("a", "b"), ("b", "a"), ("B", "B")], nodes=["c"]))
    >>> report.nodes, report.edges, report.components, report.example_cycle, report.isolated
    (4, 3, 3, ('a', 'b', 'a'), ('c',))
    >>> print(report.quirks[-1])
    1 set of names differing only in case: 'B' / 'b'
    """

    file: str
    rows_read: int
    rows_kept: int
    dropped: tuple[DroppedRows, ...]
    comments: int
    blanks: int
    skipped: int
    node_lines: int
    nodes: int
    edges: int
    sides: tuple[int, int] | None
    duplicates_agreeing: tuple[RepeatedEdge, ...]
    duplicates_conflicting: tuple[RepeatedEdge, ...]
    self_loops: tuple[str, ...]
    isolated: tuple[str, ...]
    components: int
    cyclic_components: int
    example_cycle: tuple[str, ...]
    reciprocal_pairs: int
    sign_counts: tuple[int, int, int] | None
    sign_cells: tuple[SignCell, ...]
    case_twins: tuple[tuple[str, ...], ...]
    quirks: tuple[str, ...]

    @property
    def rows_dropped(self) -> int:
        """Rows that gave no edge of their own."""
        return sum(len(group.lines) for group in self.dropped)

    @property
    def has_cycle(self) -> bool:
        """Whether some node leads back to itself."""
        return bool(self.example_cycle)

    def _findings(self) -> Iterator[tuple[str, int, str]]:
        """(what, how many, examples) of everything, in the order it is printed."""
        yield "rows read", self.rows_read, ""
        yield "rows kept", self.rows_kept, ""
        for group in self.dropped:
            yield f"rows dropped: {group.reason}", len(group.lines), self._lines(group.lines)
        passed = {"comment": self.comments, "blank": self.blanks, "skipped": self.skipped}
        for what, count in passed.items():
            if count:
                yield f"lines passed over: {what}", count, ""
        if self.node_lines:
            yield "lines that name a node only", self.node_lines, ""
        sides = "" if self.sides is None else "{:,} sources, {:,} targets".format(*self.sides)
        yield "nodes", self.nodes, sides
        yield "edges", self.edges, ""
        for word, edges in (
            ("agreeing", self.duplicates_agreeing),
            ("conflicting", self.duplicates_conflicting),
        ):
            shown = (f"{brief(e.source)} -> {brief(e.target)} ({self._lines(e.lines)})" for e in edges)
            yield f"edges in several rows, signs {word}", len(edges), listing(shown, len(edges))
        if self.sign_counts is not None:
            for word, count in zip(("+1", "-1", "unknown"), self.sign_counts, strict=True):
                yield f"edges with sign {word}", count, ""
        yield "self-loops", len(self.self_loops), _some(self.self_loops)
        yield "isolated nodes", len(self.isolated), _some(self.isolated)
        yield "weakly connected components", self.components, ""
        cycle = " -> ".join(map(brief, self.example_cycle[:12]))
        cycle += " -> …" if len(self.example_cycle) > 12 else ""
        yield "strongly connected components of several nodes", self.cyclic_components, cycle

    @staticmethod
    def _lines(lines: tuple[int, ...]) -> str:
        return f"line{'s' if len(lines) > 1 else ''} {listing(map(str, lines), len(lines))}"

    def __str__(self) -> str:
        out = [f"Read report: {self.file or 'a graph'}"]
        for what, count, examples in self._findings():
            out.append(f"  {what:<52} {count:>12,}{'   ' + examples if examples else ''}")
        out.append(f"  {'cycles':<52} {'yes' if self.has_cycle else 'no':>12}")
        if self.sign_cells:
            cells = (f"{show(c.cell)} is {_WORDS[c.sign]} ({c.rows:,})" for c in self.sign_cells)
            out.append(f"  sign cells: {listing(cells, len(self.sign_cells))}")
        if self.quirks:
            out.append("Worth knowing:")
            out.extend(f"  * {quirk}" for quirk in self.quirks)
        return "\n".join(out)

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists, numbers and text, ready for ``json.dumps``."""
        plain: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name in ("dropped", "duplicates_agreeing", "duplicates_conflicting", "sign_cells"):
                plain[name] = [{key: _listed(part) for key, part in item._asdict().items()} for item in value]
            else:
                plain[name] = _listed(value)
        return {**plain, "rows_dropped": self.rows_dropped, "has_cycle": self.has_cycle}

    def to_frame(self) -> pd.DataFrame:
        """A table of all counts with columns ``finding``, ``count`` and ``examples``; quirks come last."""
        import pandas as pd

        rows = [*self._findings(), *((f"worth knowing: {quirk}", 1, "") for quirk in self.quirks)]
        return pd.DataFrame(rows, columns=["finding", "count", "examples"])

    def dropped_frame(self) -> pd.DataFrame:
        """A table of every row that gave no edge of its own: ``line``, ``reason``, ``source``, ``target``."""
        import pandas as pd

        rows = [
            (line, group.reason, *edge)
            for group in self.dropped
            for line, edge in zip(group.lines, group.edges, strict=True)
        ]
        return pd.DataFrame(rows, columns=["line", "reason", "source", "target"])


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value] if isinstance(value, tuple) else value
