"""How well the names of a data table fit the nodes of a prior graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.align import named_columns, named_rows, need_graph, wanted_nodes
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.hints import SURE, Hint, propose
from pyg_kpnn.prior.names import ascii_or_show, check_choice, listing, show
from pyg_kpnn.prior.restrict import lost_edges, unmeasured

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MatchReport", "match"]


@dataclass(frozen=True)
class MatchReport:
    """Which nodes of a graph the data measures, which not, and which edges that costs.

    ``str(report)`` is a summary of a few lines, :meth:`to_frame` and :meth:`to_dict` hold every name.

    Attributes
    ----------
    graph : PriorGraph
        The graph asked about.
    matched, missing : tuple of str
        Nodes with and without a feature of exactly their name, in the order of the graph (or of ``nodes=``).
    extra : tuple of str
        Features that name no such node, in the order of the data.
    hints : tuple of Hint
        What missing nodes may be called in the data: ``node``, ``features``, ``reason``.
    in_rows : int
        Missing nodes found among the *rows* of the table, which is then probably turned. Default: 0.
    """

    graph: PriorGraph = field(repr=False)
    matched: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    hints: tuple[Hint, ...] = ()
    in_rows: int = 0
    _lost: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False, compare=False)

    # --- counts and shares -----------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """Nodes that want a feature."""
        return len(self.matched) + len(self.missing)

    @property
    def num_features(self) -> int:
        """Features of the data."""
        return len(self.matched) + len(self.extra)

    @property
    def num_edges_lost(self) -> int:
        """Edges of which at least one end is missing."""
        return len(self._lost)

    @cached_property
    def edges_lost(self) -> tuple[tuple[str, str], ...]:
        """(source, target) of every lost edge, in the order of the graph."""
        source, target = (names[self._lost].tolist() for names in self.graph._edge_names)
        return tuple(zip(source, target, strict=True))

    @property
    def share_matched(self) -> float:
        """Matched nodes among those that want a feature, 0 to 1."""
        return len(self.matched) / self.num_nodes if self.num_nodes else 1.0

    @property
    def share_missing(self) -> float:
        """Missing nodes among those that want a feature, 0 to 1."""
        return len(self.missing) / self.num_nodes if self.num_nodes else 0.0

    @property
    def share_extra(self) -> float:
        """Features without a node among all features, 0 to 1."""
        return len(self.extra) / self.num_features if self.num_features else 0.0

    @property
    def share_edges_lost(self) -> float:
        """Lost edges among all edges, 0 to 1; what ``max_loss`` bounds."""
        return self.num_edges_lost / self.graph.num_edges

    # --- names -----------------------------------------------------------------------------------

    def renames(self, of: str = "prior", *, reasons: Iterable[str] = SURE) -> dict[str, str]:
        """The unambiguous hints as a mapping from old to new name. Nothing is renamed here.

        A hint is left out if it has several features or if two nodes point at its feature, and, unless
        ``reasons`` says otherwise, if it is only a guess at the spelling.

        Parameters
        ----------
        of : {"prior", "data"}, default "prior"
            ``"prior"``: node to feature, for ``graph.rename(...)``. ``"data"``: feature to node, for
            ``frame.rename(columns=...)``.
        reasons : iterable of str
            Reasons to trust. Default: all but ``"spelling"``.

        Examples
        --------
        >>> from pyg_kpnn.prior import PriorGraph
        >>> report = match(PriorGraph.from_edges([("TP53", "MDM2")]), ["tp53", "MDM2"])
        >>> report.renames(), report.renames(of="data")
        ({'TP53': 'tp53'}, {'tp53': 'TP53'})
        """
        check_choice(of, ("prior", "data"), "of")
        trusted = (reasons,) if isinstance(reasons, str) else tuple(reasons)
        for reason in trusted:
            check_choice(reason, (*SURE, "spelling"), "reasons")
        claims = Counter(feature for hint in self.hints for feature in hint.features)
        pairs = (
            (hint.node, hint.features[0])
            for hint in self.hints
            if hint.reason in trusted and len(hint.features) == 1 and claims[hint.features[0]] == 1
        )
        return dict(pairs) if of == "prior" else {f: n for n, f in pairs}

    def to_frame(self) -> pd.DataFrame:
        """One row a name: nodes in order, then extra features.

        Returns
        -------
        pandas.DataFrame
            Columns ``name``, ``status`` (``"matched"``, ``"missing"`` from the data, ``"extra"`` in the
            data), ``hint`` (the likely partners, ``"; "`` between them) and ``reason``; empty text where
            there is none.
        """
        import pandas as pd

        forward = {hint.node: ("; ".join(hint.features), hint.reason) for hint in self.hints}
        back: dict[str, tuple[str, str]] = {}
        for hint in self.hints:
            for feature in hint.features:
                before = back.get(feature)
                back[feature] = (f"{before[0]}; {hint.node}" if before else hint.node, hint.reason)
        rows = [(name, "matched", "", "") for name in self.matched]
        rows += [(name, "missing", *forward.get(name, ("", ""))) for name in self.missing]
        place = {name: i for i, name in enumerate(self.graph.nodes)}
        rows.sort(key=lambda row: place[row[0]])
        rows += [(name, "extra", *back.get(name, ("", ""))) for name in self.extra]
        return pd.DataFrame(rows, columns=["name", "status", "hint", "reason"], dtype=object)

    def to_dict(self) -> dict[str, Any]:
        """Counts, shares and every name, ready for JSON."""
        return {
            "nodes": self.num_nodes,
            "features": self.num_features,
            "edges": self.graph.num_edges,
            "edges_lost": self.num_edges_lost,
            "share_matched": self.share_matched,
            "share_missing": self.share_missing,
            "share_extra": self.share_extra,
            "share_edges_lost": self.share_edges_lost,
            "matched": list(self.matched),
            "missing": list(self.missing),
            "extra": list(self.extra),
            "lost": [list(edge) for edge in self.edges_lost],
            "hints": [
                {"node": hint.node, "features": list(hint.features), "reason": hint.reason}
                for hint in self.hints
            ],
            "in_rows": self.in_rows,
        }

    def missing_shown(self) -> str:
        """The first few missing nodes, those with a hint first, each with what it may be called."""
        known = {hint.node: hint for hint in self.hints}
        names = [*known, *(name for name in self.missing if name not in known)]
        shown = (
            f"{show(name)} ({known[name].reason}: {' or '.join(map(ascii_or_show, known[name].features))})"
            if name in known
            else show(name)
            for name in names
        )
        return listing(shown, len(names))

    def __str__(self) -> str:
        lost = (f"{show(source)} -> {show(target)}" for source, target in self.edges_lost)
        lines = [
            f"matched           {len(self.matched)} of {self.num_nodes} nodes ({self.share_matched:.1%})",
            f"not in the data   {len(self.missing)} nodes" + _after(self.missing_shown()),
            f"not in the prior  {len(self.extra)} of {self.num_features} features ({self.share_extra:.1%})"
            + _after(listing(map(show, self.extra), len(self.extra))),
            f"edges lost        {self.num_edges_lost} of {self.graph.num_edges} ({self.share_edges_lost:.1%})"
            + _after(listing(lost, self.num_edges_lost)),
        ]
        sure = self.renames()
        for node, feature in list(sure.items())[:1]:
            lines.append(
                f"renames() proposes {len(sure)}, the first {show(node)} -> {ascii_or_show(feature)}"
            )
        if self.in_rows:
            lines.append(f"{self.in_rows} of the missing nodes are names of rows: the table may be turned")
        return "\n".join(lines)


def _after(text: str) -> str:
    return f": {text}" if text else ""


def match(
    graph: PriorGraph, features: Any, *, max_loss: float | None = None, nodes: Iterable[Any] | None = None
) -> MatchReport:
    """Compare the nodes of a graph with the names of a data table.

    Names are compared exactly, by ``str(name)``; nothing is changed. Nodes without a feature get hints,
    in time that grows with the number of names.

    Parameters
    ----------
    graph : PriorGraph
        A bipartite graph is matched on its source side.
    features : sequence of names, pandas.DataFrame or AnnData
        Column names, a frame with samples in rows, or an AnnData (its ``var_names``).
    max_loss : float, optional
        Largest share of *edges* to lose, 0 to 1; above it is an error. An edge is lost if one of its ends
        is missing. Default: any loss is only reported.
    nodes : iterable of names, optional
        The nodes that want a feature, others being hidden: ``graph.input_nodes``, say. Default: all (of
        the source side).

    Returns
    -------
    MatchReport

    Raises
    ------
    PriorGraphError
        More edges lost than ``max_loss`` (with the numbers, the first names and hints), a feature named
        twice, or bad arguments.

    Examples
    --------
    >>> from pyg_kpnn.prior import PriorGraph, match
    >>> graph = PriorGraph.from_edges([("TP53", "MDM2"), ("MYC", "MDM2")])
    >>> report = match(graph, ["MDM2", "Tp53", "MYC", "age"])
    >>> report.missing, report.extra, report.edges_lost
    (('TP53',), ('Tp53', 'age'), (('TP53', 'MDM2'),))
    >>> match(graph.rename(report.renames()), ["MDM2", "Tp53", "MYC", "age"]).share_edges_lost
    0.0
    """
    need_graph(graph)
    if max_loss is not None and (
        isinstance(max_loss, (bool, np.bool_)) or not isinstance(max_loss, Real) or not 0 <= max_loss <= 1
    ):
        raise PriorGraphError(f"'max_loss' must be a share of edges from 0 to 1. Got {show(max_loss)}.")
    at = named_columns(features, "features")
    wanted = wanted_nodes(graph, nodes)
    asked = set(wanted)
    missing = tuple(name for name in wanted if name not in at)
    extra = tuple(name for name in at if name not in asked)
    lost = lost_edges(graph, unmeasured(graph, missing, both=nodes is not None))
    lost.setflags(write=False)
    rows = named_rows(features) if missing else set()
    report = MatchReport(
        graph,
        tuple(name for name in wanted if name in at),
        missing,
        extra,
        propose(missing, extra),
        sum(name in rows for name in missing),
        lost,
    )
    if max_loss is not None and report.share_edges_lost > max_loss:
        raise PriorGraphError(
            f"At most {float(max_loss):.1%} of the edges may be lost (max_loss). Got "
            f"{report.num_edges_lost} of {graph.num_edges} ({report.share_edges_lost:.1%}).\n{report}"
        )
    return report
