"""Parameters of an attention network: first values, checks, a temperature that stays positive."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import PriorGraphError

__all__ = ["fitting", "normals", "raw_temperature", "temperature"]


def temperature(raw: Tensor) -> Tensor:
    """(r + √(r² + 4)) / 2 of ``raw``: positive and smooth for every r, with the inverse β - 1/β."""
    root = torch.hypot(raw, raw.new_full((), 2.0))
    # For negative r the plain formula would subtract what is nearly equal.
    return torch.where(raw >= 0, (root + raw) / 2.0, 2.0 / (root - raw.clamp(max=0.0)))


def raw_temperature(beta: float, like: Tensor) -> Tensor:
    """The number in the dtype of ``like`` that :func:`temperature` maps closest to ``beta``."""
    plain = torch.tensor(beta - 1.0 / beta, dtype=like.dtype, device="cpu")
    limits = (plain.new_full((), -math.inf), plain.new_full((), math.inf))
    # one step up or down makes up for what the way back rounds
    tries = torch.stack([plain, *(torch.nextafter(plain, limit) for limit in limits)])
    reached = temperature(tries).double()
    best = (reached - beta).abs().nan_to_num(nan=math.inf).argmin()
    if not 0.0 < reached[best].item() < math.inf:
        raise PriorGraphError(f"beta and 1 / beta must be numbers that {like.dtype} can hold, got {beta!r}.")
    return tries[best].to(like.device)


def normals(seed: int | None, dtype: torch.dtype) -> Callable[[int, int, float], Tensor]:
    """``draw(rows, columns, deviation)`` from one stream of normal numbers."""
    generator = None
    if seed is not None:
        whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, (bool, np.bool_))
        if not whole or not -(2**63) <= seed < 2**64:
            raise PriorGraphError(f"seed must be an integer of 64 bits or None, got {seed!r}.")
        generator = Generator(device="cpu").manual_seed(int(seed))

    def draw(rows: int, columns: int, deviation: float) -> Tensor:
        # In double precision on the CPU, so that a seed means the same network in every dtype and place.
        normal = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
        return (normal * deviation).to(device=torch.get_default_device(), dtype=dtype)

    return draw


def fitting(
    weights: list[Tensor],
    biases: list[Tensor],
    keys: Tensor,
    values: Tensor,
    readout_weight: Tensor,
    readout_bias: Tensor,
    in_dim: int,
    out_dim: int,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, Tensor, Tensor]:
    """Copies of the tensors, once their shapes, dtypes and devices fit together."""
    if not weights or len(weights) != len(biases):
        raise PriorGraphError(
            "weights and biases must hold one tensor an encoder layer, at least one, got "
            f"{len(weights)} and {len(biases)}."
        )
    rest = {"keys": keys, "values": values, "readout_weight": readout_weight, "readout_bias": readout_bias}
    named = {f"weights[{layer}]": weight for layer, weight in enumerate(weights)}
    named |= {f"biases[{layer}]": bias for layer, bias in enumerate(biases)} | rest
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            what = f"dtype {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise PriorGraphError(f"{name} must be a floating-point tensor, got {what}.")
    for name, tensor in named.items():
        if (tensor.dtype, tensor.device) != (keys.dtype, keys.device):
            raise PriorGraphError(
                f"All tensors must share dtype and device, got keys {keys.dtype} on {keys.device} and {name} "
                f"{tensor.dtype} on {tensor.device}."
            )
    hidden = weights[0].shape[0] if weights[0].dim() else 0
    memory, value_dim = keys.shape[0] if keys.dim() else 0, values.shape[-1] if values.dim() else 0
    shapes = {name: (hidden, hidden) if name[0] == "w" else (hidden,) for name in named}
    shapes |= {"weights[0]": (hidden, in_dim), "keys": (memory, hidden), "values": (memory, value_dim)}
    shapes |= {"readout_weight": (out_dim, value_dim), "readout_bias": (out_dim,)}
    for name, tensor in named.items():
        if tensor.shape != shapes[name] or 0 in shapes[name]:
            raise PriorGraphError(
                f"{name} must have shape {shapes[name]} with no axis of length 0 (hidden={hidden}, "
                f"memory={memory}, value_dim={value_dim}, in_dim={in_dim}, out_dim={out_dim}), got "
                f"{tuple(tensor.shape)}."
            )

    copy = {name: tensor.detach().clone() for name, tensor in named.items()}
    return (
        [copy[name] for name in named if name[:2] == "we"],
        [copy[name] for name in named if name[:2] == "bi"],
        copy["keys"],
        copy["values"],
        copy["readout_weight"],
        copy["readout_bias"],
    )
