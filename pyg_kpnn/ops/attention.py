"""``edge_attention``: softmax attention along the edges of a graph."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import PriorGraphError
from .checks import check_settings, check_shapes
from .dropout import draw_seed, drop_weights
from .kernels import Kernel, dot, mix, weigh
from .layout import EdgeLayout
from .native import native_attention
from .native_library import NATIVE_DTYPES, native_missing
from .precision import exporting, traced
from .reference import reference_attention
from .scatter_kernel import ScatterKernel, scatter_missing
from .torch_kernel import TorchKernel

__all__ = ["BACKENDS", "BackendStatus", "backends", "edge_attention"]

BACKENDS = ("auto", "reference", "torch", "scatter", "native")


class BackendStatus(NamedTuple):
    """Whether a backend can be used here, and why not when it cannot."""

    available: bool
    reason: str


def backends() -> dict[str, BackendStatus]:
    """Which attention backends are usable in this installation.

    Returns
    -------
    dict
        ``{"reference": …, "torch": …, "scatter": …, "native": …}``, each a ``(available, reason)`` pair;
        ``reason`` is empty for an available backend.

    Examples
    --------
    >>> backends()["torch"].available
    True
    """
    no_scatter, no_native = scatter_missing(), native_missing()
    return {
        "reference": BackendStatus(True, ""),
        "torch": BackendStatus(True, ""),
        "scatter": BackendStatus(no_scatter is None, no_scatter or ""),
        "native": BackendStatus(no_native is None, no_native or ""),
    }


def edge_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: EdgeLayout,
    *,
    bias: Tensor | None = None,
    edge_features: Tensor | None = None,
    key_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str = "auto",
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    r"""Multi-head softmax attention in which a target attends along its incoming edges only.

    .. math::
        z_e = \frac{\langle q_{t_e}, k_{s_e} \rangle}{\sqrt{d}} + b_e, \qquad
        w_e = \frac{\exp z_e}{\sum_{e': t_{e'} = t_e} \exp z_{e'}}, \qquad
        m_t = \sum_{e: t_e = t} w_e\, v_{s_e}

    for every head, where edge :math:`e` runs from source :math:`s_e` to target :math:`t_e`.
    A target without a live edge gets :math:`m_t = 0`.

    Parameters
    ----------
    query : Tensor
        ``(..., num_targets, H, d)`` floating point.
    key, value : Tensor
        ``(..., num_sources, H, d)``, the same leading axes and dtype.
    layout : EdgeLayout
        The E edges, on the same device.
    bias : Tensor, optional
        Added to the scores: ``(E,)``, ``(E, 1)``, ``(E, H)`` or ``(..., E, H)``, in the caller's edge order.
    edge_features : Tensor, optional
        ``(E, H, d)`` or ``(..., E, H, d)``, in the caller's edge order; added to key and value
        along each edge, as relative positions are.
    key_mask : Tensor, optional
        ``(..., num_sources)`` bool, True = ignore that key. What it holds, NaN included,
        reaches no output and no gradient, nor do the features of its edges.
    dropout_p : float, default 0.0
        Probability of dropping each weight, the rest scaled by ``1 / (1 - dropout_p)``.
    dropout_seed : Tensor, optional
        0-d int64; drawn from the device's default generator when not given. The same seed
        gives the same mask on every backend.
    chunk_size : int, optional
        Evaluate that many edges at a time and compute them again in backward. Memory for
        gathered rows falls from ``E * H * d`` to ``chunk_size * H * d`` numbers; the
        result does not change.
    backend : {"auto", "native", "torch", "scatter", "reference"}
        ``auto`` takes the fastest that can do what was asked.
    need_weights : bool, default False
        Also return the weights, after dropout, as they were used.

    Returns
    -------
    mixed : Tensor
        ``(..., num_targets, H, d)``.
    weights : Tensor or None
        ``(..., E, H)`` in the caller's edge order.

    Raises
    ------
    PriorGraphError
        If a shape does not fit the layout, or the backend is unknown or not usable here.

    Notes
    -----
    Half and bfloat16 inputs are computed in float32 and returned in their own dtype.

    A target that reads NaN is NaN, and sends its sources gradients of 0 as long as its own is 0: what
    a loss leaves out has no part in its gradients.

    Examples
    --------
    Node 2 attends to nodes 0 and 1; nodes 0 and 1 have no source and mix to zero.

    >>> import torch
    >>> layout = EdgeLayout(torch.tensor([[0, 1], [2, 2]]), num_sources=3, num_targets=3)
    >>> x = torch.eye(3).view(3, 1, 3)
    >>> mixed, weights = edge_attention(x, x, x, layout, need_weights=True)
    >>> mixed[:, 0].tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    >>> weights[:, 0].tolist()
    [0.5, 0.5]
    """
    check_shapes(query, key, value, layout, bias, edge_features, key_mask)
    check_settings(dropout_p, dropout_seed, chunk_size, need_weights, layout.device)
    backend = _choose(backend, query, edge_features, need_weights)
    lead, dtype = query.shape[:-3], query.dtype
    heads, head_dim = query.shape[-2:]
    # Sums and maxima of half precision run in float32; 70,000 equal scores would overflow. The
    # native kernel reads halves itself.
    compute = query.dtype if backend == "native" else torch.promote_types(query.dtype, torch.float32)
    inputs = _prepare(query, key, value, layout, bias, edge_features, key_mask, compute)
    if dropout_p > 0.0 and dropout_seed is None:
        dropout_seed = draw_seed(query.device)
    weights: Tensor | None
    if backend == "reference":
        mixed, weights = reference_attention(*inputs, layout, dropout_p, dropout_seed)
    elif backend == "native":
        mixed, weights = native_attention(
            *inputs, layout, dropout_p, dropout_seed, chunk_size, need_weights,
        )  # fmt: skip
    else:
        kernel: Kernel = ScatterKernel() if backend == "scatter" else TorchKernel()
        mixed, weights = _attend(inputs, layout, dropout_p, dropout_seed, chunk_size, kernel)
        weights = weights.index_select(1, layout.rank) if need_weights else None
    mixed = mixed.reshape(*lead, layout.num_targets, heads, head_dim).to(dtype)
    if weights is None or not need_weights:
        return mixed, None
    return mixed, weights.reshape(*lead, layout.num_edges, heads).to(dtype)


class _Inputs(NamedTuple):
    """Arguments with one batch axis B, in the dtype to compute in, masked keys zeroed."""

    query: Tensor  # (B, num_targets, H, d)
    key: Tensor  # (B, num_sources, H, d)
    value: Tensor  # (B, num_sources, H, d)
    bias: Tensor | None  # (B, E, H), caller's edge order
    edge_features: Tensor | None  # (B, E, H, d), caller's edge order
    key_mask: Tensor | None  # (B, num_sources)


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: EdgeLayout,
    bias: Tensor | None,
    edge_features: Tensor | None,
    key_mask: Tensor | None,
    compute: torch.dtype,
) -> _Inputs:
    lead = query.shape[:-3]
    heads, head_dim = query.shape[-2:]
    batch = math.prod(lead)
    query = query.to(compute).reshape(batch, layout.num_targets, heads, head_dim)
    key = key.to(compute).reshape(batch, layout.num_sources, heads, head_dim)
    value = value.to(compute).reshape(batch, layout.num_sources, heads, head_dim)
    if bias is not None:
        bias = bias.to(torch.promote_types(compute, torch.float32))
        bias = bias.unsqueeze(-1) if bias.dim() == 1 else bias
        bias = bias.expand(*lead, layout.num_edges, heads).reshape(batch, layout.num_edges, heads)
    if edge_features is not None:
        edge_features = edge_features.to(compute).expand(*lead, layout.num_edges, heads, head_dim)
        edge_features = edge_features.reshape(batch, layout.num_edges, heads, head_dim)
    if key_mask is not None:
        key_mask = key_mask.reshape(batch, layout.num_sources)
        hidden = key_mask.unsqueeze(-1).unsqueeze(-1)
        key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
        if edge_features is not None:
            source = layout.source.index_select(0, layout.rank)
            edge_features = edge_features.masked_fill(hidden.index_select(1, source), 0.0)
    return _Inputs(query, key, value, bias, edge_features, key_mask)


def _attend(
    inputs: _Inputs,
    layout: EdgeLayout,
    dropout_p: float,
    seed: Tensor | None,
    chunk: int | None,
    kernel: Kernel,
) -> tuple[Tensor, Tensor]:
    """Score, normalise, drop, mix; weights (B, E, H) come in the layout's sorted order."""
    query = inputs.query * inputs.query.shape[-1] ** -0.5
    scores = dot(query, inputs.key, layout, kernel, chunk)
    own_edges = None
    if inputs.edge_features is not None:
        # An edge's features are one more source, seen by that edge alone.
        own_edges = layout.with_edges_as_sources()
        scores = scores + dot(query, inputs.edge_features, own_edges, kernel, chunk)
    weights = weigh(scores, inputs.bias, inputs.key_mask, layout, kernel)
    weights = drop_weights(weights, layout.by_target, dropout_p, seed, chunk)
    mixed = mix(weights, inputs.value, layout, kernel, chunk)
    if own_edges is not None and inputs.edge_features is not None:
        mixed = mixed + mix(weights, inputs.edge_features, own_edges, kernel, chunk)
    return mixed, weights


def _choose(backend: str, query: Tensor, edge_features: Tensor | None, need_weights: bool) -> str:
    if backend not in BACKENDS:
        raise PriorGraphError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    compiling = torch.compiler.is_compiling()
    if backend == "auto":
        # With edge features the kernel is left in backward, so it gains nothing.
        if edge_features is None and not _native_refuses(query, edge_features, need_weights, compiling):
            return "native"
        # On the CPU index_add outruns the CSR kernels. Elsewhere it adds in no fixed order, they do.
        plain = compiling or query.is_meta or query.is_cpu or scatter_missing()
        return "torch" if plain else "scatter"
    refusal = None
    if backend == "native":
        refusal = _native_refuses(query, edge_features, need_weights, compiling)
    elif backend == "scatter":
        # torch_scatter has no meta kernels, which compiling, exporting and meta tensors need.
        traced = compiling or query.is_meta
        refusal = "it cannot be traced by torch.compile or torch.export" if traced else scatter_missing()
    if refusal:
        raise PriorGraphError(f"backend={backend!r} cannot be used: {refusal}. Use backend='auto'.")
    return backend


def _native_refuses(
    query: Tensor, edge_features: Tensor | None, need_weights: bool, compiling: bool
) -> str | None:
    """Why the native kernel cannot do what is asked, or None when it can."""
    if native_missing():
        return native_missing()
    if traced() and not compiling:
        return "it works on memory, which a dispatch mode does not see"
    if not query.is_cpu or query.dtype not in NATIVE_DTYPES:
        return (
            f"it runs on the CPU in half, single and double precision, not on {query.device}, {query.dtype}"
        )
    if compiling and (need_weights or edge_features is not None):
        return "with weights or edge features it cannot be compiled"
    if compiling and exporting():
        return "an exported program must not depend on it"
    return None
