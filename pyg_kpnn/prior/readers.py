"""Edgelists from text files, read as text."""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.assemble import assemble
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import SHOWN, listing, show
from pyg_kpnn.prior.text import MAX_BYTES, Dialect, read_records

__all__ = ["MAX_BYTES", "read_edgelist"]

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_RULE = re.compile(r"(?:^|[\s(])not\s*\(|\b(?:and|or)\s+\(|\)\s*(?:and|or)\b")
_WORD = re.compile(r"\b(?:and|or|not)\b")
_BETWEEN = re.compile(r"\b(?:and|or|not)\b|[()]")

Records = Iterator[tuple[int, list[str]]]


def read_edgelist(
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
    nodes: Iterable[Any] | None = None,
    widths: Mapping[Any, int] | None = None,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    sign_map: Mapping[Any, int] | None = None,
    max_bytes: int = MAX_BYTES,
) -> PriorGraph:
    """Read a graph from a CSV or TSV file with one line an edge.

    Every cell is text, so genes called ``NA``, ``null``, ``007``, ``MARCH1`` or ``1e5`` stay what they
    are. Surrounding blanks and a byte order mark are removed; only an empty cell counts as missing.
    Quoted cells, CRLF and CR line ends and blank lines are handled. A file is read as data only, whoever
    wrote it: in bounded time and memory, and no cell of it is ever evaluated.

    Parameters
    ----------
    path : path
        ``.csv`` (comma), ``.tsv`` or ``.txt`` (tab), each also with ``.gz``.
    source, target : str or int, default "source" and "target" (0 and 1 without a header)
        Column name, or column position counted from 0.
    sign, weight : str or int, optional
        Not read unless named; as in :meth:`PriorGraph.from_pandas`.
    sep : str, optional
        One character; by default chosen by the suffix.
    header : bool, default True
        Whether the first line holds column names. Without one, columns are given by position.
    encoding : str, default "utf-8-sig"
        UTF-8 with or without a byte order mark.
    comment : str, optional
        Lines starting with it are skipped.
    nodes, widths, on_duplicate, on_conflict, sign_map
        As in :meth:`PriorGraph.from_pandas`.
    max_bytes : int, default 268435456 (256 MiB)
        Most bytes of text to read, counted after unpacking ``.gz``. Ten million edges of short names fit.

    Returns
    -------
    PriorGraph

    Raises
    ------
    FileNotFoundError
        No such file.
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
    path = Path(path)
    if comment is not None and (not isinstance(comment, str) or not comment):
        raise PriorGraphError(f"'comment' must be None or the text a comment begins with. Got {comment!r}.")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, Integral) or max_bytes < 1:
        raise PriorGraphError(f"'max_bytes' must be a positive whole number. Got {max_bytes!r}.")
    dialect = Dialect(_separator(path, sep), encoding, comment)
    with path.open("rb") as stream:
        zipped = path.suffix.lower() == ".gz"
        records = read_records(stream, path.name, dialect, zipped=zipped, max_bytes=int(max_bytes))
        wanted = {"source": source, "target": target, "sign": sign, "weight": weight}
        columns, place = _read_columns(records, path.name, wanted, header)
    return assemble(
        columns.pop("source"),
        columns.pop("target"),
        **columns,
        nodes=nodes,
        widths=widths,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
        place=place,
    )


def _read_columns(
    records: Records, file: str, wanted: Mapping[str, Any], header: bool
) -> tuple[dict[str, Any], Callable[[int], str]]:
    """The wanted columns as pandas Series, and a function that says where a row came from."""
    import pandas as pd

    first = next(records, None)
    if first is None:
        raise PriorGraphError(f"An edgelist must have at least one line. Got nothing in {file}.")
    names = [cell.strip() for cell in first[1]] if header else None
    width = len(first[1])
    if not header:  # the default names stand for the default positions
        records = _chain(first, records)
        defaults = {"source": ("source", 0), "target": ("target", 1)}
        wanted = {
            role: defaults[role][1] if role in defaults and label == defaults[role][0] else label
            for role, label in wanted.items()
        }
    at = {
        role: _column(label, role, names, width, file, records)
        for role, label in wanted.items()
        if label is not None
    }

    lines = array("q")
    columns: dict[str, list[Any]] = {role: [] for role in at}
    once: dict[str, str] = {}  # one object for all cells that say the same
    ragged: list[str] = []
    odd = 0
    for line, cells in records:
        if len(cells) != width:
            odd += 1
            if odd <= SHOWN:
                ragged.append(f"{len(cells)} on line {line}")
            continue
        lines.append(line)
        for role, column in columns.items():
            cell = cells[at[role]].strip()
            column.append(_number(cell) if role == "weight" else once.setdefault(cell, cell))
    if odd:
        raise PriorGraphError(
            f"Every line of {file} must have {width} cells, like its first. Got {listing(ragged, odd)}. "
            "Correct these lines, or pass another sep=."
        )

    def place(row: int) -> str:
        return f"line {lines[row]} of {file}"

    _refuse_rules(columns["source"], columns["target"], place)
    return {role: pd.Series(column, dtype=object) for role, column in columns.items()}, place


def _chain(first: tuple[int, list[str]], rest: Records) -> Records:
    yield first
    yield from rest


def _number(cell: str) -> Any:
    """The number a cell spells, or the cell itself, for the error message to show."""
    try:
        # Python also reads 1_000 and digits of other scripts; in a table they are slips
        return float(cell) if cell.isascii() and "_" not in cell else cell
    except ValueError:
        return cell


def _separator(path: Path, sep: str | None) -> str:
    if sep is None:
        suffixes = [s.lower() for s in path.suffixes]
        last = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
        sep = _SEPARATORS.get(last[0]) if last else None
        if sep is None:
            raise PriorGraphError(
                f"The separator follows from the suffix .csv, .tsv or .txt (also .gz). Got {path.name!r}. "
                "Pass sep=."
            )
    if not isinstance(sep, str) or len(sep) != 1 or sep in '\r\n"\0':
        raise PriorGraphError(f"'sep' must be one character. Got {sep!r}.")
    return sep


def _column(label: Any, role: str, names: list[str] | None, width: int, file: str, records: Records) -> int:
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < width:
            return label
    elif names is not None and names.count(label) == 1:
        return names.index(label)
    there = (
        f"the columns {listing(map(show, names), len(names))}"
        if names is not None
        else f"{width} columns and no header"
    )
    hint = f"Name it with {role}=."
    if names is None and not isinstance(label, int):
        hint = "Without a header columns are given by position, counted from 0."
    elif names is not None and names.count(label) > 1:
        hint = f"The name stands there {names.count(label)} times: give the position instead."
    elif any(_RULE.search(cell) for _, row in islice(records, 100) for cell in row):
        hint = "The cells read like Boolean rules: this file is not an edgelist."
    elif width == 1:
        hint = "With one column only, the separator may be another one: pass sep=."
    raise PriorGraphError(f"{file} must have one {role} column {show(label)}. Got {there}. {hint}")


def _refuse_rules(sources: list[str], targets: list[str], place: Callable[[int], str]) -> None:
    """A table of Boolean rules parses as an edgelist with nonsense names; say so instead.

    A pathway may well be called "repair and recombination". A rule has brackets after its operators, or
    operands that are all names of the first column; and rules fill a good part of the file.
    """
    known = set(sources)

    def is_rule(cell: str) -> bool:
        if not _WORD.search(cell):
            return False
        if _RULE.search(cell):
            return True
        operands = [part for each in _BETWEEN.split(cell) if (part := each.strip())]
        return bool(operands) and known.issuperset(operands)

    counts = Counter(targets)
    rules = {cell for cell in counts if is_rule(cell)}
    if rules and sum(counts[cell] for cell in rules) * 5 >= len(targets):
        row = next(row for row, cell in enumerate(targets) if cell in rules)
        raise PriorGraphError(
            f"An edgelist must have one node a cell. Got a Boolean rule on {place(row)}: "
            f"{show(targets[row])}. Turn the rules into one line an edge first."
        )
