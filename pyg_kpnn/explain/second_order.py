"""Entries of Hessians of a named model: given ones, by rows or by jets, and the strongest."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from math import comb

import numpy as np
import torch
from torch import Tensor

from ..jets import JetSpace, gradient, hessian
from ..nn.transformer_jet import jet_at_units
from .curvature import Curvature
from .named_model import NamedModel
from .reach import distances

__all__ = ["by_jets", "by_rows", "strongest"]

# Numbers at each edge and unit of all rows and samples that are taken at a time.
_BLOCK = 2**16
#: Inputs of one jet at most: a jet of 16 variables to order 2 has 153 rows.
_MOST_VARIABLES = 16

Entries = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _blocks(named: NamedModel) -> tuple[int, int]:
    """How many samples, and how many rows of as many samples, are taken at a time."""
    each = named.flat.shape[1] + named.graph.nnz
    samples = min(len(named.flat), max(1, _BLOCK // each))
    return samples, max(1, _BLOCK // (each * samples))


def by_rows(named: NamedModel, a: np.ndarray, b: np.ndarray, out: np.ndarray, per_sample: bool) -> np.ndarray:
    """Derivatives ``(P, B)`` or their mean ``(P, 1)`` from the rows of Hessians that hold them."""
    values = torch.zeros(len(a), len(named.flat) if per_sample else 1, dtype=torch.float64)
    many, block = _blocks(named)
    second = b >= 0
    for output in np.unique(out).tolist():
        rows = np.unique(a[(out == output) & second])
        for start in range(0, len(named.flat), many):
            curve = Curvature(*named.part(start, start + many), output)

            def put(where: np.ndarray, found: Tensor, start: int = start) -> None:
                if per_sample:
                    values[torch.from_numpy(where), start : start + found.shape[1]] = found.double().cpu()
                else:
                    values[torch.from_numpy(where), 0] += found.double().sum(1).cpu() / len(named.flat)

            single = np.flatnonzero((out == output) & ~second)
            put(single, curve.gradient.T[torch.from_numpy(a[single])])
            for first in range(0, len(rows), block):
                some = rows[first : first + block]
                found = curve.rows(some.tolist())
                pairs = np.flatnonzero((out == output) & second & np.isin(a, some))
                at = torch.from_numpy(np.searchsorted(some, a[pairs]))
                put(pairs, found[at, :, torch.from_numpy(b[pairs])])
    return values.numpy()


def by_jets(
    named: NamedModel, a: np.ndarray, b: np.ndarray, out: np.ndarray, per_sample: bool
) -> np.ndarray | None:
    """What :func:`by_rows` returns, from one jet; None where there is none or rows are cheaper."""
    units, place = np.unique(np.concatenate([a, np.where(b < 0, a, b)]), return_inverse=True)
    # A row costs a backward pass of a backward pass, and each output needs rows of its own; a row of a
    # jet costs a forward pass, and serves all outputs.
    passes = 6 * len(np.unique(np.stack([a, out]), axis=1).T)
    if not named.has_jets or not 0 < len(units) <= _MOST_VARIABLES or comb(len(units) + 2, 2) > passes:
        return None
    chosen, column = np.unique(out, return_inverse=True)
    space = JetSpace(len(units), 2)
    first, second = (torch.from_numpy(side) for side in place.reshape(2, -1))
    columns, single = torch.from_numpy(column), torch.from_numpy(b < 0).unsqueeze(1)
    at = torch.from_numpy(chosen).to(named.flat.device)
    pieces = []
    many = _blocks(named)[0]
    masks: Iterable[Tensor | None] = repeat(None) if named.mask is None else named.mask.split(many)
    for piece, mask in zip(named.flat.split(many), masks, strict=False):
        with torch.no_grad():
            jet = jet_at_units(named.model, piece, 2, units.tolist(), at, mask).transpose(0, 1).double().cpu()
        slopes = gradient(jet, space)[first, :, columns]
        found = torch.where(single, slopes, hessian(jet, space)[first, second, :, columns])
        pieces.append(found if per_sample else found.sum(1, keepdim=True) / len(named.flat))
    return (torch.cat(pieces, dim=1) if per_sample else sum(pieces[1:], pieces[0])).numpy()


def strongest(named: NamedModel, chosen: list[int], top_k: int, absolute: bool) -> Entries:
    """The ``top_k`` strongest pairs of different inputs: positions of both and the output, and value.

    Value ``(top_k, 1)`` is the mean over samples, or with ``absolute`` the mean absolute value.
    """
    size = named.flat.shape[1]
    near = _near(named)
    both = None if named.mask is None else torch.from_numpy(named.measured_together())
    best: list[Tensor] = [torch.zeros(0, dtype=torch.float64)]
    where: list[Tensor] = [torch.zeros(0, 3, dtype=torch.int64)]
    for output in chosen:
        able = _able(near, output, size, named.pooled)
        able = able if both is None else able & (both > 0)
        rows = able.any(1).nonzero().flatten().tolist()
        total = _mean_hessian(named, output, rows, absolute)
        if both is not None:
            total = total / both[rows]  # the mean over samples in which both were measured
        # Ranked by size; NaN, which a model may return, comes first and is not passed over.
        values = total[able[rows]]
        keys = able.nonzero()
        order = values.abs().nan_to_num(nan=torch.inf).argsort(descending=True, stable=True)[:top_k]
        best.append(values[order])
        where.append(torch.cat([keys[order], torch.full((len(order), 1), output)], dim=1))
    values, places = torch.cat(best), torch.cat(where)
    order = values.abs().nan_to_num(nan=torch.inf).argsort(descending=True, stable=True)[:top_k]
    a, b, out = places[order].numpy().T
    return a, b, out, values[order].unsqueeze(1).numpy()


def _mean_hessian(named: NamedModel, output: int, rows: list[int], absolute: bool) -> Tensor:
    """Rows of the Hessian of one output, mean over samples, ``(len(rows), N)`` float64."""
    total = torch.zeros(len(rows), named.flat.shape[1], dtype=torch.float64)
    if not rows:
        return total
    many, block = _blocks(named)
    for start in range(0, len(named.flat), many):
        curve = Curvature(*named.part(start, start + many), output)
        for first in range(0, len(rows), block):
            found = curve.rows(rows[first : first + block]).double()
            total[first : first + block] += (found.abs() if absolute else found).sum(1).cpu()
    return total / len(named.flat)


def _near(named: NamedModel) -> Tensor | None:
    """``(N, n)``, which tokens each input reaches; None where no bound is known."""
    if named.num_layers is None:
        return None
    return torch.from_numpy(distances(named.graph, list(range(named.flat.shape[1]))) <= named.num_layers)


def _able(near: Tensor | None, output: int, size: int, pooled: bool) -> Tensor:
    """``(N, N)``, which pairs a < b can have a mixed derivative that is not zero."""
    if near is None:
        able = torch.ones(size, size, dtype=torch.bool)
    elif pooled:
        able = near.float() @ near.float().T > 0
    else:
        able = near[:, output, None] & near[None, :, output]
    return able.triu(1)
