"""Labels permuted within strata, and p-values corrected for their number."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import PriorGraphError

__all__ = ["false_discovery", "permuted_labels"]


def permuted_labels(first: np.ndarray, strata: np.ndarray | None, count: int, seed: Any) -> np.ndarray:
    """Which samples count as the first group: as observed, then in ``count`` permutations.

    Parameters
    ----------
    first : ndarray
        ``(S,)`` bool.
    strata : ndarray, optional
        ``(S,)`` int; labels are exchanged among samples of one stratum only.
    count : int
        Permutations, drawn with replacement from all there are.
    seed : int
        Of a generator of its own.

    Returns
    -------
    ndarray
        ``(count + 1, S)`` bool.

    Raises
    ------
    PriorGraphError
        If no stratum holds samples of both groups.

    Examples
    --------
    >>> first = np.array([True, False, True, False])
    >>> permuted_labels(first, np.array([0, 0, 1, 1]), 3, seed=0).sum(1).tolist()
    [2, 2, 2, 2]
    """
    rng = np.random.default_rng(seed)
    out = np.empty((count + 1, len(first)), dtype=bool)
    out[:] = first
    places = (
        [np.arange(len(first))]
        if strata is None
        else [np.flatnonzero(strata == s) for s in np.unique(strata)]
    )
    mixed = False
    for place in places:
        here = first[place]
        if here.any() and not here.all():
            mixed = True
            out[1:, place] = rng.permuted(out[1:, place], axis=1)
    if not mixed:
        raise PriorGraphError(
            "Permuting within strata needs one that holds samples of both a and b, got none. Without "
            "'within' the groups of strata would be compared, not the labels."
        )
    return out


def false_discovery(p: np.ndarray) -> np.ndarray:
    """Benjamini-Hochberg q values of the p-values that are not NaN.

    Notes
    -----
    The smallest false discovery rate at which a test is still significant (Benjamini and Hochberg 1995).

    Examples
    --------
    >>> false_discovery(np.array([0.01, np.nan, 0.04, 0.03])).tolist()
    [0.03, nan, 0.04, 0.04]
    """
    q = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    raw = p[order] * len(order) / np.arange(1, len(order) + 1)
    q[order] = np.minimum(np.minimum.accumulate(raw[::-1])[::-1], 1.0)
    return q
