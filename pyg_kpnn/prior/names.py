"""From ids of any kind to node names, and the wording all errors share.

A node's name is ``str(id)``. Two ids that would end as one name although they are not the same id
(``1`` and ``"1"``), or that are equal although their names differ (``1`` and ``1.0``), are refused:
merging or splitting them silently would rewire the graph.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 5
_SHOWN_CHARACTERS = 80
#: No suggestions beyond this: comparing long names, or very many, costs more than a suggestion is worth.
_GUESS_CHARACTERS, _GUESS_NAMES = 200, 100_000
#: Units are counted in 32 bits, so that a pair of units, and every count of pairs, is far inside 64.
MOST_UNITS = 2**31 - 1
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


def show(value: Any) -> str:
    """``repr`` of what came, for an error message: of a name of a million characters only the beginning."""
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        return f"{value[:_SHOWN_CHARACTERS]!r}… ({len(value):,} characters)"
    try:
        text = repr(value)
    except Exception:  # an object that cannot even be shown must not hide the error about it
        text = f"<{type(value).__name__}>"
    if len(text) <= 4 * _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}… ({len(text):,} characters)"


def brief(name: str) -> str:
    """A name as it is, or the beginning of a very long one."""
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…"


def ascii_or_show(name: str) -> str:
    """The name with escapes, so that a twin with an invisible character looks different."""
    return ascii(name) if len(name) <= 80 else show(name)


def listing(items: Iterable[str], total: int | None = None) -> str:
    """Join at most five examples and count the rest: ``"a, b, c, d, e and 2 more"``."""
    if total is None:
        items = list(items)
        total = len(items)
    # range first: zip would draw a sixth item, and finding a near name for it is slow
    shown = [item for _, item in zip(range(SHOWN), items, strict=False)]
    more = total - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def looks_of(name: str) -> str:
    """What is left of a name without surrounding blanks, invisible characters, case and Unicode form."""
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", name)).strip().casefold()


def look_alikes(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Sets of different names that look the same in print but for their case."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(looks_of(name), []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def near_names(name: str, names: Sequence[str]) -> str:
    """Return a hint such as ``" (did you mean 'Gata1'?)"``, or an empty string.

    A name that differs only in case wins over every other, since that is the usual slip; then one that
    looks the same in print, which is shown with escapes.
    """
    if len(name) > _GUESS_CHARACTERS:
        return ""
    names = [other for other in names if len(other) <= _GUESS_CHARACTERS]
    folded = name.casefold()
    same = next((other for other in names if other.casefold() == folded), None)
    if same is not None:
        return f" (differs only in case from {same!r})"
    if len(names) > _GUESS_NAMES:
        return ""
    look = looks_of(name)
    twin = next((other for other in names if looks_of(other) == look), None)
    if twin is not None:
        return f" (differs only in blanks, invisible characters or Unicode form from {twin!a})"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f" (did you mean {close[0]!r}?)" if close else ""


def unknown_names(unknown: Sequence[str], names: Sequence[str]) -> str:
    """List unknown names, each with its nearest known name."""
    return listing((f"{show(name)}{near_names(name, names)}" for name in unknown), len(unknown))


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: ``None``, NaN, NaT or ``pandas.NA``."""
    if value is None:
        return True
    if isinstance(value, (str, bytes, tuple, frozenset)):
        return False
    if type(value).__name__ in ("NAType", "NaTType"):
        return True
    try:
        return bool(value != value)
    except Exception:  # any object may stand in a cell: it is there, whatever its comparison raises
        return False


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # arrays and their like give no single answer: two objects are two ids
        return True


def plain(value: Any) -> Any:
    """NumPy scalars as Python numbers and ``-0.0`` as ``0.0``, so that equal ids look equal."""
    if isinstance(value, np.generic):
        value = value.item()
    return 0.0 if isinstance(value, float) and value == 0 else value


def name_of(value: Any, what: str = "Node names", where: str = "") -> str:
    """The text a node is known by; a str subclass gives its characters, not its own ``__str__``.

    ``what`` and ``where`` word the error: ``"Signs"`` and ``" at row 3"``.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        raise PriorGraphError(
            f"{what} must be text or numbers. Got the bytes {show(value)}{where}. Decode them to str first."
        )
    try:
        hash(value)
        return "0.0" if isinstance(value, (float, np.floating)) and value == 0 else str(value)
    except Exception:  # whatever an object's own methods raise
        raise PriorGraphError(
            f"{what} must be text or numbers. Got {show(value)} ({type(value).__name__}){where}. "
            "Write it as text."
        ) from None


def is_frame(value: Any) -> bool:
    """Whether ``value`` is a DataFrame, without importing pandas for those who do not use it."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


class NameTable:
    """Names seen so far; refuses ids that clash as text or as value.

    Examples
    --------
    >>> table = NameTable()
    >>> table.add("TP53"), table.add(7)
    ('TP53', '7')
    >>> table.add("7")
    Traceback (most recent call last):
        ...
    pyg_kpnn.errors.PriorGraphError: Node ids must stay distinct as text. Got 7 and '7'...
    """

    def __init__(self) -> None:
        self._by_text: dict[str, Any] = {}
        self._by_value: dict[Any, str] = {}

    def add(self, value: Any) -> str:
        """Return the name of ``value``, after checking it against every id seen before."""
        name = name_of(value)
        if not name.strip():
            raise PriorGraphError(f"Node names must not be empty. Got {show(value)}. Name or drop the node.")
        ident = name if isinstance(value, str) else plain(value)
        first = self._by_text.setdefault(name, ident)
        if first is not ident and (type(first) is not type(ident) or _differ(first, ident)):
            self._clash(first, ident, f"both would be named {show(name)}")
        if not isinstance(ident, str):
            other = self._by_value.setdefault(ident, name)
            if other != name:
                self._clash(
                    self._by_text[other], ident, f"they are equal, yet named {show(other)} and {show(name)}"
                )
        return name

    def _clash(self, first: Any, second: Any, why: str) -> None:
        raise PriorGraphError(
            f"Node ids must stay distinct as text. Got {show(first)} and {show(second)}: {why}. "
            "Convert all ids to one type first."
        )

    @property
    def names(self) -> list[str]:
        """All names seen, in alphabetical order."""
        return sorted(self._by_text)


def _hashes_well(values: pd.Series) -> bool:
    """Whether pandas' hash table tells this text apart.

    It holds C strings, so that "a" and "a\\0" would be one value, and for text that UTF-8 cannot hold its
    ``repr``, which another cell may spell.
    """
    text = "".join(values.dropna().tolist())
    try:
        return "\0" not in text and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:
        return False


def encode(
    values: pd.Series, what: str = "Node names", place: Callable[[int], str] = "row {}".format
) -> tuple[np.ndarray, list[Any]]:
    """Turn a column into ``(codes, distinct values)``; code -1 marks a missing cell.

    Homogeneous columns take pandas' hash table. A mixed column goes value by value, keyed by type as
    well, because a hash table holds ``1``, ``1.0`` and ``True`` for one value. ``what`` and ``place`` word
    the errors: what the column holds, and where a row of it is.
    """
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind == "integer" and values.dtype == object:
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # a missing cell, or beyond int64
            values = values.astype(np.int64)
    text = kind == "string" and _hashes_well(values)
    if text or pd.api.types.is_numeric_dtype(values.dtype):
        codes, uniques = pd.factorize(values)
        plainly = np.asarray(uniques) if isinstance(values.dtype, np.dtype) else uniques
        return np.asarray(codes, dtype=np.int64), list(plainly)
    table: dict[tuple[type, Any], int] = {}
    distinct: list[Any] = []
    codes = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values.tolist()):
        if is_missing(value):
            codes[row] = -1
            continue
        ident = plain(value)
        simple = isinstance(ident, (str, int, float))
        key = (type(ident), ident if simple else name_of(value, what, f" at {place(row)}"))
        code = table.setdefault(key, len(distinct))
        if code == len(distinct):
            distinct.append(value)
        elif distinct[code] is not value and _differ(plain(distinct[code]), ident):
            raise PriorGraphError(
                f"{what} must stay distinct as text. Got {show(distinct[code])} and, at {place(row)}, "
                f"{show(value)}: both would be {show(name_of(value))}. Convert all of them to one type first."
            )
        codes[row] = code
    return codes, distinct


def check_text(names: Sequence[str]) -> None:
    """Refuse names that cannot be written as UTF-8, since the fingerprint hashes UTF-8."""
    try:
        "".join(names).encode("utf-8")
    except UnicodeEncodeError:
        for name in names:
            try:
                name.encode("utf-8")
            except UnicodeEncodeError:
                raise PriorGraphError(
                    f"Node names must be valid Unicode text. Got {show(name)}, which holds a lone surrogate. "
                    "Read the file with its true encoding."
                ) from None


def is_row(values: Any) -> bool:
    """Whether ``values`` can be gone through one entry at a time: arrays must have one dimension."""
    return isinstance(values, Iterable) and getattr(values, "ndim", 1) == 1


def check_choice(value: Any, allowed: tuple[str | None, ...], what: str) -> None:
    """Refuse an option that is none of the allowed words; an array is no word."""
    if not (value is None or isinstance(value, str)) or value not in allowed:
        *first, last = map(repr, allowed)
        raise PriorGraphError(f"{what!r} must be {', '.join(first)} or {last}. Got {show(value)}.")


def name_list(values: Any, what: str, *, of: str = "node names", ordered: bool = False) -> list[Any]:
    """A list of ids from ``nodes=``, ``sources=`` and their like; a bare string is refused.

    A set is refused where order says which is which.
    """
    if getattr(values, "ndim", 1) != 1:
        raise PriorGraphError(
            f"{what!r} must be a sequence of {of}. Got {type(values).__name__} of shape "
            f"{tuple(values.shape)}. Pass its {'column ' if of == 'column names' else ''}names."
        )
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise PriorGraphError(
            f"{what!r} must be a sequence of {of}. Got {show(values)} ({type(values).__name__}). "
            "Put a single name in a list."
        )
    if ordered and isinstance(values, (set, frozenset)):
        raise PriorGraphError(f"{what!r} must be in order. Got a {type(values).__name__}. Pass a list.")
    out = list(values)
    for place, value in enumerate(out):
        if is_missing(value) or (isinstance(value, str) and not value.strip()):
            raise PriorGraphError(
                f"{what!r} must hold no missing or empty names. Got {show(value)} at position {place}. "
                "Drop it."
            )
    return out


def check_widths(widths: Any, names: Sequence[str]) -> dict[str, int]:
    """Validate ``widths`` and keep those above 1."""
    if widths is None:
        return {}
    if not isinstance(widths, Mapping):
        raise PriorGraphError(
            f"'widths' must be a mapping from node name to a positive int. Got {show(widths)} "
            f"({type(widths).__name__})."
        )
    known = set(names)
    wide: dict[str, int] = {}
    seen: dict[str, Any] = {}
    for key, width in widths.items():
        name = name_of(key)
        if name in seen:
            raise PriorGraphError(
                f"'widths' must name each node once. Got {show(seen[name])} and {show(key)}, both named "
                f"{show(name)}."
            )
        seen[name] = key
        if isinstance(width, bool) or not isinstance(width, Integral) or width < 1:
            raise PriorGraphError(
                f"A node's width must be an int of at least 1. Got {show(width)} ({type(width).__name__}) "
                f"for node {show(name)}."
            )
        if int(width) > 1:
            wide[name] = int(width)
    unknown = [name for name in seen if name not in known]
    if unknown:
        raise PriorGraphError(
            f"'widths' must only name nodes of the graph. Got {unknown_names(unknown, names)}. "
            "Correct the name or drop it."
        )
    units = sum(wide.get(name, 1) for name in names)
    if units > MOST_UNITS:
        widest = max(wide, key=wide.__getitem__)
        raise PriorGraphError(
            f"All nodes together must have at most {MOST_UNITS} units. Got {show(units)}, of which "
            f"node {show(widest)} has {show(wide[widest])}. Give smaller widths."
        )
    return wide
