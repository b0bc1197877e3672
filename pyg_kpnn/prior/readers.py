"""Edgelists from files: text, read as text, and parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import check_choice, listing, show
from pyg_kpnn.prior.rows import Rows, check_flag, finish
from pyg_kpnn.prior.tables import read_parquet, read_text, suffix_of
from pyg_kpnn.prior.text import MAX_BYTES

if TYPE_CHECKING:
    from pyg_kpnn.prior.report import ReadReport

__all__ = ["MAX_BYTES", "check_bytes", "check_comment", "check_count", "read_edgelist", "read_table"]


# The overloads only tell whether a report comes with the graph; the options are those below.
@overload
def read_edgelist(
    path: str | os.PathLike[str], *, return_report: Literal[False] = ..., **options: Any
) -> PriorGraph: ...
@overload
def read_edgelist(
    path: str | os.PathLike[str], *, return_report: Literal[True], **options: Any
) -> tuple[PriorGraph, ReadReport]: ...
def read_edgelist(  # type: ignore[misc]
    path: str | os.PathLike[str],
    *,
    source: str | int = "source",
    target: str | int = "target",
    sign: str | int | None = None,
    weight: str | int | None = None,
    sep: str | None = None,
    header: bool = True,
    encoding: str = "utf-8-sig",
    comment: str | None = None,
    skip_lines: int = 0,
    keep_nonzero: str | int | None = None,
    drop_self_loops: bool = False,
    on_bad_row: str = "error",
    bipartite: bool = False,
    nodes: Iterable[Any] | None = None,
    widths: Mapping[Any, int] | None = None,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    sign_map: Mapping[Any, int] | None = None,
    max_bytes: int = MAX_BYTES,
    return_report: bool = False,
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """Read a graph from a CSV, TSV or parquet file with one row an edge.

    Every cell is text, so genes called ``NA``, ``null``, ``007``, ``MARCH1`` or ``1e5`` stay what they
    are. Surrounding blanks and a byte order mark are removed; only an empty cell counts as missing.
    Quoted cells, CRLF and CR line ends and blank lines are handled. A file is read as data only, whoever
    wrote it: in bounded time and memory, and no cell of it is ever evaluated.

    Parameters
    ----------
    path : path
        ``.csv`` (comma), ``.tsv`` or ``.txt`` (tab), each also with ``.gz``; or ``.parquet`` (extra
        ``parquet``), where names may be text or whole numbers and are taken as they are.
    source, target : str or int, default "source" and "target" (0 and 1 without a header)
        Column name, or column position counted from 0.
    sign, weight : str or int, optional
        Not read unless named; as in :meth:`PriorGraph.from_pandas`.
    sep : str, optional
        One character, or ``"whitespace"`` for columns apart by any blanks; by default chosen by the suffix.
    header : bool, default True
        Whether the first line holds column names. Without one, columns are given by position.
    encoding : str, default "utf-8-sig"
        UTF-8 with or without a byte order mark.
    comment : str, optional
        Lines starting with it are skipped.
    skip_lines : int, default 0
        Lines before the table.
    keep_nonzero : str or int, optional
        A column of numbers; rows with 0 there are no edges and are dropped, their names stay nodes. For
        files that list every pair with 0 or 1.
    drop_self_loops : bool, default False
        Leave out edges from a node to itself; the nodes stay.
    on_bad_row : {"error", "drop"}, default "error"
        What to do with lines of another number of cells than the first, and rows that lack a name.
    bipartite : bool, default False
        Sources and targets are two sets of nodes, as in :meth:`PriorGraph.bipartite`.
    nodes, widths, on_duplicate, on_conflict, sign_map
        As in :meth:`PriorGraph.from_pandas`.
    max_bytes : int, default 268435456 (256 MiB)
        Most bytes of text to read, counted after unpacking ``.gz``. Ten million edges of short names fit.
    return_report : bool, default False
        Also return what was read, kept and dropped.

    Returns
    -------
    PriorGraph, or (PriorGraph, ReadReport) with ``return_report=True``

    Raises
    ------
    FileNotFoundError
        No such file.
    ImportError
        A parquet file without pyarrow.
    PriorGraphError
        Not an edgelist, columns that are not there, lines of unequal length, empty names (with line
        numbers counted from 1), text that does not decode or holds NUL characters, more than ``max_bytes``,
        a record of over a million characters, and all errors of :meth:`PriorGraph.from_pandas`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.tsv")
    ...     _ = path.write_text("crp\\tlacZ\\t+\\nlacI\\tlacZ\\t-\\n")
    ...     graph = read_edgelist(path, header=False, sign=2)
    >>> graph.edges, graph.sign.tolist()
    ((('crp', 'lacZ'), ('lacI', 'lacZ')), [1, -1])
    """
    rows = read_table(
        Path(path),
        {"source": source, "target": target, "sign": sign, "weight": weight, "keep_nonzero": keep_nonzero},
        sep=sep,
        header=header,
        encoding=encoding,
        comment=comment,
        skip_lines=skip_lines,
        max_bytes=max_bytes,
        on_bad_row=on_bad_row,
        look=check_flag(return_report, "return_report"),
    )
    rows.sides = ([], []) if check_flag(bipartite, "bipartite") else None
    if keep_nonzero is not None:
        _keep_nonzero(rows, keep_nonzero)
    result: PriorGraph | tuple[PriorGraph, ReadReport] = finish(
        rows,
        return_report=return_report,
        drop_self_loops=check_flag(drop_self_loops, "drop_self_loops"),
        nodes=nodes,
        widths=widths,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
    )
    return result


def check_bytes(max_bytes: Any) -> int:
    """Refuse a bound on bytes that is no positive whole number."""
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, Integral) or max_bytes < 1:
        raise PriorGraphError(f"'max_bytes' must be a positive whole number. Got {max_bytes!r}.")
    return int(max_bytes)


def check_comment(comment: Any) -> None:
    """Refuse a comment mark that is no text."""
    if comment is not None and (not isinstance(comment, str) or not comment):
        raise PriorGraphError(f"'comment' must be None or the text a comment begins with. Got {comment!r}.")


def check_count(skip_lines: Any) -> int:
    """Refuse a number of lines to skip that is no whole number of at least 0."""
    if isinstance(skip_lines, bool) or not isinstance(skip_lines, Integral) or skip_lines < 0:
        raise PriorGraphError(f"'skip_lines' must be a whole number of at least 0. Got {skip_lines!r}.")
    return int(skip_lines)


def read_table(
    path: Path,
    wanted: Mapping[str, Any],
    *,
    sep: str | None = None,
    header: bool = True,
    encoding: str = "utf-8-sig",
    comment: str | None = None,
    skip_lines: int = 0,
    max_bytes: int = MAX_BYTES,
    on_bad_row: str = "error",
    look: bool = False,
) -> Rows:
    """The wanted columns of a table; its suffix says how to read it."""
    check_comment(comment)
    check_choice(on_bad_row, ("error", "drop"), "on_bad_row")
    limit, skip = check_bytes(max_bytes), check_count(skip_lines)
    if suffix_of(path) == ".parquet":
        given = {
            "sep": sep is not None,
            "header": not header,
            "comment": comment is not None,
            "skip_lines": skip,
        }
        unused = [name for name, there in given.items() if there]
        if unused:
            raise PriorGraphError(
                f"A parquet file has columns with names. Got {listing(unused)} for {path.name}, which are "
                "options of text. Drop them."
            )
        return read_parquet(path, wanted, max_bytes=limit, drop_bad=on_bad_row == "drop")
    return read_text(
        path,
        wanted,
        sep=sep,
        header=header,
        encoding=encoding,
        comment=comment,
        skip_lines=skip,
        max_bytes=limit,
        drop_bad=on_bad_row == "drop",
        look=look,
    )


def _keep_nonzero(rows: Rows, label: str | int) -> None:
    """Drop the rows that say there is no edge."""
    column = rows.columns.pop("keep_nonzero")
    values = [cell if _is_number(cell) else np.nan for cell in column]
    numbers = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(np.isnan(numbers))
    if len(bad):
        shown = (f"{show(column[int(row)])} at {rows.place(int(row))}" for row in bad)
        raise PriorGraphError(
            f"The column of keep_nonzero= must hold numbers. Got {listing(shown, len(bad))}. "
            "Correct these cells, or name another column."
        )
    rows.drop(numbers == 0, f"0 in column {show(label)} (keep_nonzero=)")


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float)) and abs(cell) < 1e300
