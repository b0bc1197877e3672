"""Edge attention as a PyG message passing operator without parameters."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing

from ..errors import PriorGraphError
from ..ops import EdgeLayout, edge_attention
from ..ops.dropout import draw_seed, drop_weights
from ..ops.layout import INTEGER_DTYPES
from ..ops.precision import traced
from ..ops.rows import times
from .checks import backend_name, flag, positive_int, probability

__all__ = ["AttentionSettings", "EdgeAttention", "plain_edge_index"]


class EdgeAttention(MessagePassing):
    r"""Multi-head attention along edges, for queries, keys and values that are given.

    .. math::
        m_t = \sum_{e: s \to t} w_e\, v_s, \qquad
        w_e = \operatorname{softmax}_{e: s \to t}\!\left(
        \frac{\langle q_t, k_s \rangle}{\sqrt{d}} + b_e \right)

    The layers of this package project tokens and hand them to this operator; it has no
    parameters of its own. It computes :func:`pyg_kpnn.ops.edge_attention` in one fused call,
    unless somebody looks at single messages: with ``explain`` on, or with a message or
    aggregate hook registered, values are lifted to the edges and go through :meth:`message`
    and :meth:`aggregate` as in every PyG layer.

    Parameters
    ----------
    dropout : float, default 0.0
        Probability of dropping an edge's weight, in training mode only.
    chunk_size : int, optional
        Evaluate that many edges at a time; less memory, the same result.
    backend : {"auto", "native", "torch", "scatter", "reference"}
        See :func:`pyg_kpnn.ops.edge_attention`.

    Raises
    ------
    PriorGraphError
        If an argument is not of its kind.

    Notes
    -----
    :meth:`message` receives ``alpha`` ``(E, H)``, each edge's softmax weight before dropout, in
    the order of the edges given, added self-loops last; this is what PyG's
    ``AttentionExplainer`` collects. When ``value`` has leading batch axes, ``alpha`` is the
    mean over them.

    Examples
    --------
    >>> import torch
    >>> attend = EdgeAttention()
    >>> q = k = v = torch.ones(3, 1, 2)  # 3 nodes, 1 head, 2 channels
    >>> mixed, weights = attend(q, k, v, torch.tensor([[0, 1], [2, 2]]), need_weights=True)
    >>> mixed.flatten(1).tolist(), weights.flatten().tolist()
    ([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [0.5, 0.5])
    """

    def __init__(self, dropout: float = 0.0, chunk_size: int | None = None, backend: str = "auto") -> None:
        super().__init__(aggr="sum", node_dim=-3)
        self.dropout = probability("dropout", dropout)
        self.chunk_size = None if chunk_size is None else positive_int("chunk_size", chunk_size)
        self.backend = backend_name(backend)
        self._layouts = _LastLayout()

    @property
    def flow(self) -> str:
        """Always ``"source_to_target"``; turn the edges round with ``edge_index.flip(0)``."""
        return "source_to_target"

    @flow.setter
    def flow(self, value: str) -> None:
        if value != self.flow:
            raise PriorGraphError(
                f"flow must be 'source_to_target', got {value!r}. Turn edges round with edge_index.flip(0)."
            )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edges: EdgeLayout | Tensor,
        *,
        bias: Tensor | None = None,
        edge_features: Tensor | None = None,
        key_mask: Tensor | None = None,
        need_weights: bool = False,
        num_given: int | None = None,
        fixed: bool | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend along the edges.

        Parameters
        ----------
        query : Tensor
            ``(..., num_targets, H, d)``.
        key, value : Tensor
            ``(..., num_sources, H, d)``.
        edges : EdgeLayout or Tensor
            A layout, or ``(2, E)`` integer indices (sources, targets), or an ``EdgeIndex``.
            The layout of a tensor is remembered until another tensor, or another content, comes.
        bias, edge_features, key_mask, need_weights
            As in :func:`pyg_kpnn.ops.edge_attention`.
        num_given : int, optional
            How many of the edges the caller was given; the rest are self-loops it added, which
            explainers leave alone. All of them by default.
        fixed : bool, optional
            Whether the edges belong to the layer, so that an explainer must name the same ones. By
            default that is so for a layout and not for a tensor.

        Returns
        -------
        mixed : Tensor
            ``(..., num_targets, H, d)``.
        weights : Tensor or None
            ``(..., E, H)`` after dropout, in the caller's edge order.
        """
        flag("need_weights", need_weights)
        fixed = isinstance(edges, EdgeLayout) if fixed is None else flag("fixed", fixed)
        layout = edges if isinstance(edges, EdgeLayout) else self.layout_of(edges, query, key)
        options = {"bias": bias, "edge_features": edge_features, "key_mask": key_mask}
        if self._lifts():
            return self._lifted(query, key, value, layout, options, num_given, fixed)
        return self._fused(query, key, value, layout, options, need_weights)

    def softmax_weights(
        self,
        query: Tensor,
        key: Tensor,
        edges: EdgeLayout | Tensor,
        **options: Any,
    ) -> Tensor:
        """Weights ``(..., E, H)`` before dropout; arguments as in :meth:`forward`."""
        layout = edges if isinstance(edges, EdgeLayout) else self.layout_of(edges, query, key)
        _, alpha = edge_attention(
            query,
            key,
            key,
            layout,
            **options,
            chunk_size=self.chunk_size,
            backend=self.backend,
            need_weights=True,
        )
        assert alpha is not None
        return alpha

    def layout_of(
        self, edge_index: Tensor, query: Tensor, key: Tensor, self_loops: bool = False
    ) -> EdgeLayout:
        """Layout of ``edge_index``, with a loop at every target appended if asked for.

        Remembered for the last tensor seen, as long as that lives and holds the same edges. On a GPU a
        write that torch does not count, through ``.data`` or another library, goes unnoticed.
        """
        for name, tensor in (("query", query), ("key", key)):
            if not isinstance(tensor, Tensor) or tensor.dim() < 3:
                what = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
                raise PriorGraphError(f"{name} must be a tensor of shape (..., nodes, H, d), got {what}.")
        return self._layouts(edge_index, key.shape[-3], query.shape[-3], self_loops)

    def _lifts(self) -> bool:
        """Whether somebody looks at single messages."""
        return bool(
            self.explain
            or self._message_forward_pre_hooks
            or self._message_forward_hooks
            or self._aggregate_forward_pre_hooks
            or self._aggregate_forward_hooks
        )

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: EdgeLayout,
        options: dict[str, Any],
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        # PyG's propagate takes the fused road for sparse inputs only, so this is its skeleton
        # for a layout, with the same hooks in the same places.
        size = [layout.num_sources, layout.num_targets]
        kwargs = {"query": query, "key": key, "value": value, **options, "need_weights": need_weights}
        if self._propagate_forward_pre_hooks:
            edge_index = layout.edge_index
            for hook in self._propagate_forward_pre_hooks.values():
                result = hook(self, (edge_index, size, kwargs))
                if result is not None:
                    new_edges, size, kwargs = result
                    if new_edges is not edge_index:
                        edge_index, layout = new_edges, EdgeLayout(plain_edge_index(new_edges), *size)
        for hook in self._message_and_aggregate_forward_pre_hooks.values():
            result = hook(self, (layout, kwargs))
            if result is not None:
                layout, kwargs = result
        out = self.message_and_aggregate(layout, **kwargs)
        for hook in self._message_and_aggregate_forward_hooks.values():
            result = hook(self, (layout, kwargs), out)
            out = out if result is None else result
        if self._propagate_forward_hooks:
            for hook in self._propagate_forward_hooks.values():
                result = hook(self, (layout.edge_index, size, kwargs), out)
                out = out if result is None else result
        return out

    def message_and_aggregate(
        self,
        edge_index: EdgeLayout,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        edge_features: Tensor | None = None,
        key_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Score, normalise and mix in one call, without a tensor of all messages."""
        return edge_attention(
            query,
            key,
            value,
            edge_index,
            bias=bias,
            edge_features=edge_features,
            key_mask=key_mask,
            dropout_p=self.dropout if self.training else 0.0,
            chunk_size=self.chunk_size,
            backend=self.backend,
            need_weights=need_weights,
        )

    def _lifted(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: EdgeLayout,
        options: dict[str, Any],
        num_given: int | None,
        fixed: bool,
    ) -> tuple[Tensor, Tensor]:
        # Messages are summed as the fused call sums them, half precision in float32.
        dtype = value.dtype
        query, key, value = (t.to(torch.promote_types(dtype, torch.float32)) for t in (query, key, value))
        weights = alpha = self.softmax_weights(query, key, layout, **options)
        if self.training and self.dropout > 0.0:
            flat = alpha.reshape(-1, *alpha.shape[-2:])
            position = torch.arange(layout.num_edges, device=alpha.device)
            weights = drop_weights(flat, position, self.dropout, draw_seed(alpha.device)).view_as(alpha)
        if options["key_mask"] is not None:
            # What a masked value holds must not meet a weight of 0, which NaN survives.
            value = value.masked_fill(options["key_mask"][..., None, None], 0.0)
        mixed = self.propagate(
            layout.edge_index,
            size=(layout.num_sources, layout.num_targets),
            value=(value, None),
            alpha=alpha.flatten(end_dim=-3).mean(0) if alpha.dim() > 2 else alpha,
            weights=weights,
            edge_features=options["edge_features"],
            num_given=layout.num_edges if num_given is None else num_given,
            fixed=fixed,
        )
        return mixed.to(dtype), weights.to(dtype)

    def message(
        self, value_j: Tensor, alpha: Tensor, weights: Tensor, edge_features: Tensor | None
    ) -> Tensor:
        """What each edge carries, ``(..., E, H, d)``: its weight times its source's value."""
        carried = value_j if edge_features is None else value_j + edge_features
        return times(carried, weights.unsqueeze(-1).to(carried.dtype))

    def explain_message(
        self, inputs: Tensor, num_given: int, fixed: bool, edge_index_i: Tensor, edge_index_j: Tensor
    ) -> Tensor:
        """Scale every message by its own entry of the explainer's mask, added self-loops by 1."""
        mask = self._edge_mask
        if mask is None:
            raise PriorGraphError("An explainer must set an edge mask before a masked forward pass.")
        rule = f"An edge mask must have one entry for each of the {num_given} edges the layer was given"
        if mask.dim() != 1 or mask.shape[0] != num_given:
            raise PriorGraphError(f"{rule}, in their order; got shape {tuple(mask.shape)}.")
        # PyG tells a layer of the explained edge_index only which of its edges are loops.
        no_loop = (edge_index_i != edge_index_j)[:num_given]
        if fixed and self._loop_mask is not None and not torch.equal(self._loop_mask, no_loop):
            raise PriorGraphError(
                f"{rule}, in their order; the explained edge_index has its self-loops elsewhere. Explain a "
                "layer with fixed edges with edge_index equal to its own given edges."
            )
        if self._apply_sigmoid:
            mask = mask.sigmoid()
        added = inputs.shape[self.node_dim] - num_given
        mask = torch.cat([mask, mask.new_ones(added)])
        return inputs * mask.view(-1, 1, 1)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(dropout={self.dropout}, chunk_size={self.chunk_size}, "
            f"backend={self.backend!r})"
        )


def plain_edge_index(edge_index: Tensor) -> Tensor:
    """The same indices as an ordinary tensor, which torch.compile needs of an EdgeIndex."""
    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index


class _LastLayout:
    """Layout of the last ``edge_index`` seen, as long as that tensor lives and holds the same edges."""

    def __init__(self) -> None:
        # One tuple, read once and written once, so that threads never see half of it.
        self._last: tuple[weakref.ref[Tensor], tuple[Any, ...], Tensor | None, EdgeLayout] | None = None

    def __call__(
        self, edge_index: Tensor, num_sources: int, num_targets: int, self_loops: bool
    ) -> EdgeLayout:
        if traced() or not isinstance(edge_index, Tensor) or edge_index.is_inference():
            return self._build(edge_index, num_sources, num_targets, self_loops)
        stamp = (
            edge_index._version, edge_index.data_ptr(), edge_index.shape, edge_index.device,
            num_sources, num_targets, self_loops,
        )  # fmt: skip
        last = self._last
        if last is not None:
            tensor, seen, edges, layout = last
            # NumPy and ``.data`` write without raising the version, so the edges are compared where
            # that waits for no device.
            same = tensor() is edge_index and seen == stamp
            if same and (edges is None or torch.equal(edges, plain_edge_index(edge_index))):
                return layout
        # Inside torch.func.grad and the like every new tensor belongs to the transform, under
        # inference mode to that; a layout must outlive both.
        with torch._C._DisableFuncTorch(), torch.inference_mode(False):
            layout = self._build(edge_index, num_sources, num_targets, self_loops)
            kept = plain_edge_index(edge_index).clone() if edge_index.is_cpu else None
        self._last = (weakref.ref(edge_index), stamp, kept, layout)
        return layout

    @staticmethod
    def _build(edge_index: Tensor, num_sources: int, num_targets: int, self_loops: bool) -> EdgeLayout:
        edge_index = plain_edge_index(edge_index)
        if self_loops and edge_index.dtype in INTEGER_DTYPES:
            loops = torch.arange(num_targets, device=edge_index.device)
            edge_index = torch.cat([edge_index.to(torch.int64), loops.expand(2, -1)], dim=1)
        return EdgeLayout(edge_index, num_sources, num_targets)

    def __reduce__(self) -> tuple[type[_LastLayout], tuple[()]]:
        # A cache: copies and pickles of a layer start with an empty one.
        return _LastLayout, ()


class AttentionSettings:
    """What a layer lets its :class:`EdgeAttention` decide; may be changed at any time."""

    attention: EdgeAttention

    @property
    def flow(self) -> str:
        """Always ``"source_to_target"``, as in :class:`EdgeAttention`."""
        return self.attention.flow

    @flow.setter
    def flow(self, value: str) -> None:
        self.attention.flow = value

    @property
    def dropout(self) -> float:
        """Probability of dropping an attention weight in training mode."""
        return self.attention.dropout

    @dropout.setter
    def dropout(self, value: float) -> None:
        self.attention.dropout = probability("dropout", value)

    @property
    def chunk_size(self) -> int | None:
        """Edges evaluated at a time, or None for all."""
        return self.attention.chunk_size

    @chunk_size.setter
    def chunk_size(self, value: int | None) -> None:
        self.attention.chunk_size = None if value is None else positive_int("chunk_size", value)

    @property
    def backend(self) -> str:
        """Backend of the kernels, see :func:`pyg_kpnn.ops.edge_attention`."""
        return self.attention.backend

    @backend.setter
    def backend(self, value: str) -> None:
        self.attention.backend = backend_name(value)
