"""Edge signs: +1 activates, -1 inhibits, 0 unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import encode, listing, plain, show

if TYPE_CHECKING:
    import pandas as pd

_PLUS = (
    "+ + 1 positive pos up activation activates activate activating activator activated act stimulation "
    "stimulates stimulate stimulator induction induces induce inducer upregulation upregulates upregulate "
    "up-regulates up-regulation upregulates-expression upregulates-amount up-regulates-activity "
    "increases positive_regulation"
)
_MINUS = (
    "- -1 − negative neg down inhibition inhibits inhibit inhibiting inhibitor inhibited inh repression "  # noqa: RUF001
    "represses repress repressor suppression suppresses suppress suppressor downregulation downregulates "
    "downregulate down-regulates down-regulation downregulates-expression downregulates-amount "
    "down-regulates-activity decreases negative_regulation"
)
_UNKNOWN = "? 0 +- -+ +/- -/+ ± unknown unspecified undefined dual both mixed ambiguous"

#: What a sign cell may say, in lower case. Pass ``sign_map=`` to replace it.
DEFAULT_SIGNS: dict[str, int] = {
    **dict.fromkeys(_PLUS.split(), 1),
    **dict.fromkeys(_MINUS.split(), -1),
    **dict.fromkeys(_UNKNOWN.split(), 0),
}


def _default_sign(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_)):
        return None  # False could mean "inhibits" or "not known": the user has to say which
    if isinstance(value, str):
        text = value.strip().casefold()
        if text in DEFAULT_SIGNS:
            return DEFAULT_SIGNS[text]
        value = text.replace("−", "-")  # noqa: RUF001 — typographic minus, common in pasted tables
        if not value.isascii() or "_" in value:
            return None  # Python reads 0_1 and digits of other scripts as numbers; in a table they are slips
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number in (-1.0, 0.0, 1.0) else None


def _mapped_sign(value: Any, table: Mapping[Any, int]) -> int | None:
    for key in (value, str(value).strip()):
        try:
            if key in table:
                return int(table[key])
        except TypeError:  # unhashable cell
            continue
    return None


def check_sign_map(sign_map: Any) -> None:
    """Refuse a ``sign_map`` that is no mapping onto -1, 0 and 1."""
    if not isinstance(sign_map, Mapping):
        raise PriorGraphError(
            f"'sign_map' must be a mapping from cell to -1, 0 or 1. Got {show(sign_map)} "
            f"({type(sign_map).__name__})."
        )
    for key, sign in sign_map.items():
        if isinstance(sign, bool) or not isinstance(sign, Real) or sign not in (-1, 0, 1):
            raise PriorGraphError(f"'sign_map' must map onto -1, 0 or 1. Got {show(sign)} for {show(key)}.")


def parse_signs(
    column: pd.Series, sign_map: Mapping[Any, int] | None, describe: Callable[[int], str]
) -> np.ndarray:
    """Turn a column of sign cells into int8 +1, -1 or 0.

    Parameters
    ----------
    column : pandas.Series
        The cells: numbers, text or missing. A missing or empty cell is 0 (unknown).
    sign_map : mapping or None
        Replaces :data:`DEFAULT_SIGNS` as a whole when given.
    describe : callable
        Names a row for the error message, from its position.

    Returns
    -------
    numpy.ndarray
        int8 of the column's length.
    """
    if sign_map is not None:
        check_sign_map(sign_map)
    codes, distinct = encode(column, "Signs", describe)
    # one slot more than there are values: code -1 (a missing cell) indexes the last one, which stays 0
    table = np.zeros(len(distinct) + 1, dtype=np.int8)
    bad: list[int] = []
    for code, value in enumerate(distinct):
        sign = _mapped_sign(value, sign_map) if sign_map is not None else _default_sign(value)
        if sign is None and isinstance(value, str) and not value.strip():
            sign = 0
        if sign is None:
            bad.append(code)
        else:
            table[code] = sign
    if bad:
        rows = np.flatnonzero(np.isin(codes, bad))
        shown = (f"{show(plain(distinct[int(codes[row])]))} at {describe(int(row))}" for row in rows)
        raise PriorGraphError(
            f"A sign must be +1, -1 or 0 (unknown) or a known word for them. Got "
            f"{listing(shown, len(rows))}. Pass sign_map={{cell: -1, 0 or 1}} to say what the cells mean."
        )
    return table[codes]
