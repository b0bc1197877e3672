"""Look a graph and the rows it came from over, for the report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pyg_kpnn.prior.align import need_graph
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import ascii_or_show, brief, encode, listing, look_alikes, name_of, plain, show
from pyg_kpnn.prior.report import DroppedRows, ReadReport, RepeatedEdge, SignCell
from pyg_kpnn.prior.rows import Rows
from pyg_kpnn.prior.signs import parse_signs
from pyg_kpnn.prior.text import Seen
from pyg_kpnn.prior.topology import cycle_through, strong_components, weak_components

__all__ = ["describe", "report_of"]

_GATE = re.compile(r"(?:and|or)\d+")
_WHOLE = re.compile(r"[0-9]+")


def describe(graph: PriorGraph) -> ReadReport:
    """The report of a graph that came from elsewhere: its shape, pieces, cycles, signs and odd names.

    Parameters
    ----------
    graph : PriorGraph
        Its edges count as the rows, all of them kept.

    Returns
    -------
    ReadReport

    Raises
    ------
    PriorGraphError
        Not a PriorGraph.

    Examples
    --------
    >>> report = describe(PriorGraph.from_edges([("a", "b"), ("c", "c")]))
    >>> report.components, report.self_loops, report.has_cycle
    (2, ('c',), True)
    """
    need_graph(graph)
    return _report(graph, "", graph.num_edges, Seen(), 0, (), (), (), [])


def report_of(
    rows: Rows,
    graph: PriorGraph,
    on_duplicate: str,
    on_conflict: str,
    sign_map: Mapping[Any, int] | None,
) -> ReadReport:
    """The report of a graph and the rows it was built from."""
    column = rows.columns.get("sign")
    signs = None if column is None else parse_signs(column, sign_map, rows.place)
    again, merged = _repeated(rows, graph, signs)
    dropped = list(rows.dropped)
    if len(merged):
        dropped.append(
            DroppedRows(
                f"repeats an edge (on_duplicate={on_duplicate!r})",
                tuple(np.asarray(rows.lines)[merged].tolist()),
                tuple((name_of(s), name_of(t)) for s, t in rows.ends(merged)),
            )
        )
    cells: tuple[SignCell, ...] = ()
    notes = list(rows.notes)
    if column is not None and signs is not None:
        codes, distinct = encode(column, "Signs")
        first = {int(code): int(row) for row, code in reversed(list(enumerate(codes.tolist())))}
        counts = np.bincount(codes[codes >= 0], minlength=len(distinct)).tolist()
        cells = tuple(
            SignCell(name_of(plain(cell)), int(signs[first[code]]), counts[code])
            for code, cell in enumerate(distinct)
        )
        if len(set(signs.tolist())) == 1:
            notes.append(f"every row has the same sign, {signs[0]:+d}: the sign column tells edges nothing")
    both = sum(1 for edge in again if 1 in edge.signs and -1 in edge.signs)
    if both:
        which = listing(f"{e.source} -> {e.target}" for e in again if 1 in e.signs and -1 in e.signs)
        notes.append(
            f"{both:,} edge(s) with both + and -, now unknown (on_conflict={on_conflict!r}): {which}"
        )
    differ = [edge for edge in again if len(set(edge.weights)) > 1]
    if differ:
        which = listing((f"{e.source} -> {e.target}" for e in differ), len(differ))
        notes.append(
            f"{len(differ):,} edge(s) in several rows of different weight, one of them kept: {which}"
        )
    if rows.seen.crlf:
        notes.append("lines end in CRLF")
    read = len(rows.lines) + sum(len(group.lines) for group in rows.dropped)
    return _report(graph, rows.file, read, rows.seen, rows.node_lines, dropped, again, cells, notes)


def _repeated(
    rows: Rows, graph: PriorGraph, signs: np.ndarray | None
) -> tuple[list[RepeatedEdge], np.ndarray]:
    """Edges in several rows, in the graph's order, and the rows that came after the first of theirs."""
    ends = []
    for role, table in zip(("source", "target"), graph._positions, strict=True):
        codes, distinct = encode(rows.columns[role])
        ends.append(np.array([table[name_of(value)] for value in distinct], dtype=np.int64)[codes])
    key = ends[0] * len(graph.target_nodes) + ends[1]
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.concatenate(([True], np.diff(key[order]) > 0)))
    stops = np.append(starts[1:], len(order))
    lines = np.asarray(rows.lines)
    weight = rows.columns.get("weight")
    again = []
    for start, stop in zip(*(cut[stops - starts > 1].tolist() for cut in (starts, stops)), strict=True):
        at = order[start:stop]
        again.append(
            RepeatedEdge(
                graph.source_nodes[ends[0][at[0]]],
                graph.target_nodes[ends[1][at[0]]],
                tuple(lines[at].tolist()),
                () if signs is None else tuple(signs[at].tolist()),
                () if weight is None else tuple(float(value) for value in weight.iloc[at]),
            )
        )
    later = np.ones(len(order), dtype=bool)
    later[starts] = False
    return again, np.sort(order[later])


def _report(
    graph: PriorGraph,
    file: str,
    read: int,
    seen: Seen,
    node_lines: int,
    dropped: Any,
    again: Any,
    cells: tuple[SignCell, ...],
    notes: list[str],
) -> ReadReport:
    source, target = graph._source.astype(np.int64), graph._target.astype(np.int64)
    plainly = not graph.is_bipartite
    if not plainly:
        target = target + len(graph.source_nodes)
    count = graph.num_nodes
    linked = np.zeros(count, dtype=bool)
    linked[source] = linked[target] = True
    loops = np.unique(source[source == target]).tolist()
    cyclic = strong_components(count, source, target) if plainly else []
    cycle = cycle_through(cyclic[-1], source, target) if cyclic else loops[:1] * 2
    there = source * count + target
    back = np.isin(target * count + source, there) & (source < target)
    sign = graph._sign
    twins = look_alikes(graph.nodes)
    kept = graph.num_edges
    quirks = notes + list(_quirks(graph, int(back.sum()), _pairs(graph, back), twins))
    return ReadReport(
        file=file,
        rows_read=read,
        rows_kept=kept,
        dropped=tuple(dropped),
        comments=seen.comments,
        blanks=seen.blanks,
        skipped=seen.skipped,
        node_lines=node_lines,
        nodes=count,
        edges=kept,
        sides=None if plainly else (len(graph.source_nodes), len(graph.target_nodes)),
        duplicates_agreeing=tuple(e for e in again if not (1 in e.signs and -1 in e.signs)),
        duplicates_conflicting=tuple(e for e in again if 1 in e.signs and -1 in e.signs),
        self_loops=tuple(graph.nodes[i] for i in loops),
        isolated=graph._named(~linked),
        components=weak_components(count, source, target),
        cyclic_components=len(cyclic),
        example_cycle=tuple(graph.nodes[i] for i in cycle),
        reciprocal_pairs=int(back.sum()),
        sign_counts=None if sign is None else tuple(int((sign == s).sum()) for s in (1, -1, 0)),  # type: ignore[arg-type]
        sign_cells=cells,
        case_twins=twins,
        quirks=tuple(quirks),
    )


def _pairs(graph: PriorGraph, mask: np.ndarray) -> str:
    source, target = (names[np.flatnonzero(mask)[:6]] for names in graph._edge_names)
    return listing(
        (f"{brief(s)} <-> {brief(t)}" for s, t in zip(source, target, strict=True)), int(mask.sum())
    )


def _named(names: list[str]) -> str:
    return listing(map(show, names), len(names))


def _quirks(graph: PriorGraph, back: int, pairs: str, twins: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """What could surprise whoever joins the graph with data."""
    names = list(dict.fromkeys(graph.nodes))
    if graph._sign is not None and (unknown := int((graph._sign == 0).sum())):
        yield f"{unknown:,} of {graph.num_edges:,} edges are there with unknown sign (0)"
    if graph._weight is not None and (zeros := int((graph._weight == 0).sum())):
        yield f"{zeros:,} edge(s) of weight 0 are kept as edges"
    if back:
        yield f"{back:,} reciprocal pair(s), an edge each way: {pairs}"
    inner = [name for name in names if any(c.isspace() for c in name)]
    if inner:
        yield f"{len(inner):,} name(s) with blanks: {_named(inner)}"
    gates = [name for name in names if _GATE.fullmatch(name)]
    if gates:
        yield f"{len(gates):,} node(s) named like gates of a logic model: {_named(gates)}"
    whole = [name for name in names if _WHOLE.fullmatch(name)]
    if whole:
        yield f"{len(whole):,} name(s) are whole numbers, kept as text: {_named(whole)}"
    known = set(names)
    joined = [n for n in names if "_" in n and known.issuperset(n.split("_"))]
    if joined:
        yield f"{len(joined):,} name(s) join names of other nodes by '_': {_named(joined)}"
    suffixes = Counter("_" + name.rpartition("_")[2] for name in names if "_" in name[1:])
    suffix, often = next(iter(suffixes.most_common(1)), ("", 0))
    if often >= 5 and often * 10 >= len(names):
        yield f"{often:,} name(s) end in {suffix!r}, which a table of data may not have"
    cased = [name for name in names if name.upper() != name.lower()]
    lower = [name for name in cased if name != name.upper()]
    if lower and len(lower) * 10 <= len(cased):
        yield f"most names are upper case, {len(lower):,} not, and none was changed: {_named(lower)}"
    if twins:
        shown = (" / ".join(map(ascii_or_show, group)) for group in twins)
        by_case = all(len({name.casefold() for name in group}) == 1 for group in twins)
        what = "case" if by_case else "case, blanks or Unicode form"
        yield f"{len(twins):,} set{'s' * (len(twins) > 1)} of names differing only in {what}: " + listing(
            shown, len(twins)
        )
