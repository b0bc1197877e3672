"""Tables of measurements from files, with every name as it is written."""

from __future__ import annotations

import csv
import gzip
import io
import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import listing, near_names, show
from pyg_kpnn.prior.tables import SEPARATORS, suffix_of

__all__ = ["read_measurements"]

_FORMATS = (*SEPARATORS, ".parquet", ".h5ad")


def read_measurements(
    path: str | os.PathLike[str], *, index: str | None = None, sep: str | None = None
) -> Any:
    """Read a table of measurements.

    Parameters
    ----------
    path : path
        ``.csv``, ``.tsv`` and ``.txt`` (tabs), also with ``.gz`` behind; ``.parquet``; ``.h5ad`` (extra
        ``anndata``).
    index : str, optional
        The column with the names of the rows. Default: a first column without a name, else none.
    sep : str, optional
        Of a text file, instead of what its suffix says.

    Returns
    -------
    pandas.DataFrame or anndata.AnnData
        For :func:`from_frame` or :func:`from_anndata`. Cells that are empty or ``NA`` are missing values;
        in the names of columns nothing is changed, and two with one name are an error.

    Raises
    ------
    PriorGraphError
        A file that is not there, not readable as its suffix says, without rows, or with a column twice.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "cells.csv")
    ...     _ = path.write_text(",TP53,MYC\\ncell 1,0.5,NA\\n")
    ...     read_measurements(path)
            TP53  MYC
    cell 1   0.5  NaN
    """
    place = Path(os.fspath(path))
    suffix, zipped = suffix_of(place), place.suffix.lower() == ".gz"
    if suffix not in _FORMATS or (zipped and suffix not in SEPARATORS):
        raise PriorGraphError(
            f"The suffix of a table must be one of {', '.join(_FORMATS)}, those of text also with .gz. "
            f"Got {show(place.name)}."
        )
    if not place.is_file():
        raise PriorGraphError(f"A table must be a file. Got {show(str(place))}, which is not there.")
    try:
        if suffix == ".h5ad":
            return _anndata(place)
        if suffix == ".parquet":
            return _parquet(place, index)
        return _text(place, sep or SEPARATORS[suffix], index, zipped)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise PriorGraphError(f"{place.name} must be a readable {suffix} file: {error}") from error


def _text(place: Path, sep: str, index: str | None, zipped: bool) -> Any:
    import pandas as pd

    opened: Any = gzip.open if zipped else open
    with opened(place, "rt", encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file, delimiter=sep), [])
        rest = file.read()
    if not names:
        raise PriorGraphError(f"{place.name} must begin with a line of column names. Got an empty file.")
    other = next((mark for mark in ";\t,|" if len(names) == 1 and mark in names[0] and mark != sep), None)
    if other is not None:
        raise PriorGraphError(
            f"The columns of {place.name} must have {sep!r} between them. Got one column, {show(names[0])}. "
            f"Pass sep={other!r}."
        )
    row_names = _row_names(names, index, place)
    try:
        # Columns by position: pandas would call the second of two "a" "a.1", and no one would know.
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of rows whose end would be cut off
            frame = pd.read_csv(
                io.StringIO(rest), sep=sep, header=None, names=list(range(len(names))), index_col=False
            )
    except pd.errors.ParserWarning:
        raise PriorGraphError(
            f"Rows of {place.name} must have {len(names)} cells, as its first line. Got a longer one. "
            "Numbers must have a decimal point, no comma."
        ) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise PriorGraphError(f"{place.name} must be a table: {str(error).splitlines()[0]}") from error
    return _named(frame, names, row_names, place)


def _row_names(names: list[str], index: str | None, place: Path) -> int | None:
    """Position of the column with the names of the rows, when every other column has a name of its own."""
    at = {name: position for position, name in enumerate(names)}
    if index is not None and index not in at:
        raise PriorGraphError(
            f"The column of row names must be in {place.name}. Got {show(index)}{near_names(index, names)}."
        )
    found = at[index] if index is not None else 0 if names[0].strip() == "" else None
    counts = Counter(name for position, name in enumerate(names) if position != found)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise PriorGraphError(
            f"Every column of {place.name} must have a name of its own. Got {listing(map(show, twice))} "
            "more than once."
        )
    return found


def _named(frame: Any, names: list[str], row_names: int | None, place: Path) -> Any:
    if not len(frame):
        raise PriorGraphError(f"{place.name} must have at least one row. Got column names alone.")
    if row_names is not None:
        frame = frame.set_index(frame.columns[row_names])
        names = names[:row_names] + names[row_names + 1 :]
        frame.index.name = None
    frame.columns = names
    return frame


def _parquet(place: Path, index: str | None) -> Any:
    import pandas as pd

    try:
        frame = pd.read_parquet(place)
    except ImportError as error:
        raise PriorGraphError('Parquet files need pyarrow: pip install "pyg_kpnn[parquet]".') from error
    except ValueError as error:  # pyarrow's errors are such
        raise PriorGraphError(f"{place.name} must be a readable .parquet file: {error}") from error
    if index is None:
        return frame
    names = [str(name) for name in frame.columns]
    return _named(frame, names, _row_names(names, index, place), place)


def _anndata(place: Path) -> Any:
    try:
        import anndata
    except ImportError as error:
        raise PriorGraphError('.h5ad files need anndata: pip install "pyg_kpnn[anndata]".') from error
    try:
        with warnings.catch_warnings():  # of files of older versions, which are read all the same
            warnings.filterwarnings("ignore", "Moving element from", FutureWarning)
            return anndata.read_h5ad(place)
    except (KeyError, ValueError) as error:  # its own error is an OSError
        raise PriorGraphError(f"{place.name} must be a readable .h5ad file: {error}") from error
