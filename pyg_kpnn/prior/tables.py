"""The wanted columns of a table: separated text or parquet."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import SHOWN, listing, show
from pyg_kpnn.prior.report import DroppedRows
from pyg_kpnn.prior.rows import Rows
from pyg_kpnn.prior.text import WHITESPACE, Dialect, Seen, read_records

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SEPARATORS", "looks_like_rules", "read_parquet", "read_text", "separator", "suffix_of"]

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_RULE = re.compile(r"(?:^|[\s(])not\s*\(|\b(?:and|or)\s+\(|\)\s*(?:and|or)\b")
_WORD = re.compile(r"\b(?:and|or|not)\b")
_BETWEEN = re.compile(r"\b(?:and|or|not)\b|[()]")
#: Columns whose cells are numbers.
_NUMBERS = ("weight", "keep_nonzero")

Records = Iterator[tuple[int, list[str]]]


def suffix_of(path: Path) -> str:
    """The suffix that says what a file is, in lower case: ``".csv"`` of ``net.csv.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    return last[0] if last else ""


def read_text(
    path: Path,
    wanted: Mapping[str, Any],
    *,
    sep: str | None,
    header: bool,
    encoding: str,
    comment: str | None,
    skip_lines: int,
    max_bytes: int,
    drop_bad: bool,
    look: bool,
) -> Rows:
    """The wanted columns of separated text; ``look`` also notes quirks of the cells, which costs time."""
    seen = Seen()
    dialect = Dialect(separator(path, sep), encoding, comment, skip_lines)
    with path.open("rb") as stream:
        zipped = path.suffix.lower() == ".gz"
        records = read_records(stream, path.name, dialect, zipped=zipped, max_bytes=max_bytes, seen=seen)
        rows = _read_columns(records, path.name, wanted, header, drop_bad, dialect.sep if look else None)
    rows.seen = seen
    if drop_bad:
        _drop_nameless(rows)
    _refuse_rules(rows)
    return rows


def _drop_nameless(rows: Rows) -> None:
    source, target = (rows.columns[role] for role in ("source", "target"))
    missing = source.isna() | target.isna() | (source == "") | (target == "")
    rows.drop(missing.to_numpy(), "no name of source or target (on_bad_row='drop')", keep_nodes=False)


def _read_columns(
    records: Records, file: str, wanted: Mapping[str, Any], header: bool, drop_bad: bool, sep: str | None
) -> Rows:
    """The wanted columns as pandas Series, with the lines they came from."""
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
    odd: list[int] = []
    holding = 0
    for line, cells in records:
        if len(cells) != width:
            odd.append(line)
            if len(odd) <= SHOWN:
                ragged.append(f"{len(cells)} on line {line}")
            continue
        lines.append(line)
        for role, column in columns.items():
            cell = cells[at[role]].strip()
            column.append(_number(cell) if role in _NUMBERS else once.setdefault(cell, cell))
        if sep is not None and any(sep in cell for cell in cells):
            holding += 1
    if odd and not drop_bad:
        raise PriorGraphError(
            f"Every line of {file} must have {width} cells, like its first. Got {listing(ragged, len(odd))}. "
            "Correct these lines, or pass another sep=."
        )
    rows = Rows(file, {role: pd.Series(cells, dtype=object) for role, cells in columns.items()}, lines)
    if odd:
        rows.dropped.append(
            DroppedRows(f"not {width} cells (on_bad_row='drop')", tuple(odd), (("", ""),) * len(odd))
        )
    if holding:
        rows.notes.append(f"{holding:,} row(s) have quoted cells that hold the separator {sep!r}")
    if names is None:
        rows.notes.append(f"no header: source is column {at['source']}, target column {at['target']}")
    rest = [name for i, name in enumerate(names or map(str, range(width))) if i not in at.values()]
    if rest:
        rows.notes.append(f"columns that were not read: {listing(map(show, rest), len(rest))}")
    return rows


def read_parquet(path: Path, wanted: Mapping[str, Any], *, max_bytes: int, drop_bad: bool) -> Rows:
    """The wanted columns of a parquet file; names are taken as they are, blanks included."""
    try:
        import pyarrow.parquet as pq  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            'Parquet files are read with pyarrow. Got none. Install it: pip install "pyg_kpnn[parquet]"'
        ) from error
    import pandas as pd

    with path.open("rb") as stream:
        try:
            file = pq.ParquetFile(stream)
            schema, meta = file.schema_arrow, file.metadata
            sizes = [
                (str(part.path_in_schema).partition(".")[0], int(part.total_uncompressed_size))
                for group in range(meta.num_row_groups)
                for part in map(meta.row_group(group).column, range(meta.num_columns))
            ]
        except Exception as error:  # whatever pyarrow raises about bytes that are no parquet file
            raise _no_parquet(path.name, error) from error
        names = [str(name) for name in schema.names]
        at = {
            role: _column(label, role, names, len(names), path.name, iter(()))
            for role, label in wanted.items()
            if label is not None
        }
        picked = [names[i] for i in at.values()]
        for role, i in at.items():
            kind = schema.field(i).type
            if kind.num_fields or "binary" in str(kind):
                raise PriorGraphError(
                    f"The {role} column {show(names[i])} of {path.name} must hold text or numbers. "
                    f"Got {kind}. Write it as text."
                )
        left = max_bytes - sum(size for name, size in sizes if name in picked)
        columns: dict[str, list[Any]] = {role: [] for role in at}
        try:
            stream.seek(0)
            # text stays coded, so that a small file of many equal cells is small in memory too
            file = pq.ParquetFile(stream, read_dictionary=picked)
            for batch in file.iter_batches(batch_size=1 << 16, columns=picked) if left >= 0 else ():
                left -= batch.nbytes
                if left < 0:
                    break
                for role, i in at.items():
                    columns[role].extend(_cells(batch.column(names[i])))
        except Exception as error:
            raise _no_parquet(path.name, error) from error
    if left < 0:
        raise PriorGraphError(
            f"{path.name} must hold at most {max_bytes:,} bytes, once unpacked. Got more. "
            "If that is what it should hold, pass a larger max_bytes=."
        )
    series = {role: pd.Series(cells, dtype=object) for role, cells in columns.items()}
    rows = Rows(path.name, series, np.arange(1, len(series["source"]) + 1), unit="row")
    rest = [name for i, name in enumerate(names) if i not in at.values()]
    if rest:
        rows.notes.append(f"columns that were not read: {listing(map(show, rest), len(rest))}")
    if drop_bad:
        _drop_nameless(rows)
    return rows


def _cells(column: Any) -> list[Any]:
    """Cells of an arrow column; equal ones of coded text are one object."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    words = column.dictionary.to_pylist()
    return [None if code is None else words[code] for code in column.indices.to_pylist()]


def _no_parquet(file: str, error: Exception) -> PriorGraphError:
    return PriorGraphError(f"{file} must be a parquet file. Got one that does not read ({show(str(error))}).")


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


def separator(path: Path, sep: str | None) -> str:
    """The separator given, or the one the suffix stands for."""
    if sep is None:
        sep = SEPARATORS.get(suffix_of(path))
        if sep is None:
            raise PriorGraphError(
                f"The separator follows from the suffix .csv, .tsv or .txt (also .gz). Got {path.name!r}. "
                "Pass sep=."
            )
    if sep == WHITESPACE:
        return sep
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


def looks_like_rules(sources: pd.Series, targets: pd.Series) -> int | None:
    """The first row that holds a Boolean rule, if the table is one of rules; else None.

    A table of rules parses as an edgelist with nonsense names. But a pathway may well be called "repair and
    recombination". A rule has brackets after its operators, or operands that are all names of the first
    column; and rules fill a good part of the file.
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
        return next(row for row, cell in enumerate(targets) if cell in rules)
    return None


def _refuse_rules(rows: Rows) -> None:
    row = looks_like_rules(rows.columns["source"], rows.columns["target"])
    if row is not None:
        raise PriorGraphError(
            f"An edgelist must have one node a cell. Got a Boolean rule on {rows.place(row)}: "
            f"{show(rows.columns['target'][row])}. Turn the rules into one line an edge first."
        )
