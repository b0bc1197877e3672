"""Edgelists from text files, read as text."""

from __future__ import annotations

import csv
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.assemble import assemble
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import listing

__all__ = ["read_edgelist"]

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_RULE = re.compile(r"(?:^|[\s(])not\s*\(|\b(?:and|or)\s+\(|\)\s*(?:and|or)\b")
_OPERATOR = re.compile(r"\s*(?:\b(?:and|or|not)\b|[()])\s*")


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
) -> PriorGraph:
    """Read a graph from a CSV or TSV file with one line an edge.

    Every cell is text, so genes called ``NA``, ``null``, ``007``, ``MARCH1`` or ``1e5`` stay what they
    are. Surrounding blanks and a byte order mark are removed; only an empty cell counts as missing.
    Quoted cells, CRLF line ends and blank lines are handled.

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

    Returns
    -------
    PriorGraph

    Raises
    ------
    FileNotFoundError
        No such file.
    PriorGraphError
        Not an edgelist, columns that are not there, lines of unequal length, empty names (with line
        numbers counted from 1), text that does not decode, and all errors of
        :meth:`PriorGraph.from_pandas`.

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
    import pandas as pd

    path = Path(path)
    sep = _separator(path, sep)
    if comment is not None and (not isinstance(comment, str) or not comment):
        raise PriorGraphError(f"'comment' must be None or the text a comment begins with. Got {comment!r}.")
    try:
        lines, rows = _read_rows(path, sep, encoding, comment)
    except UnicodeError as error:
        raise PriorGraphError(
            f"{path.name} must be text in {encoding}. Got bytes that are not ({error}). Pass encoding=."
        ) from error
    except LookupError as error:
        raise PriorGraphError(f"'encoding' must be a known text encoding. Got {encoding!r}.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PriorGraphError(
            f"{path.name} must be a whole gzip file. Got one that is not ({error})."
        ) from error
    if not rows:
        raise PriorGraphError(f"An edgelist must have at least one line. Got nothing in {path.name}.")

    names = rows[0] if header else None
    if header:
        lines, rows = lines[1:], rows[1:]
    wanted = {"source": source, "target": target, "sign": sign, "weight": weight}
    if not header:  # the default names stand for the default positions
        wanted["source"] = 0 if source == "source" else source
        wanted["target"] = 1 if target == "target" else target
    width = len(names) if names is not None else len(rows[0])
    columns = {
        role: _column(label, role, names, width, path, rows)
        for role, label in wanted.items()
        if label is not None
    }
    ragged = [i for i, row in enumerate(rows) if len(row) != width]
    if ragged:
        shown = (f"{len(rows[i])} on line {lines[i]}" for i in ragged)
        raise PriorGraphError(
            f"Every line of {path.name} must have {width} cells, like its first. Got "
            f"{listing(shown, len(ragged))}. Correct these lines, or pass another sep=."
        )
    _refuse_rules(rows, columns["source"], columns["target"], lines, path)
    series = {role: pd.Series([row[at] for row in rows], dtype=object) for role, at in columns.items()}
    if "weight" in series:
        series["weight"] = series["weight"].map(_number)
    return assemble(
        series.pop("source"),
        series.pop("target"),
        **series,
        nodes=nodes,
        widths=widths,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
        place=lambda row: f"line {lines[row]} of {path.name}",
    )


def _number(cell: str) -> Any:
    """The number a cell spells, or the cell itself, for the error message to show."""
    try:
        return float(cell)
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
    if not isinstance(sep, str) or len(sep) != 1 or sep in '\r\n"':
        raise PriorGraphError(f"'sep' must be one character. Got {sep!r}.")
    return sep


class _Lines:
    """Lines of a file without comments, remembering where the current record began."""

    def __init__(self, file: IO[str], comment: str | None) -> None:
        self._file = file
        self._comment = comment
        self.now = 0
        self.first: int | None = None

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.now += 1
            if self._comment is None or not line.lstrip().startswith(self._comment):
                if self.first is None:
                    self.first = self.now
                yield line.lstrip("\ufeff") if self.now == 1 else line


def _read_rows(path: Path, sep: str, encoding: str, comment: str | None) -> tuple[list[int], list[list[str]]]:
    """Stripped cells of every line that is not blank, and the line each began on (counted from 1)."""
    numbers: list[int] = []
    rows: list[list[str]] = []
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rt", encoding=encoding, newline="") as file:
        lines = _Lines(file, comment)
        reader = csv.reader(lines, delimiter=sep, strict=True)
        try:
            for row in reader:
                cells = [cell.strip() for cell in row]
                if len(cells) > 1 or (cells and cells[0]):
                    numbers.append(lines.first or lines.now)
                    rows.append(cells)
                lines.first = None
        except csv.Error as error:
            raise PriorGraphError(
                f"{path.name} must be well-formed separated text. Got a fault in the record that begins on "
                f"line {lines.first or lines.now} ({error}). Correct the line, or pass another sep=."
            ) from error
    return numbers, rows


def _column(
    label: Any, role: str, names: list[str] | None, width: int, path: Path, rows: list[list[str]]
) -> int:
    there = (
        f"the columns {listing(map(repr, names), len(names))}"
        if names is not None
        else f"{width} columns and no header"
    )
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < width:
            return label
    elif names is not None and names.count(label) == 1:
        return names.index(label)
    hint = f"Name it with {role}=."
    if names is None and not isinstance(label, int):
        hint = "Without a header columns are given by position, counted from 0."
    elif names is not None and names.count(label) > 1:
        hint = f"The name stands there {names.count(label)} times: give the position instead."
    elif any(_RULE.search(cell) for row in rows[:100] for cell in row):
        hint = "The cells read like Boolean rules: this file is not an edgelist."
    elif width == 1:
        hint = "With one column only, the separator may be another one: pass sep=."
    raise PriorGraphError(f"{path.name} must have one {role} column {label!r}. Got {there}. {hint}")


def _refuse_rules(rows: list[list[str]], source: int, target: int, lines: list[int], path: Path) -> None:
    """A table of Boolean rules parses as an edgelist with nonsense names; say so instead.

    A pathway may well be called "repair and recombination". A rule has brackets after its operators, or
    operands that are all names of the first column; and rules fill a good part of the file.
    """
    known = {row[source] for row in rows}

    def is_rule(cell: str) -> bool:
        if _RULE.search(cell):
            return True
        parts = _OPERATOR.split(cell)
        return len(parts) > 1 and all(part in known for part in parts if part)

    found = [i for i, row in enumerate(rows) if is_rule(row[target])]
    if found and len(found) * 5 >= len(rows):
        raise PriorGraphError(
            f"An edgelist must have one node a cell. Got a Boolean rule on line {lines[found[0]]} of "
            f"{path.name}: {rows[found[0]][target]!r}. Turn the rules into one line an edge first."
        )
