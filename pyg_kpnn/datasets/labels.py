"""Labels of samples as classes with names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import brief, check_choice, encode, listing, look_alikes, name_of, show

__all__ = ["Classes", "classes_of", "unique_samples"]


class Classes(NamedTuple):
    """Class of every kept sample.

    Attributes
    ----------
    codes : ndarray
        int64 (kept,), positions in ``names``.
    names : tuple of str
        Categories in their order, those without a sample too; other labels sorted.
    kept : ndarray
        int64 (kept,), positions of the samples with a label.
    """

    codes: np.ndarray
    names: tuple[str, ...]
    kept: np.ndarray


def unique_samples(labels: Any, advice: str) -> tuple[str, ...]:
    """Names of the samples, each once."""
    names = tuple(name_of(label, "Sample names") for label in labels)
    first: dict[str, int] = {}
    twice = [
        f"{show(name)} at rows {first[name]} and {row}"
        for row, name in enumerate(names)
        if first.setdefault(name, row) != row
    ]
    if twice:
        raise PriorGraphError(f"Every sample must have a name of its own. Got {listing(twice)}. {advice}")
    return names


def classes_of(column: Any, samples: Sequence[str], missing: str, what: str) -> Classes:
    """Classes from a pandas column with one label a sample.

    Raises
    ------
    PriorGraphError
        Labels that are missing (by sample, unless ``missing="drop"``), measured numbers instead of
        classes, or labels that are different values but one text.
    """
    import pandas as pd

    check_choice(missing, ("error", "drop"), "missing_labels")
    column = column.reset_index(drop=True)
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, values = np.asarray(column.cat.codes, dtype=np.int64), list(column.cat.categories)
        order = list(range(len(values)))
    else:
        if pd.api.types.is_float_dtype(column.dtype):
            column = _whole(column, what)
        codes, values = encode(column, "Labels", lambda row: f"sample {brief(samples[row])}")
        order = sorted(range(len(values)), key=lambda i: _rank(values[i]))
    order = [i for i in order if name_of(values[i], "Labels").strip()]  # a cell of blanks is no class
    names = tuple(name_of(values[i], "Labels") for i in order)
    place = np.full(len(values) + 1, -1)  # its last entry is that of a missing label, -1
    place[order] = np.arange(len(order))
    codes = place[codes]
    again = [show(name) for i, name in enumerate(names) if name in names[:i]]
    if again:
        raise PriorGraphError(f"Classes must stay distinct as text. Got {listing(again)} twice in {what}.")
    lost = np.flatnonzero(codes < 0)
    if len(lost) and missing == "error":
        shown = (show(samples[row]) for row in lost.tolist())
        raise PriorGraphError(
            f"Every sample must have a label. Got none in {what} for {len(lost)} of {len(samples)} samples: "
            f"{listing(shown, len(lost))}. Fill them in, or pass missing_labels='drop'."
        )
    kept = np.flatnonzero(codes >= 0)
    if not len(kept):
        raise PriorGraphError(f"At least one sample must have a label. Got none in {what}.")
    _doubt(names, len(kept), what)
    return Classes(codes[kept], names, kept)


def _doubt(names: tuple[str, ...], samples: int, what: str) -> None:
    """Warn of classes that look like one, and of numbers that look measured."""
    for first, *others in look_alikes(names):
        for other in others:
            warnings.warn(
                f"{show(first)} and {show(other)} in {what} are two classes, which look like one.",
                stacklevel=5,
            )
    if len(names) > 20 and samples < 5 * len(names) and all(name.lstrip("-").isdigit() for name in names):
        warnings.warn(
            f"{len(names)} whole numbers for {samples} samples in {what} are taken for classes. If they are "
            "measured, they are no labels.",
            stacklevel=5,
        )


def _whole(column: Any, what: str) -> Any:
    """Floats that are classes numbered in whole, as a column with gaps is read; others are measured."""
    values = column.dropna()
    odd = values[values != np.floor(values)]
    if len(odd):
        raise PriorGraphError(
            f"Labels must be classes. Got the measured value {show(float(odd.iloc[0]))} in {what}. "
            "Cut it into classes first."
        )
    return column.astype("Int64")


def _rank(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, (int, float, np.number))
    return (0, float(value), "") if number else (1, 0.0, str(value))
