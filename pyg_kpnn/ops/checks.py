"""Checks of the arguments of ``edge_attention``: strict kinds, one error type."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorGraphError
from .layout import EdgeLayout

__all__ = ["check_settings", "check_shapes"]


def check_settings(dropout_p: Any, seed: Any, chunk: Any, need_weights: Any, device: torch.device) -> None:
    """Refuse settings of another kind; True is no number, and 1 is not True."""
    numbers = (int, float, np.integer, np.floating)
    if not isinstance(dropout_p, numbers) or isinstance(dropout_p, bool) or not 0.0 <= dropout_p <= 1.0:
        raise PriorGraphError(f"dropout_p must be a number in [0, 1], got {dropout_p!r}.")
    if seed is not None and not (isinstance(seed, Tensor) and seed.dtype == torch.int64 and seed.dim() == 0):
        raise PriorGraphError("dropout_seed must be a 0-d int64 tensor, such as torch.tensor(1).")
    if seed is not None and not seed.is_cpu:
        _check_device("dropout_seed", seed, device)
    is_size = isinstance(chunk, (int, np.integer)) and not isinstance(chunk, bool)
    if chunk is not None and not (is_size and chunk >= 1):
        raise PriorGraphError(f"chunk_size must be None or a positive integer, got {chunk!r}.")
    if not isinstance(need_weights, bool):
        raise PriorGraphError(f"need_weights must be True or False, got {need_weights!r}.")


def check_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: EdgeLayout,
    bias: Tensor | None,
    edge_features: Tensor | None,
    key_mask: Tensor | None,
) -> None:
    """Refuse tensors that do not fit the layout or each other."""
    if not isinstance(layout, EdgeLayout):
        raise PriorGraphError(f"layout must be an EdgeLayout, got {type(layout).__name__}.")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            what = f"dtype {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise PriorGraphError(f"{name} must be a floating-point tensor, got {what}.")
        if tensor.dtype != query.dtype:
            raise PriorGraphError(
                f"query, key and value must share a dtype, got query {query.dtype} and {name} {tensor.dtype}."
            )
        _check_device(name, tensor, layout.device)
        size = layout.num_targets if name == "query" else layout.num_sources
        if tensor.dim() < 3 or tensor.shape[-3] != size:
            raise PriorGraphError(
                f"{name} must have shape (..., {size}, H, d) for {layout!r}, got {tuple(tensor.shape)}."
            )
    lead, width = query.shape[:-3], query.shape[-2:]
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape[:-3] != lead or tensor.shape[-2:] != width:
            raise PriorGraphError(
                f"{name} must share the leading axes and (H, d) of query {tuple(query.shape)}, "
                f"got {tuple(tensor.shape)}."
            )
    options = (("bias", bias), ("edge_features", edge_features), ("key_mask", key_mask))
    for name, option in options:
        if option is not None and not isinstance(option, Tensor):
            raise PriorGraphError(f"{name} must be a tensor or None, got {type(option).__name__}.")
        if option is not None:
            _check_device(name, option, layout.device)
    edges, heads = layout.num_edges, width[0]
    per_edge = (*lead, edges, heads)
    for name, option in options[:2]:
        if option is not None and not option.is_floating_point():
            raise PriorGraphError(f"{name} must be floating point, got dtype {option.dtype}.")
    if bias is not None and not _among(bias.shape, (edges,), (edges, heads), (edges, 1), per_edge):
        raise PriorGraphError(
            f"bias must have shape ({edges},), ({edges}, {heads}) or {per_edge}, got {tuple(bias.shape)}."
        )
    per_row = (*lead, edges, *width)
    if edge_features is not None and not _among(edge_features.shape, (edges, *width), per_row):
        raise PriorGraphError(
            f"edge_features must have shape {(edges, *width)} or with the leading axes of query, "
            f"got {tuple(edge_features.shape)}."
        )
    if key_mask is not None:
        if key_mask.dtype != torch.bool:
            raise PriorGraphError(f"key_mask must be boolean, True = ignore, got {key_mask.dtype}.")
        if tuple(key_mask.shape) != (*lead, layout.num_sources):
            raise PriorGraphError(
                f"key_mask must have shape {(*lead, layout.num_sources)}, got {tuple(key_mask.shape)}."
            )


def _check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    # The native kernel reads memory: what lies elsewhere would be taken for nothing, or for other numbers.
    if tensor.device != device:
        raise PriorGraphError(
            f"{name} must be on the device of the layout, {device}, got one on {tensor.device}."
        )


def _among(shape: torch.Size, *allowed: tuple[int, ...]) -> bool:
    # Axis by axis: a look-up in a set hashes the number of samples, and torch.compile would then make a
    # program for each; ``in`` is false under it while that number is open.
    return any(
        len(shape) == len(other) and all(a == b for a, b in zip(shape, other, strict=True))
        for other in allowed
    )
