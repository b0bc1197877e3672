"""Checks of layer arguments: strict kinds, Python numbers out, one error type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorGraphError
from ..ops import BACKENDS
from ..ops.layout import INTEGER_DTYPES

__all__ = ["backend_name", "flag", "index_array", "mask_of", "positive_int", "probability", "values_of"]


def _shown(value: Any) -> str:
    """What came, with its kind; numbers and text as they are, never the contents of a tensor."""
    kind = type(value).__name__
    simple = value is None or isinstance(value, (bool, int, float, complex, str, np.generic))
    return f"{value!r} ({kind})" if simple else f"a {kind}"


def positive_int(name: str, value: Any) -> int:
    """``value`` as an int >= 1; bool, float and everything else is refused."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not is_integer or value < 1:
        raise PriorGraphError(f"{name} must be a positive integer, got {_shown(value)}.")
    return int(value)


def backend_name(value: Any) -> str:
    """``value`` when it names a backend."""
    if value not in BACKENDS:
        raise PriorGraphError(f"backend must be one of {', '.join(BACKENDS)}, got {_shown(value)}.")
    return str(value)


def flag(name: str, value: Any) -> bool:
    """``value`` when it is True or False; 0, 1, None and numpy.bool_ are refused."""
    if not isinstance(value, bool):
        raise PriorGraphError(f"{name} must be True or False, got {_shown(value)}.")
    return value


def values_of(x: Any, units: int) -> Tensor:
    """``x`` when it is floating point of shape (B, units)."""
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != units or not x.is_floating_point():
        what = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise PriorGraphError(
            f"x must be floating point of shape (B, {units}), one column a unit; got {what}."
        )
    return x


def mask_of(x: Tensor, mask: Any) -> Tensor | None:
    """``mask`` when it is None, or boolean (B, n) on the device of ``x`` (B, n, ...)."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        what = f"{tuple(mask.shape)} {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise PriorGraphError(f"key_padding_mask must be boolean of shape {tuple(x.shape[:2])}, got {what}.")
    if mask.device != x.device:
        raise PriorGraphError(
            f"key_padding_mask must be on the device of x, {x.device}, got one on {mask.device}."
        )
    return mask


def probability(name: str, value: Any) -> float:
    """``value`` as a float in [0, 1]; bool is refused."""
    is_number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    if not is_number or not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise PriorGraphError(f"{name} must be a number in [0, 1], got {_shown(value)}.")
    return float(value)


def index_array(name: str, value: Any, size: int) -> Tensor:
    """``value`` as a new 1-D int64 tensor on the CPU with entries in ``[0, size)``."""
    index = _integers(name, value)
    if index.size == 0:
        raise PriorGraphError(f"{name} must hold at least one edge, got none.")
    bad = np.flatnonzero((index < 0) | (index >= size))
    if bad.size:
        raise PriorGraphError(
            f"Every entry of {name} must be in [0, {size}), got {int(index[bad[0]])} at position {bad[0]}."
        )
    # device given, so that a surrounding ``torch.device("meta")`` does not swallow the graph
    return torch.tensor(index.astype(np.int64), dtype=torch.int64, device="cpu")


def _integers(name: str, value: Any) -> np.ndarray:
    rule = f"{name} must be 1-D integers: an integer tensor, an integer array or a sequence of int"
    if isinstance(value, Tensor):
        if value.dtype not in INTEGER_DTYPES or value.is_meta:
            raise PriorGraphError(f"{rule}; got a tensor of dtype {value.dtype} on {value.device}.")
        if value.layout != torch.strided or value.is_nested:
            raise PriorGraphError(f"{rule}; got a sparse or nested tensor.")
        array = value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        for position, item in enumerate(value):
            if not isinstance(item, (int, np.integer)) or isinstance(item, (bool, np.bool_)):
                raise PriorGraphError(f"{rule}; got {type(item).__name__} at position {position}.")
        try:
            array = np.array(value, dtype=np.int64)
        except OverflowError:
            raise PriorGraphError(f"{rule}; got an integer that does not fit 64 bits.") from None
    else:
        raise PriorGraphError(f"{rule}; got {type(value).__name__}.")
    if array.dtype.kind not in "iu":
        raise PriorGraphError(f"{rule}; got an array of dtype {array.dtype}.")
    if array.ndim != 1:
        raise PriorGraphError(f"{rule}; got shape {array.shape}.")
    return array
