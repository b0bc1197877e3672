"""Tables of numbers with names, as R and its friends write them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import listing, show, unknown_names
from pyg_kpnn.prior.text import Dialect, read_records

__all__ = ["Matrix", "read_matrix"]


class Matrix(NamedTuple):
    """A table: names of its columns, names of its rows (none where it has none), float64 values."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: np.ndarray

    def take(self, names: Sequence[str], what: str, axis: int = 1) -> np.ndarray:
        """Values in the order of ``names``, which must be those of the table, along an axis."""
        have = self.columns if axis else self.rows
        for one, other, which in ((names, have, "lacks"), (have, names, "also has")):
            known = set(other)
            odd = [name for name in one if name not in known]
            if odd:
                raise PriorGraphError(
                    f"{what} must name the same as the other raw files. It {which} "
                    f"{unknown_names(odd, other)}."
                )
        place = {name: at for at, name in enumerate(have)}
        return self.values.take([place[name] for name in names], axis)


def read_matrix(path: Path, sep: str, *, missing: bool = False) -> Matrix:
    """Read a table of numbers with a line of column names.

    Parameters
    ----------
    path : Path
        Text, or gzip where it ends in ``.gz``.
    sep : str
        Separator, or ``"whitespace"``.
    missing : bool, default False
        Whether ``NA`` and empty cells are allowed; they become NaN.

    Returns
    -------
    Matrix
        Rows have names where the line of column names is one short, or its first cell is empty.

    Raises
    ------
    PriorGraphError
        No rows, rows of unequal length, names twice, and cells that are no finite numbers.
    """
    with path.open("rb") as stream:
        records = list(read_records(stream, path.name, Dialect(sep), zipped=path.suffix == ".gz"))
    if len(records) < 2:
        raise PriorGraphError(f"{path.name} must have a line of names and at least one row. Got none.")
    header = [_name(cell) for cell in records[0][1]]
    body = records[1:]
    named = len(body[0][1]) == len(header) + 1
    if not named and not header[0]:
        named, header = True, header[1:]
    for line, cells in body:
        if len(cells) != len(header) + named:
            raise PriorGraphError(
                f"Rows of {path.name} must have {len(header) + named} cells. Got {len(cells)} on line {line}."
            )
    rows = [_name(cells[0]) for _, cells in body] if named else []
    for names, what in ((header, "columns"), (rows, "rows")):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise PriorGraphError(
                f"The {what} of {path.name} must have a name each. Got {listing(map(show, twice))} more than "
                "once."
            )
    values = np.array([[_number(c, missing) for c in cells[named:]] for _, cells in body], dtype=np.float64)
    bad = np.argwhere(np.isinf(values))
    if len(bad):
        row, column = map(int, bad[0])
        line, cells = body[row]
        raise PriorGraphError(
            f"Cells of {path.name} must be finite numbers. Got {show(cells[column + named])} on line {line}, "
            f"column {show(header[column])}."
        )
    return Matrix(tuple(header), tuple(rows), values)


def _name(cell: str) -> str:
    return cell.strip().strip('"')  # text between blanks keeps its quotes


def _number(cell: str, missing: bool) -> float:
    """The number in a cell, NaN where none is allowed, and infinity for what is no finite number."""
    text = cell.strip()
    if missing and text in ("", "NA"):
        return math.nan
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return value if math.isfinite(value) else math.inf
