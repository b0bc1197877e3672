"""Gene sets: a two-sided graph from genes to sets, or a hierarchy above the sets."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.build import pick_column
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import is_frame, listing, name_of, show
from pyg_kpnn.prior.readers import check_bytes, read_table
from pyg_kpnn.prior.report import DroppedRows
from pyg_kpnn.prior.rows import Rows, check_flag, finish
from pyg_kpnn.prior.text import MAX_BYTES, Dialect, Seen, read_lines

if TYPE_CHECKING:
    import pandas as pd

    from pyg_kpnn.prior.report import ReadReport

__all__ = ["read_gmt"]


@overload
def read_gmt(
    path: str | os.PathLike[str], *, return_report: Literal[False] = ..., **options: Any
) -> PriorGraph: ...
@overload
def read_gmt(
    path: str | os.PathLike[str], *, return_report: Literal[True], **options: Any
) -> tuple[PriorGraph, ReadReport]: ...
def read_gmt(  # type: ignore[misc]
    path: str | os.PathLike[str],
    *,
    parents: pd.DataFrame | str | os.PathLike[str] | None = None,
    parent: str | int = "parent",
    child: str | int = "child",
    parents_header: bool = True,
    ancestors_only: bool = True,
    encoding: str = "utf-8-sig",
    widths: Mapping[Any, int] | None = None,
    on_duplicate: str = "error",
    max_bytes: int = MAX_BYTES,
    return_report: bool = False,
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """Read gene sets: every line a set, a description and its genes, apart by tabs.

    Without ``parents`` the graph is bipartite, genes (sources) → sets (targets); a set without genes is a
    target without an edge. With ``parents`` it is one graph of genes → sets → parent sets, as deep as the
    table goes. Descriptions are not part of the graph.

    Parameters
    ----------
    path : path
        Any suffix; ``.gz`` is unpacked.
    parents : pandas.DataFrame or path, optional
        A table of one (parent set, child set) pair a row, such as Reactome's pathway relations; a path is
        read as :func:`~pyg_kpnn.prior.read_edgelist` reads it.
    parent, child : str or int, default "parent" and "child" (0 and 1 without a header)
        Its columns, by name or, in a file, by position. The order of columns does not matter.
    parents_header : bool, default True
        Whether the first line of that file holds column names; Reactome's does not.
    ancestors_only : bool, default True
        Drop rows of the table that lead up from no set of the file (other species, for example); False
        keeps all of the table.
    encoding, widths, on_duplicate, max_bytes, return_report
        As in :func:`~pyg_kpnn.prior.read_edgelist`. A set on several lines, like a gene twice in a set, is
        an error unless ``on_duplicate="first"``, which joins the lines.

    Returns
    -------
    PriorGraph, or (PriorGraph, ReadReport) with ``return_report=True``

    Raises
    ------
    FileNotFoundError
        No such file.
    PriorGraphError
        A line without a description cell, a set without a name, duplicates, no set with a parent, a name
        that is both a gene and a set (with ``parents``), and what a file of text may have wrong.

    Examples
    --------
    >>> import pandas as pd, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "sets.gmt")
    ...     _ = path.write_text("apoptosis\\tna\\tTP53\\tBAX\\ngrowth\\tna\\tMYC\\n")
    ...     sets = read_gmt(path)
    ...     tree = read_gmt(path, parents=pd.DataFrame({"parent": ["fate"], "child": ["apoptosis"]}))
    >>> sets.source_nodes, sets.target_nodes
    (('BAX', 'MYC', 'TP53'), ('apoptosis', 'growth'))
    >>> tree.edges[-1], tree.output_nodes
    (('apoptosis', 'fate'), ('fate', 'growth'))
    """
    path = Path(path)
    seen = Seen()
    with path.open("rb") as stream:
        zipped = path.suffix.lower() == ".gz"
        limit = check_bytes(max_bytes)
        records = read_lines(
            stream, path.name, Dialect("\t", encoding), zipped=zipped, max_bytes=limit, seen=seen
        )
        rows, sets = _rows(records, path.name, on_duplicate)
    rows.seen = seen
    if parents is None:
        rows.sides = ([], list(sets))
    else:
        table = _parent_rows(parents, parent, child, parents_header, encoding, limit)
        rows = _chain(rows, table, sets, check_flag(ancestors_only, "ancestors_only"))
    result: PriorGraph | tuple[PriorGraph, ReadReport] = finish(
        rows,
        return_report=check_flag(return_report, "return_report"),
        widths=widths,
        on_duplicate=on_duplicate,
    )
    return result


def _rows(records: Any, file: str, on_duplicate: str) -> tuple[Rows, dict[str, int]]:
    """A row for every gene of a set, and the line of every set."""
    import pandas as pd

    genes: list[str] = []
    owners: list[str] = []
    lines = array("q")
    sets: dict[str, int] = {}
    again: list[str] = []
    empty: list[tuple[int, str]] = []
    bare: list[str] = []
    once: dict[str, str] = {}
    for line, text in records:
        name, *cells = (cell.strip() for cell in text.split("\t"))
        if not name or not cells:
            raise PriorGraphError(
                f"Every line of a GMT file must be a set, a description and genes, apart by tabs. Got "
                f"{show(text)} on line {line} of {file}. Correct the line."
            )
        if sets.setdefault(name, line) != line:
            again.append(f"{show(name)} on lines {sets[name]} and {line}")
        inside = [once.setdefault(gene, gene) for gene in cells[1:] if gene]
        empty.extend([(line, name)] * (len(cells) - 1 - len(inside)))
        genes.extend(inside)
        owners.extend([name] * len(inside))
        lines.extend([line] * len(inside))
        if not inside:
            bare.append(name)
    if again and on_duplicate == "error":
        raise PriorGraphError(
            f"Every set must have one line. Got {listing(again, len(again))} of {file}. Rename or drop it, "
            "or pass on_duplicate='first' to join the lines."
        )
    if not genes:
        raise PriorGraphError(f"A GMT file must have a set with a gene. Got none in {file}.")
    columns = {"source": pd.Series(genes, dtype=object), "target": pd.Series(owners, dtype=object)}
    rows = Rows(file, columns, lines)
    if empty:
        rows.dropped.append(
            DroppedRows(
                "an empty cell in place of a gene",
                tuple(line for line, _ in empty),
                tuple(("", name) for _, name in empty),
            )
        )
    rows.notes.append(f"{len(sets):,} set(s); their descriptions were not read")
    if again:
        rows.notes.append(f"{len(again):,} further line(s) of a set were joined with its first: {again[0]}")
    if bare:
        rows.notes.append(f"{len(bare):,} set(s) without a gene: {listing(map(show, bare), len(bare))}")
    return rows, sets


def _parent_rows(parents: Any, parent: Any, child: Any, header: bool, encoding: str, max_bytes: int) -> Rows:
    """The table of parents as rows from child to parent."""
    if is_frame(parents):
        columns = {
            "source": pick_column(parents, child, "child"),
            "target": pick_column(parents, parent, "parent"),
        }
        return Rows("parents", columns, np.arange(len(parents)), unit="row")
    if not isinstance(parents, (str, os.PathLike)):
        raise PriorGraphError(
            f"'parents' must be a data frame or the path of a table. Got {type(parents).__name__}."
        )
    if not header:
        parent = 0 if parent == "parent" else parent
        child = 1 if child == "child" else child
    wanted = {"source": child, "target": parent}
    path = Path(parents)
    sep = None if path.suffix.lower() != ".gmt" else "\t"
    return read_table(path, wanted, sep=sep, header=header, encoding=encoding, max_bytes=max_bytes)


def _chain(rows: Rows, table: Rows, sets: dict[str, int], ancestors_only: bool) -> Rows:
    """Genes to sets, and above them child to parent, as one list of rows."""
    import pandas as pd

    for role in ("source", "target"):
        cells = table.columns[role]
        if cells.isna().any() or (cells == "").any():
            at = int(np.flatnonzero((cells.isna() | (cells == "")).to_numpy())[0])
            raise PriorGraphError(
                f"Every row of the parents must name a parent and a child. Got none at {table.place(at)}."
            )
        table.columns[role] = cells.map(name_of)
    children, above = table.columns["source"], table.columns["target"]
    up: dict[str, list[str]] = {}
    for low, high in zip(children, above, strict=True):
        up.setdefault(low, []).append(high)
    reached = dict.fromkeys(sets)
    queue = list(sets)
    while queue:
        for high in up.get(queue.pop(), ()):
            if high not in reached:
                reached[high] = None
                queue.append(high)
    if not any(name in up for name in sets):
        raise PriorGraphError(
            "The parents must hold a set of the file as a child. Got none of "
            f"{listing(map(show, sets), len(sets))} among the children {listing(map(show, up), len(up))}. "
            "Check child= and parent=, and how sets are named."
        )
    if ancestors_only:
        table.drop(
            np.array([name not in reached for name in children], dtype=bool),
            f"{table.unit} of {table.file} that leads up from no set of {rows.file} (ancestors_only=True)",
            keep_nodes=False,
        )
    pathways = {*sets, *table.columns["source"], *table.columns["target"]}
    both = [name for name in dict.fromkeys(rows.columns["source"]) if name in pathways]
    if both:
        raise PriorGraphError(
            f"In one graph of genes and sets no name may be both. Got {listing(map(show, both), len(both))}. "
            "Rename the genes or the sets."
        )
    orphans = [name for name in sets if name not in up]
    joined = Rows(
        rows.file,
        {
            role: pd.concat([rows.columns[role], table.columns[role]], ignore_index=True)
            for role in rows.columns
        },
        np.concatenate([np.asarray(rows.lines), np.asarray(table.lines)]),
        seen=rows.seen,
        dropped=[*rows.dropped, *table.dropped],
        nodes=list(sets),
        notes=rows.notes,
    )
    first = len(rows.lines)

    def place(row: int) -> str:
        return rows.place(row) if row < first else table.place(row - first)

    joined.where = place
    if orphans:
        joined.notes.append(
            f"{len(orphans):,} set(s) without a parent: {listing(map(show, orphans), len(orphans))}"
        )
    joined.notes.append(f"lines after the first {first:,} rows are those of the parents")
    return joined
