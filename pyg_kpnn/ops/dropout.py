"""Dropout of edge weights as a hash, so that every backend drops the same edges.

Whether an edge is dropped is a function of four integers: the call's seed, the sample, the
edge's position in the caller's order and the head. There is no mask to keep for backward, no
order of evaluation to agree on, and a kernel in another language computes the same bits.
The mixing function is the 32-bit finaliser ``x ^= x >> 16; x *= 0x21f0aaad; x ^= x >> 15;
x *= 0x735a2d97; x ^= x >> 15`` (C. Wellons, hash-prospector). Its multipliers are below
2**31, so products of 32-bit values stay inside a signed int64 and no overflow is relied on.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["draw_seed", "drop_weights", "keep_mask"]

_MASK = 0xFFFFFFFF
_BITS = 24  # compared bits: probabilities are met to 2**-24, exact in float32


def draw_seed(device: torch.device) -> Tensor:
    """One int64 seed from the default generator of ``device``, without waiting for it."""
    return torch.randint(0, 2**62, (), dtype=torch.int64, device=device)


def _mix32(value: Tensor) -> Tensor:
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & _MASK
    value = value ^ (value >> 15)
    value = (value * 0x735A2D97) & _MASK
    return value ^ (value >> 15)


def keep_mask(seed: Tensor, batch: int, edge: Tensor, heads: int, p: float) -> Tensor:
    """Which edge weights survive dropout with probability ``p``.

    Parameters
    ----------
    seed : Tensor
        0-d int64.
    batch : int
        Number of samples B; sample ``b`` is hashed as ``b``.
    edge : Tensor
        ``(E,)`` int64, the caller's positions of the edges.
    heads : int
        Number of heads H.
    p : float
        Probability of dropping, in [0, 1].

    Returns
    -------
    Tensor
        ``(B, E, H)`` bool, True = keep.
    """
    # Each of the five numbers is mixed in before the next comes, so that neighbouring seeds do not
    # give the same mask shifted along samples or edges.
    low, high = seed & _MASK, (seed >> 32) & _MASK
    sample = torch.arange(batch, device=edge.device).view(-1, 1)
    head = torch.arange(heads, device=edge.device)
    state = _mix32(_mix32(low) ^ high)
    state = _mix32((state + sample * 0x2545F491) & _MASK)
    state = _mix32((state + (edge & _MASK) * 0x3C6EF372) & _MASK)
    state = _mix32((state.unsqueeze(-1) + head * 0x5851F42D) & _MASK)
    return (state >> (32 - _BITS)) >= round(p * 2**_BITS)


def drop_weights(
    weights: Tensor, edge: Tensor, p: float, seed: Tensor | None, chunk: int | None = None
) -> Tensor:
    """Drop weights (B, E, H) with probability ``p`` and scale the rest by ``1 / (1 - p)``.

    ``edge`` (E,) are the caller's positions of the edges; ``seed`` None or ``p`` 0 keeps all.
    The hashes are int64, eight times the mask they become, so ``chunk`` bounds them too.
    """
    if p == 0.0 or seed is None:
        return weights
    batch, _, heads = weights.shape
    parts = (edge,) if chunk is None else edge.split(chunk)
    keep = torch.cat([keep_mask(seed, batch, part, heads, p) for part in parts], dim=1)
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return torch.where(keep, weights * scale, 0.0)
