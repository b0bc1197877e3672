"""Simple interaction files: ``source type target target …`` on every line."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import listing, show
from pyg_kpnn.prior.readers import check_bytes, check_comment
from pyg_kpnn.prior.rows import Rows, check_flag, finish
from pyg_kpnn.prior.text import MAX_BYTES, Dialect, Seen, read_lines

if TYPE_CHECKING:
    from pyg_kpnn.prior.report import ReadReport

__all__ = ["read_sif"]

_BLANKS = re.compile(r"[ \t]+")


@overload
def read_sif(
    path: str | os.PathLike[str], *, return_report: Literal[False] = ..., **options: Any
) -> PriorGraph: ...
@overload
def read_sif(
    path: str | os.PathLike[str], *, return_report: Literal[True], **options: Any
) -> tuple[PriorGraph, ReadReport]: ...
def read_sif(  # type: ignore[misc]
    path: str | os.PathLike[str],
    *,
    sign_map: Mapping[Any, int] | None = None,
    read_signs: bool = True,
    sep: str | None = None,
    encoding: str = "utf-8-sig",
    comment: str | None = None,
    drop_self_loops: bool = False,
    nodes: Iterable[Any] | None = None,
    widths: Mapping[Any, int] | None = None,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    max_bytes: int = MAX_BYTES,
    return_report: bool = False,
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """Read a graph from a SIF file, as Cytoscape and CellNOpt write them.

    A line ``a type b c`` is the edges a → b and a → c; a line with one name only is a node without an edge
    (or one whose edges stand elsewhere). There is no header, and no cell is quoted.

    Parameters
    ----------
    path : path
        Any suffix; ``.gz`` is unpacked.
    sign_map : mapping from interaction type to -1, 0 or 1, optional
        Replaces the built-in table :data:`pyg_kpnn.prior.DEFAULT_SIGNS`, which holds ``1``, ``-1``, ``+``,
        ``-``, ``activates``, ``inhibits``, ``upregulates-expression`` and their like. To add to it, pass
        ``{**DEFAULT_SIGNS, "pp": 0}``. A type that is not in the table is an error.
    read_signs : bool, default True
        False leaves interaction types out of account.
    sep : {None, "\\t", " "}
        What cells are apart by; by default tabs if the file has any, else runs of blanks.
    encoding, comment, drop_self_loops, nodes, widths, on_duplicate, on_conflict, max_bytes, return_report
        As in :func:`~pyg_kpnn.prior.read_edgelist`.

    Returns
    -------
    PriorGraph, or (PriorGraph, ReadReport) with ``return_report=True``

    Raises
    ------
    FileNotFoundError
        No such file.
    PriorGraphError
        A line of two cells, an unknown interaction type, an empty cell between two tabs, and all errors of
        :func:`~pyg_kpnn.prior.read_edgelist`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.sif")
    ...     _ = path.write_text("EGF activates Ras PI3K\\nAkt inhibits Ras\\nalone\\n")
    ...     graph = read_sif(path)
    >>> graph.edges, graph.sign.tolist(), graph.nodes[-1]
    ((('Akt', 'Ras'), ('EGF', 'PI3K'), ('EGF', 'Ras')), [-1, 1, 1], 'alone')
    """
    path = Path(path)
    check_comment(comment)
    if sep not in (None, "\t", " "):
        raise PriorGraphError(f"'sep' of a SIF file must be None, a tab or a blank. Got {show(sep)}.")
    seen = Seen()
    with path.open("rb") as stream:
        records = list(
            read_lines(
                stream,
                path.name,
                Dialect("", encoding, comment),
                zipped=path.suffix.lower() == ".gz",
                max_bytes=check_bytes(max_bytes),
                seen=seen,
            )
        )
    if sep is None:  # in a file with tabs, names may hold blanks
        sep = "\t" if any("\t" in line for _, line in records) else " "
    rows = _rows(records, sep, path.name, check_flag(read_signs, "read_signs"))
    rows.seen = seen
    result: PriorGraph | tuple[PriorGraph, ReadReport] = finish(
        rows,
        return_report=check_flag(return_report, "return_report"),
        drop_self_loops=check_flag(drop_self_loops, "drop_self_loops"),
        nodes=nodes,
        widths=widths,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
    )
    return result


def _rows(records: list[tuple[int, str]], sep: str, file: str, read_signs: bool) -> Rows:
    import pandas as pd

    source: list[str] = []
    kind: list[str] = []
    target: list[str] = []
    lines = array("q")
    alone: list[str] = []
    faults: list[str] = []
    several = 0
    for number, text in records:
        if sep == "\t":
            cells = [cell.strip() for cell in text.rstrip("\t ").split("\t")]
        else:
            cells = _BLANKS.split(text.strip())
        if len(cells) == 1:
            alone.append(cells[0])
        elif len(cells) == 2 or not all(cells):
            faults.append(f"{show(text)} on line {number}")
        else:
            source.extend(cells[:1] * (len(cells) - 2))
            kind.extend(cells[1:2] * (len(cells) - 2))
            target.extend(cells[2:])
            lines.extend([number] * (len(cells) - 2))
            several += len(cells) > 3
    if faults:
        raise PriorGraphError(
            f"Every line of {file} must be a source, a type and targets, or one node. Got "
            f"{listing(faults, len(faults))}. Correct these lines, or pass another sep=."
        )
    columns = {"source": source, "target": target, **({"sign": kind} if read_signs else {})}
    rows = Rows(file, {role: pd.Series(cells, dtype=object) for role, cells in columns.items()}, lines)
    rows.nodes, rows.node_lines = alone, len(alone)
    if several:
        rows.notes.append(f"{several:,} line(s) name several targets, each an edge of its own")
    if not read_signs:
        types = list(dict.fromkeys(kind))
        rows.notes.append(f"interaction types that were not read: {listing(map(show, types), len(types))}")
    return rows
