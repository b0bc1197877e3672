"""PackedMultiheadAttention: the call of nn.MultiheadAttention on the edges of a prior graph."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from ..checkpoint import AllOrNothing, FixedGraph
from ..errors import PriorGraphError
from ..ops import EdgeLayout, edge_attention, rows
from ..ops.precision import without_autocast
from ..ops.unbind import unbind_three
from ..prior import PriorGraph
from .checks import flag, index_array, positive_int, probability
from .edge_attention import AttentionSettings, EdgeAttention
from .projection import is_plain, project

__all__ = ["PackedMultiheadAttention"]


class PackedMultiheadAttention(AttentionSettings, AllOrNothing, FixedGraph):
    r"""Multi-head attention in which a token attends to its sources in a fixed graph.

    .. math::
        \mathrm{out}_t = W_o \Big[ \sum_{e: s \to t} w_e\, W_v x_s \Big] + b_o, \qquad
        w_e = \operatorname{softmax}_{e: s \to t}
        \frac{\langle W_q x_t, W_k x_s \rangle}{\sqrt{d}}

    in each of ``num_heads`` heads of ``d = embed_dim // num_heads`` channels. The graph says
    which pairs are scored; the four projections are shared by all of them, so the number of
    parameters does not depend on the graph, and time and memory grow with its edges. Where a
    token has at least one source, the result is that of :class:`torch.nn.MultiheadAttention`
    masked by the graph. A token without a live source mixes to zeros, its output is the bias
    of ``out_proj``.

    Parameters
    ----------
    source_index : Tensor, ndarray or sequence of int
        ``(nnz,)``, position in ``key`` and ``value`` that each edge reads. Copied.
    target_index : Tensor, ndarray or sequence of int
        ``(nnz,)``, position in ``query`` that attends along each edge. No pair may come twice.
    query_features, key_features : int
        Sequence lengths of ``query`` and of ``key`` / ``value``.
    embed_dim : int
        Width of every token, divisible by ``num_heads``.
    num_heads : int
        Attention patterns side by side.
    dropout : float, default 0.0
        Probability of dropping an edge weight in training mode, in [0, 1].
    bias : bool, default True
        Whether the projections have a bias.
    kdim, vdim : int or None, default None
        Accepted for :class:`torch.nn.MultiheadAttention`'s sake; None or ``embed_dim``.
    batch_first : bool, default True
        True: batched tensors are ``(..., seq, embed_dim)``. False: ``(seq, batch, embed_dim)``.
    add_self_loops : bool, default False
        Append the missing pairs ``(i, i)``, ascending, after the given ones. Needs
        ``query_features == key_features``.
    identity : str, optional
        Label of the graph, usually ``graph.fingerprint``; kept in checkpoints, and a checkpoint
        with another label is refused. A layer without one refuses labelled checkpoints.
    generator : torch.Generator, optional
        Source of the initial weights; the global random state then stays as it is.
    chunk_size : int, optional
        Evaluate that many edges at a time and compute them again in backward: less memory,
        the same result. Not part of a checkpoint.
    autocast : bool, default False
        False: leave ``torch.autocast`` at the door and compute in the parameters' dtype. True:
        projections follow autocast as ``nn.Linear`` does, the softmax runs in float32.

    Attributes
    ----------
    query_features, key_features, embed_dim, num_heads, head_dim, nnz : int
        Sizes; ``nnz`` counts added self-loops.
    dropout, chunk_size, backend
        Settings, may be changed at any time.
    batch_first, add_self_loops, autocast : bool
        As given.
    source_index, target_index : Tensor
        ``(nnz,)`` int64 buffers, to be read only: the kernels use a sorted copy.
    q_proj, k_proj, v_proj, out_proj : nn.Linear
        ``embed_dim`` to ``embed_dim``.
    identity : str or None
        As given.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule above; from ``load_state_dict`` if the checkpoint is of
        another graph, in which case no weight is changed.

    Notes
    -----
    Initialisation is Xavier-uniform with zero biases (Glorot and Bengio 2010), drawn in the
    order q, k, v, out. Attention is that of Vaswani et al. 2017, restricted to edges.

    Examples
    --------
    >>> import pandas as pd, torch
    >>> from pyg_kpnn import parse_adjacency
    >>> edgelist = pd.DataFrame({"source": ["x", "a", "b", "a"], "target": ["a", "b", "a", "y"]})
    >>> graph = parse_adjacency(edgelist)
    >>> layer = PackedMultiheadAttention.from_adjacency(
    ...     graph, embed_dim=8, num_heads=2, add_self_loops=True, identity=graph.fingerprint)
    >>> layer.nnz, layer.head_dim
    (8, 4)
    >>> tokens = torch.randn(3, graph.state_dim, 8)
    >>> output, weights = layer(tokens, tokens, tokens, need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([3, 4, 8]), torch.Size([3, 8]))
    """

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(
        self,
        source_index: Any,
        target_index: Any,
        query_features: int,
        key_features: int,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        add_self_loops: bool = False,
        *,
        identity: str | None = None,
        generator: Generator | None = None,
        chunk_size: int | None = None,
        autocast: bool = False,
    ) -> None:
        super().__init__()
        self.query_features = positive_int("query_features", query_features)
        self.key_features = positive_int("key_features", key_features)
        self.embed_dim = positive_int("embed_dim", embed_dim)
        self.num_heads = positive_int("num_heads", num_heads)
        if self.embed_dim % self.num_heads:
            raise PriorGraphError(
                f"embed_dim must be divisible by num_heads, got {self.embed_dim} and {self.num_heads}."
            )
        self.head_dim = self.embed_dim // self.num_heads
        for name, dim in (("kdim", kdim), ("vdim", vdim)):
            if dim is not None and positive_int(name, dim) != self.embed_dim:
                raise PriorGraphError(f"{name} must be None or embed_dim ({self.embed_dim}), got {dim!r}.")
        self.batch_first = flag("batch_first", batch_first)
        self.add_self_loops = flag("add_self_loops", add_self_loops)
        self.autocast = flag("autocast", autocast)
        bias = flag("bias", bias)
        if identity is not None and not isinstance(identity, str):
            raise PriorGraphError(f"identity must be a str or None, got {type(identity).__name__}.")
        _check_generator(generator)
        self.attention = EdgeAttention(probability("dropout", dropout), chunk_size)

        source = index_array("source_index", source_index, self.key_features)
        target = index_array("target_index", target_index, self.query_features)
        self._check_pairs(source, target)
        self._num_given = source.numel()
        if self.add_self_loops:
            source, target = self._with_self_loops(source, target)
        self.nnz = source.numel()
        self._fix_graph(source, target, identity)
        # Not buffers: averaging or casting a model must not touch what the kernels index by.
        self._layout = EdgeLayout(torch.stack([source, target]), self.key_features, self.query_features)

        # With a generator the global stream must not move, and nn.Linear draws from it.
        device = "meta" if generator is not None else None
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear = nn.Linear(self.embed_dim, self.embed_dim, bias=bias, device=device)
            setattr(
                self, name, linear if device is None else linear.to_empty(device=torch.get_default_device())
            )
        self.reset_parameters(generator)

    def _apply(self, fn: Any, recurse: bool = True) -> PackedMultiheadAttention:
        super()._apply(fn, recurse)
        if self._layout.device != self.source_index.device:
            self._layout = self._layout.to(self.source_index.device)
        return self

    @classmethod
    def from_adjacency(
        cls,
        spec: PriorGraph,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        add_self_loops: bool = False,
        identity: str | None = None,
        generator: Generator | None = None,
        chunk_size: int | None = None,
        autocast: bool = False,
    ) -> PackedMultiheadAttention:
        """Build the layer over the units of a prior graph: one token a unit.

        Parameters
        ----------
        spec : PriorGraph
            The graph; targets attend to sources. Of a bipartite graph the targets are the
            queries and the sources the keys. Not kept.
        embed_dim, num_heads
            As in the constructor, like every other argument. ``identity`` is not read off the
            graph: pass ``spec.fingerprint``.

        Returns
        -------
        PackedMultiheadAttention

        Raises
        ------
        PriorGraphError
            If ``spec`` is not a PriorGraph, or the constructor refuses an argument.
        """
        if not isinstance(spec, PriorGraph):
            raise PriorGraphError(
                f"spec must be a PriorGraph, got {type(spec).__module__}.{type(spec).__name__}. Build one "
                "with parse_adjacency or a PriorGraph.from_* method."
            )
        return cls(
            spec.source_index,
            spec.target_index,
            spec.num_targets,
            spec.num_sources,
            embed_dim,
            num_heads,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            add_self_loops=add_self_loops,
            identity=identity,
            generator=generator,
            chunk_size=chunk_size,
            autocast=autocast,
        )

    def reset_parameters(self, generator: Generator | None = None) -> None:
        """Draw Xavier-uniform projections in the order q, k, v, out; biases become zero.

        Parameters
        ----------
        generator : torch.Generator, optional
            Where to draw from; the default generator when not given.
        """
        _check_generator(generator)
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight, generator=generator)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def has_live_source(self, key_padding_mask: Tensor) -> Tensor:
        """Which queries have a source that is not masked; the others mix to zeros.

        Parameters
        ----------
        key_padding_mask : Tensor
            Bool, ``(..., key_features)``, True = that key is not there.

        Returns
        -------
        Tensor
            Bool, ``(..., query_features)``.

        Raises
        ------
        PriorGraphError
            If the mask is not as above.
        """
        if not isinstance(key_padding_mask, Tensor):
            kind = type(key_padding_mask).__name__
            raise PriorGraphError(f"key_padding_mask must be a boolean tensor, True = ignore, got {kind}.")
        axes, device = key_padding_mask.shape[:-1], key_padding_mask.device
        self._check_mask(key_padding_mask, axes, device)
        live = (~key_padding_mask).float()[..., None, None]
        asks = live.new_zeros(*axes, self.query_features, 1, 1)
        # The mean over sources, by whatever backend there is: nothing of the size of the edges is stored.
        share, _ = edge_attention(
            asks,
            torch.zeros_like(live),
            live,
            self._layout.to("meta") if live.is_meta else self._layout,
            chunk_size=self.chunk_size,
            backend=self.backend,
        )
        return share[..., 0, 0] > 0

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        edge_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Let every query attend to its live keys and mix their values.

        Parameters
        ----------
        query : Tensor
            ``(query_features, embed_dim)``, ``(..., query_features, embed_dim)``, or with
            ``batch_first=False`` ``(query_features, batch, embed_dim)``; floating point.
        key, value : Tensor
            The same with ``key_features``, and the same batch axes.
        key_padding_mask : Tensor, optional
            Bool, ``(key_features,)`` without a batch, else the batch axes first:
            ``(..., key_features)``. True = that key is not there: its edges leave the softmax,
            and whatever it holds, NaN included, reaches no output and no gradient. The same token
            as a query still asks; its NaN is in its own output alone, and in no gradient of a loss
            that leaves that output out.
        need_weights : bool, default False
            Also return the weight of every edge.
        attn_mask : None
            Must be None; the graph is the mask.
        average_attn_weights : bool, default True
            Average the returned weights over the heads.
        is_causal : bool
            Must be False.
        edge_bias : Tensor, optional
            ``(nnz,)``, ``(nnz, num_heads)`` or with batch axes ``(..., nnz, num_heads)``, in the
            order of ``source_index``; added to the scores, such as a log-prior.

        Returns
        -------
        output : Tensor
            In the shape of ``query``.
        weights : Tensor or None
            ``(..., nnz)``, or ``(..., nnz, num_heads)`` per head, in the order of
            ``source_index``; with ``batch_first=False`` and a batch ``(nnz, batch[, num_heads])``.
            They sum to 1 over the edges into a query, or are 0 where no key is live; in training
            mode they are the weights after dropout.

        Raises
        ------
        PriorGraphError
            If an argument is not as above.
        """
        flag("need_weights", need_weights)
        flag("average_attn_weights", average_attn_weights)
        if attn_mask is not None:
            raise PriorGraphError("attn_mask must be None: the edges of the graph are the mask.")
        if is_causal is not False:
            raise PriorGraphError("is_causal must be False: the edges of the graph are the mask.")
        batched_second = not self.batch_first and isinstance(query, Tensor) and query.dim() == 3
        self._check_tokens(query, key, value)
        same = value is key
        one = same and key is query and key_padding_mask is None
        if batched_second:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        mask = self._check_mask(key_padding_mask, query.shape[:-2], query.device)

        dtype = _floating_dtype(self.q_proj, query.dtype)
        with contextlib.nullcontext() if self.autocast else without_autocast(query.device.type):
            if mask is not None:
                # Before the projection: 0 * NaN in the gradient of its weight would be NaN.
                key = key.masked_fill(mask.unsqueeze(-1), 0.0)
                value = key if same else value.masked_fill(mask.unsqueeze(-1), 0.0)
            if one and self._projects_plainly():
                projected = self._project_together(query.to(dtype))
            else:
                named = (("q_proj", query), ("k_proj", key), ("v_proj", value))
                projected = tuple(self._project(name, tokens.to(dtype)) for name, tokens in named)
            mixed, weights = self.attention(
                *projected,
                # The indices keep their values when the module goes to meta; its inputs are there then.
                self._layout.to("meta") if query.is_meta else self._layout,
                bias=edge_bias,
                key_mask=mask,
                need_weights=need_weights,
                num_given=self._num_given,
            )
            output = project(self.out_proj, mixed.flatten(-2))
        if output.shape[-1] != self.embed_dim:
            raise PriorGraphError(f"out_proj must return {self.embed_dim} channels, got {output.shape[-1]}.")
        if batched_second:
            output = output.transpose(0, 1)
        if not need_weights or weights is None:
            return output, None
        weights = weights.mean(-1) if average_attn_weights else weights
        return output, weights.transpose(0, 1) if batched_second else weights

    @property
    def given_edge_index(self) -> Tensor:
        """``(2, E)`` sources and targets of the edges given at construction, without added loops."""
        return torch.stack([self.source_index, self.target_index])[:, : self._num_given]

    def digest_sizes(self) -> tuple[int, int, int, int]:
        """query_features, key_features, embed_dim, num_heads."""
        return self.query_features, self.key_features, self.embed_dim, self.num_heads

    def extra_repr(self) -> str:
        names = ("query_features", "key_features", "embed_dim", "num_heads", "nnz", "dropout",
                 "batch_first", "add_self_loops", "chunk_size")  # fmt: skip
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    def _check_pairs(self, source: Tensor, target: Tensor) -> None:
        if source.numel() != target.numel():
            raise PriorGraphError(
                "source_index and target_index must pair up, one entry an edge, got "
                f"{source.numel()} and {target.numel()}."
            )
        pair = (target * self.key_features + source).numpy()
        values, first, counts = np.unique(pair, return_index=True, return_counts=True)
        if values.size < pair.size:
            at = int(first[counts > 1].min())
            raise PriorGraphError(
                "source_index and target_index must not repeat a (source, target) pair, got "
                f"({int(source[at])}, {int(target[at])}) more than once, first at position {at}."
            )

    def _with_self_loops(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_features != self.key_features:
            raise PriorGraphError(
                "add_self_loops requires query_features == key_features, got "
                f"{self.query_features} and {self.key_features}."
            )
        missing = torch.ones(self.key_features, dtype=torch.bool, device="cpu")
        missing[source[source == target]] = False
        loops = missing.nonzero().flatten()
        return torch.cat([source, loops]), torch.cat([target, loops])

    def _project(self, name: str, tokens: Tensor) -> Tensor:
        projected = project(getattr(self, name), tokens)
        if projected.shape[-1] != self.embed_dim:
            raise PriorGraphError(f"{name} must return {self.embed_dim} channels, got {projected.shape[-1]}.")
        return projected.unflatten(-1, (self.num_heads, self.head_dim))

    def _projects_plainly(self) -> bool:
        """Whether q, k and v are ordinary Linear layers that nobody watches or has changed."""
        return all(
            is_plain(layer)
            and layer.weight.shape == (self.embed_dim, self.embed_dim)
            and (layer.bias is None) == (self.q_proj.bias is None)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )

    def _project_together(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value of the same tokens by one matrix product."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        # Under autocast only the product may change dtype, as in each Linear; cat refuses some mixtures.
        with without_autocast(tokens.device.type):
            weight = torch.cat([layer.weight for layer in layers])
            bias = None if self.q_proj.bias is None else torch.cat([layer.bias for layer in layers])
        together = rows.linear(tokens, weight, bias)
        return unbind_three(together.unflatten(-1, (3, self.num_heads, self.head_dim)))

    def _check_tokens(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, tokens in (("query", query), ("key", key), ("value", value)):
            if not isinstance(tokens, Tensor) or not tokens.is_floating_point():
                what = f"dtype {tokens.dtype}" if isinstance(tokens, Tensor) else type(tokens).__name__
                raise PriorGraphError(f"{name} must be a floating-point tensor, got {what}.")
            if tokens.dim() < 2 or tokens.shape[-1] != self.embed_dim:
                raise PriorGraphError(
                    f"{name} must have at least 2 axes, the last of width embed_dim={self.embed_dim}, "
                    f"got shape {tuple(tokens.shape)}."
                )
            if tokens.device != query.device:
                raise PriorGraphError(
                    f"query, key and value must be on one device, got query on {query.device} and {name} on "
                    f"{tokens.device}."
                )
            if not self.batch_first and tokens.dim() > 3:
                raise PriorGraphError(
                    f"{name} must be (seq, embed_dim) or (seq, batch, embed_dim) with batch_first=False, "
                    f"got shape {tuple(tokens.shape)}."
                )
            axis = -2 if self.batch_first or tokens.dim() == 2 else 0
            size = self.query_features if name == "query" else self.key_features
            if tokens.shape[axis] != size:
                raise PriorGraphError(
                    f"{name} must hold {size} tokens along axis {axis}, got shape {tuple(tokens.shape)}."
                )
        axes = [t.shape[:-2] if self.batch_first else t.shape[1:-1] for t in (query, key, value)]
        if not axes[0] == axes[1] == axes[2]:
            found = ", ".join(str(tuple(a)) for a in axes)
            raise PriorGraphError(f"query, key and value must have the same batch axes, got {found}.")

    def _check_mask(self, mask: Tensor | None, batch_axes: torch.Size, device: torch.device) -> Tensor | None:
        if mask is None:
            return None
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            what = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise PriorGraphError(f"key_padding_mask must be a boolean tensor, True = ignore, got {what}.")
        if mask.shape != (*batch_axes, self.key_features):
            raise PriorGraphError(
                f"key_padding_mask must have shape {(*batch_axes, self.key_features)}, batch axes first, "
                f"got {tuple(mask.shape)}."
            )
        if mask.device != device and mask.is_meta:
            raise PriorGraphError(f"key_padding_mask must hold data for tokens on {device}, got one on meta.")
        return mask.to(device)


def _floating_dtype(projection: nn.Module, otherwise: torch.dtype) -> torch.dtype:
    """What a projection computes in; a replaced or quantised one may not say."""
    weight = getattr(projection, "weight", None)
    parameters = [weight] if isinstance(weight, Tensor) else projection.parameters()
    return next((p.dtype for p in parameters if p.is_floating_point()), otherwise)


def _check_generator(generator: Any) -> None:
    if generator is not None and not isinstance(generator, Generator):
        raise PriorGraphError(
            f"generator must be a torch.Generator or None, got {type(generator).__name__}. A seed is not "
            "one: use torch.Generator().manual_seed(seed)."
        )
