"""From columns of ids to a canonical graph: every way in ends in :func:`assemble`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.fingerprint import without_defaults
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import (
    NameTable,
    brief,
    check_choice,
    check_text,
    check_widths,
    encode,
    listing,
    name_list,
    show,
    unknown_names,
)
from pyg_kpnn.prior.signs import parse_signs

if TYPE_CHECKING:
    import pandas as pd


def _encode_names(column: pd.Series, role: str, place: Callable[[int], str]) -> tuple[np.ndarray, list[Any]]:
    codes, distinct = encode(column, place=place)
    empty = [i for i, value in enumerate(distinct) if isinstance(value, str) and not value.strip()]
    bad = np.flatnonzero((codes < 0) | np.isin(codes, empty) if empty else codes < 0)
    if len(bad):
        raise PriorGraphError(
            f"Every edge must name its {role}. Got a missing or empty name in {len(bad)} row(s): "
            f"{listing((place(int(row)) for row in bad), len(bad))}. Fill in or drop these rows."
        )
    return codes, distinct


def _positions(distinct: list[Any], table: NameTable) -> list[str]:
    return [table.add(value) for value in distinct]


def _weights(column: pd.Series, describe: Callable[[int], str]) -> np.ndarray:
    import pandas as pd

    if column.dtype.kind == "c":
        raise PriorGraphError("Weights must be real numbers. Got complex ones. Take a part or the modulus.")
    try:
        values = pd.to_numeric(column.astype(object).where(column.notna(), np.nan), errors="coerce")
        out: np.ndarray = np.asarray(values, dtype=np.float64)
    except Exception as error:  # pandas compares and hashes the cells, and objects raise what they like
        raise PriorGraphError(
            f"Weights must be finite real numbers. Got a column that is not ({error!r})."
        ) from error
    bad = np.flatnonzero(~np.isfinite(out))
    if len(bad):
        shown = (f"{show(column[int(row)])} at {describe(int(row))}" for row in bad)
        raise PriorGraphError(
            f"Weights must be finite numbers. Got {listing(shown, len(bad))}. Fill in or drop these rows."
        )
    return out + 0.0  # -0.0 and 0.0 are one weight and must be one fingerprint


def assemble(
    source: pd.Series,
    target: pd.Series,
    *,
    sign: pd.Series | None = None,
    weight: pd.Series | None = None,
    nodes: Any = None,
    widths: Any = None,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    sign_map: Mapping[Any, int] | None = None,
    sides: tuple[list[Any] | None, ...] | None = None,
    place: Callable[[int], str] = "row {}".format,
) -> PriorGraph:
    """Check columns of equal length, put them in canonical order and build the graph.

    ``sides`` asks for a bipartite graph; ``place`` words where a row came from (a row, or a file's line).
    """
    check_choice(on_duplicate, ("error", "first", "max"), "on_duplicate")
    check_choice(on_conflict, ("error", "unknown"), "on_conflict")
    if on_duplicate == "max" and weight is None:
        raise PriorGraphError("on_duplicate='max' compares weights. Got no weights. Name them with weight=.")
    if len(source) == 0:
        raise PriorGraphError(
            "A graph must have at least one edge. Got no rows. Check the file or the filter."
        )
    s_codes, s_ids = _encode_names(source, "source", place)
    t_codes, t_ids = _encode_names(target, "target", place)

    left = NameTable()
    right = NameTable() if sides is not None else left
    s_names, t_names = _positions(s_ids, left), _positions(t_ids, right)
    if sides is None:
        for value in [] if nodes is None else name_list(nodes, "nodes"):
            left.add(value)
    else:
        for side, table, role in zip(sides, (left, right), ("source", "target"), strict=True):
            if side is not None:
                _check_side(side, table, role)
    order_s, order_t = left.names, right.names
    every = order_s if sides is None else order_s + order_t
    check_text(every)
    wide = check_widths(widths, every)

    at = {name: i for i, name in enumerate(order_s)}
    src = np.array([at[name] for name in s_names], dtype=np.int64)[s_codes]
    at = {name: i for i, name in enumerate(order_t)}
    tgt = np.array([at[name] for name in t_names], dtype=np.int64)[t_codes]

    def describe(row: int) -> str:
        return f"{place(row)} ({brief(order_s[src[row]])} -> {brief(order_t[tgt[row]])})"

    signs = None if sign is None else parse_signs(sign, sign_map, describe)
    weights = None if weight is None else _weights(weight, describe)
    keep, signs, weights = _combine(
        src * len(order_t) + tgt, signs, weights, on_duplicate, on_conflict, describe
    )
    return PriorGraph(
        tuple(every),
        tuple(wide.get(name, 1) for name in every),
        src[keep].astype(np.int32),
        tgt[keep].astype(np.int32),
        *without_defaults(signs, weights),
        None if sides is None else len(order_s),
    )


def _check_side(side: list[Any], table: NameTable, role: str) -> None:
    used = set(table.names)
    listed = {table.add(value) for value in side}
    missing = sorted(used - listed)
    if missing:
        raise PriorGraphError(
            f"'{role}s' must list every {role} of an edge. Got edges with "
            f"{unknown_names(missing, sorted(listed))}. Add the name or drop the edges."
        )


def _combine(
    key: np.ndarray,
    sign: np.ndarray | None,
    weight: np.ndarray | None,
    on_duplicate: str,
    on_conflict: str,
    describe: Callable[[int], str],
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Sort edges by key and merge equal ones; returns the rows kept, and their signs and weights.

    Signs are never summed: two pluses and a minus are a conflict, not a plus.
    """
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    fresh = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    start = np.flatnonzero(fresh)
    if len(start) == len(key):
        return order, None if sign is None else sign[order], None if weight is None else weight[order]

    if on_duplicate == "error":
        again = np.flatnonzero(~fresh)
        leads = (start[np.searchsorted(start, i) - 1] for i in again)
        shown = (
            f"{describe(int(order[i]))} repeats {describe(int(order[lead]))}"
            for i, lead in zip(again, leads, strict=True)
        )
        raise PriorGraphError(
            f"Every edge must be listed once. Got {len(again)} duplicate row(s): "
            f"{listing(shown, len(again))}. Drop them, or pass on_duplicate='first' or 'max'."
        )
    if sign is not None:
        ranked = sign[order]
        plus = np.logical_or.reduceat(ranked > 0, start)
        minus = np.logical_or.reduceat(ranked < 0, start)
        both = np.flatnonzero(plus & minus)
        if len(both) and on_conflict == "error":
            shown = (describe(int(order[start[g]])) for g in both)
            raise PriorGraphError(
                f"Duplicate rows of an edge must not carry both signs. Got + and - for {len(both)} edge(s): "
                f"{listing(shown, len(both))}. Correct them, or pass on_conflict='unknown'."
            )
        sign = plus.astype(np.int8) - minus.astype(np.int8)
    if weight is not None:
        weight = np.maximum.reduceat(weight[order], start) if on_duplicate == "max" else weight[order][start]
    return order[start], sign, weight
