"""PriorTransformer: a ready model over the measurements of a prior graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..checkpoint import AllOrNothing, FrozenBuffers
from ..errors import PriorGraphError
from ..hub import Shareable
from ..ops.rows import apart
from ..prior import PriorGraph
from .checks import flag, mask_of, positive_int, probability, values_of
from .packed_attention import PackedMultiheadAttention
from .projection import LayerNorm, NodeLinear, project

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PriorTransformer", "PriorTransformerLayer"]

READOUTS = ("node", "graph", "class")
EDGE_BIASES = (None, "sign", "log_weight")


class PriorTransformerLayer(AllOrNothing):
    r"""Pre-norm Transformer layer whose attention runs along a prior graph.

    .. math::
        y = x + \mathrm{Attention}(\mathrm{LayerNorm}(x)), \qquad
        z = y + \mathrm{FeedForward}(\mathrm{LayerNorm}(y))

    Parameters
    ----------
    graph : PriorGraph
        Who may attend to whom; one token a unit. Not bipartite.
    embed_dim, num_heads : int
        Width of a token and number of heads.
    dropout : float, default 0.0
        On attention weights, on the hidden layer and on both residual branches.
    feedforward_dim : int, optional
        Hidden width of the feed-forward network, ``4 * embed_dim`` when not given.
    add_self_loops : bool, default True
        Let every token attend to itself.
    chunk_size : int, optional
        As in :class:`PackedMultiheadAttention`.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule.

    Notes
    -----
    Pre-norm as in Xiong et al. 2020 (arXiv:2002.04745), GELU in the feed-forward network.
    """

    def __init__(
        self,
        graph: PriorGraph,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        feedforward_dim: int | None = None,
        add_self_loops: bool = True,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(graph, PriorGraph) and graph.is_bipartite:
            raise PriorGraphError(
                "PriorTransformerLayer needs one set of nodes, got a bipartite graph. Use "
                "PackedMultiheadAttention.from_adjacency for a bipartite map."
            )
        self.attention = PackedMultiheadAttention.from_adjacency(
            graph,
            embed_dim,
            num_heads,
            dropout=dropout,
            add_self_loops=add_self_loops,
            identity=graph.fingerprint if isinstance(graph, PriorGraph) else None,
            chunk_size=chunk_size,
            autocast=True,
        )
        width = 4 * embed_dim if feedforward_dim is None else positive_int("feedforward_dim", feedforward_dim)
        self.attention_norm = LayerNorm(embed_dim)
        self.feedforward_norm = LayerNorm(embed_dim)
        self.feedforward = nn.Sequential(
            nn.Linear(embed_dim, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, embed_dim)
        )
        self.dropout = nn.Dropout(dropout)

    def reset_parameters(self) -> None:
        """Draw every parameter anew."""
        for module in (
            self.attention,
            self.attention_norm,
            self.feedforward_norm,
            self.feedforward[0],
            self.feedforward[3],
        ):
            module.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        tokens: Tensor,
        key_padding_mask: Tensor | None = None,
        edge_bias: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Transform tokens ``(..., n, embed_dim)``.

        Parameters
        ----------
        tokens : Tensor
            ``(..., n, embed_dim)``, n units of the graph.
        key_padding_mask : Tensor, optional
            ``(..., n)`` bool, True = nobody attends to that token. It still attends to others; NaN in it
            comes out in its own place and no other.
        edge_bias : Tensor, optional
            ``(nnz,)`` or ``(nnz, num_heads)``, added to the scores.
        need_weights : bool, default False
            Also return the attention weights ``(..., nnz, num_heads)``.

        Returns
        -------
        Tensor, Tensor or None
            Tokens in the shape given, and the weights.
        """
        normed = self.attention_norm(tokens)
        mixed, weights = self.attention(
            normed,
            normed,
            normed,
            key_padding_mask,
            need_weights,
            average_attn_weights=False,
            edge_bias=edge_bias,
        )
        tokens = tokens + self.dropout(mixed)
        known, lost = apart(tokens)
        return tokens + self.dropout(self.feedforward(self.feedforward_norm(known))) + lost, weights


class PriorTransformer(AllOrNothing, FrozenBuffers, Shareable):
    r"""Transformer over the measured values of named nodes, wired by a prior graph.

    Node :math:`i` with value :math:`x_i` becomes the token :math:`e_i + x_i u_i`: an embedding
    of its name plus its value times a learned direction of its own. ``num_layers`` layers of
    attention along the prior follow, then an affine head.

    Parameters
    ----------
    graph : PriorGraph
        n nodes (units) in the order of ``graph.nodes``.
    embed_dim, num_heads, num_layers : int, default 64, 4, 2
        Size of the model.
    readout : {"node", "graph", "class"}, default "node"
        ``"node"``: one number a unit, ``(B, n)``. ``"graph"``: one number a sample, ``(B,)``.
        ``"class"``: logits, ``(B, num_classes)``.
    num_classes : int, optional
        For ``readout="class"``, at least 1.
    shared_head : bool, default False
        False: the head has weights of its own for every node. A ``"node"`` output is read from its
        token by that node's weights, ``"graph"`` and ``"class"`` from every channel of every token,
        0 for those that are masked, with ``n * embed_dim`` weights an output. True: one set of
        weights reads every token, or the mean over those that are not masked: fewer parameters, and
        less accurate where few of many nodes tell the class.
    edge_bias : {None, "sign", "log_weight"}, default None
        What the prior knows of an edge, added to its score: ``"sign"`` a learned term for each
        layer, head and sign (activating, inhibiting, unknown, own loop), starting at zero;
        ``"log_weight"`` the logarithm of the prior's weights, so that an untrained model
        attends in proportion to them (weights must be positive; an added loop counts as 1).
    dropout : float, default 0.0
        See :class:`PriorTransformerLayer`.
    add_self_loops : bool, default True
        Let every token attend to itself.
    chunk_size : int, optional
        As in :class:`PackedMultiheadAttention`.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule, or an edge without positive weight meets ``"log_weight"``.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn import PriorGraph
    >>> graph = PriorGraph.from_edges([("tf", "gene"), ("gene", "tf")])
    >>> model = PriorTransformer(graph, embed_dim=8, num_heads=2, readout="class", num_classes=3)
    >>> x = torch.randn(5, 2)  # 5 samples of (gene, tf)
    >>> model(x).shape
    torch.Size([5, 3])
    >>> [tuple(w.shape) for w in model.edge_weights(x)]  # 2 edges, 2 loops; 2 heads
    [(5, 4, 2), (5, 4, 2)]
    """

    log_weight: Tensor | None
    sign_class: Tensor | None
    _frozen_buffers = ("log_weight", "sign_class")

    def __init__(
        self,
        graph: PriorGraph,
        *,
        embed_dim: int = 64,
        num_heads: int = 4,
        num_layers: int = 2,
        readout: str = "node",
        num_classes: int | None = None,
        shared_head: bool = False,
        edge_bias: str | None = None,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(graph, PriorGraph):
            raise PriorGraphError(f"graph must be a PriorGraph, got {type(graph).__name__}.")
        if readout not in READOUTS:
            raise PriorGraphError(f"readout must be one of {', '.join(READOUTS)}, got {readout!r}.")
        if edge_bias not in EDGE_BIASES:
            raise PriorGraphError(f"edge_bias must be None, 'sign' or 'log_weight', got {edge_bias!r}.")
        if (readout == "class") != (num_classes is not None):
            raise PriorGraphError(
                f"num_classes goes with readout='class' and only with it, got readout={readout!r} and "
                f"num_classes={num_classes!r}."
            )
        embed_dim = positive_int("embed_dim", embed_dim)
        dropout = probability("dropout", dropout)
        flag("add_self_loops", add_self_loops)
        num_layers = positive_int("num_layers", num_layers)
        self.graph = graph
        self.readout = readout
        self.shared_head = flag("shared_head", shared_head)
        self.edge_bias = edge_bias
        self.value_weight = nn.Parameter(torch.empty(graph.state_dim, embed_dim))
        self.name_embedding = nn.Parameter(torch.empty(graph.state_dim, embed_dim))
        layers = [
            PriorTransformerLayer(
                graph,
                embed_dim,
                num_heads,
                dropout=dropout,
                add_self_loops=add_self_loops,
                chunk_size=chunk_size,
            )
            for _ in range(num_layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(embed_dim)
        outputs = 1 if num_classes is None else positive_int("num_classes", num_classes)
        if readout == "node" and not shared_head:
            self.head: nn.Module = NodeLinear(graph.state_dim, embed_dim)
        else:
            self.head = nn.Linear(embed_dim * (1 if shared_head else graph.state_dim), outputs)
        self._set_edge_bias(num_layers, num_heads, layers[0].attention.nnz)
        self._reset_embeddings()

    def _set_edge_bias(self, num_layers: int, num_heads: int, nnz: int) -> None:
        graph = self.graph
        pair_edge = graph.pair_edge
        added = nnz - pair_edge.numel()
        log_weight = sign_class = None
        if self.edge_bias == "log_weight":
            weight = graph.weight
            if weight is not None and bool((weight <= 0).any()):
                source, target = graph.edges[int((weight <= 0).nonzero()[0])]
                raise PriorGraphError(
                    f"edge_bias='log_weight' needs positive weights; {source} -> {target} has "
                    f"{float(weight[weight <= 0][0])!r}. Remove the edge or give it a positive weight."
                )
            log_weight = self._log_weights(nnz)
        if self.edge_bias == "sign":
            sign = (
                torch.zeros(graph.num_edges, dtype=torch.int64, device="cpu")
                if graph.sign is None
                else graph.sign.long()
            )
            # -1, 0, +1 become 0, 1, 2; an added loop is 3.
            sign_class = torch.cat([sign[pair_edge] + 1, torch.full((added,), 3, device="cpu")])
            self.sign_bias = nn.Parameter(torch.zeros(num_layers, 4, num_heads))
        # Derived from the graph, so not part of a checkpoint.
        self.register_buffer("log_weight", log_weight, persistent=False)
        self.register_buffer("sign_class", sign_class, persistent=False)

    def _log_weights(self, nnz: int) -> Tensor:
        """Logarithms ``(nnz,)`` of the graph's weights on the CPU, as exact as the parameters can use."""
        weight, pair_edge = self.graph.weight, self.graph.pair_edge
        logs = torch.zeros(nnz, dtype=torch.float64, device="cpu")
        if weight is not None:
            logs[: pair_edge.numel()] = weight[pair_edge].double().log()
        return logs.to(torch.promote_types(self.value_weight.dtype, torch.float32))

    def _apply(self, fn: Any, recurse: bool = True) -> PriorTransformer:
        super()._apply(fn, recurse)
        kept = self.log_weight
        if kept is not None and kept.dtype != torch.promote_types(self.value_weight.dtype, torch.float32):
            self.log_weight = self._log_weights(kept.numel()).to(kept.device)
        return self

    @property
    def config(self) -> dict[str, Any]:
        """Every argument of the constructor but the graph, as JSON-ready values.

        ``PriorTransformer(graph, **model.config)`` builds the same model with other weights.
        ``dropout`` and ``chunk_size`` are those the first layer has now.
        """
        first: Any = self.layers[0]
        return {
            "embed_dim": self.value_weight.shape[1],
            "num_heads": first.attention.num_heads,
            "num_layers": len(self.layers),
            "readout": self.readout,
            "num_classes": self.head.out_features if self.readout == "class" else None,
            "shared_head": self.shared_head,
            "edge_bias": self.edge_bias,
            "dropout": first.dropout.p,
            "add_self_loops": first.attention.add_self_loops,
            "chunk_size": first.attention.chunk_size,
        }

    def _reset_embeddings(self) -> None:
        # Tokens of unit scale for standardised values: half their variance from the name, half
        # from the value.
        for parameter in (self.value_weight, self.name_embedding):
            nn.init.normal_(parameter, std=0.5**0.5)

    def reset_parameters(self) -> None:
        """Draw every parameter anew."""
        self._reset_embeddings()
        for module in (*self.layers, self.norm, self.head):
            module.reset_parameters()
        if self.edge_bias == "sign":
            nn.init.zeros_(self.sign_bias)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Predict from measured values.

        Parameters
        ----------
        x : Tensor
            ``(B, n)`` values in the order of ``graph.nodes``; standardise them first.
        key_padding_mask : Tensor, optional
            ``(B, n)`` bool, True = not measured: the value, NaN included, is not used. Nobody attends to
            that node until it has attended to others: in the first layer never, from the second on where
            one of its sources was measured, or was attended to itself in the layer before. Its token
            then holds what they said. With ``readout`` ``"graph"`` or ``"class"`` the head does not read it.

        Returns
        -------
        Tensor
            ``(B, n)``, ``(B,)`` or ``(B, num_classes)`` by ``readout``; logits, not probabilities.

        Raises
        ------
        PriorGraphError
            If ``x`` or the mask has another shape or kind.
        """
        return self._run(x, key_padding_mask, False)[0]

    def edge_weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> list[Tensor]:
        """Attention weights ``(B, nnz, num_heads)`` of every layer, after dropout in training mode.

        Edge e of the list is ``layers[i].attention.source_index[e]`` to ``target_index[e]``: the
        edges of ``graph`` in its order, then added self-loops.
        """
        return self._run(x, key_padding_mask, True)[1]

    def edge_table(self, x: Any, **options: Any) -> pd.DataFrame:
        """Mean weight and spread of every edge by name.

        See :func:`pyg_kpnn.explain.edge_weights`.
        """
        from ..explain import edge_weights  # it imports this module

        return edge_weights(self, x, **options)

    def _run(self, x: Tensor, mask: Tensor | None, need_weights: bool) -> tuple[Tensor, list[Any]]:
        x, mask = values_of(x, self.graph.state_dim), mask_of(x, mask)
        if mask is not None:
            x = x.masked_fill(mask, 0.0)  # an unmeasured node keeps its name, not its value
        known, lost = apart(x.to(self.value_weight.dtype).unsqueeze(-1))
        tokens = torch.addcmul(self.name_embedding + lost, known, self.value_weight)
        weights, hidden = [], self._hidden(mask)
        for index, layer in enumerate(self.layers):
            tokens, layer_weights = layer(tokens, hidden[index], self._bias_of(index), need_weights)
            weights.append(layer_weights)
        tokens = self.norm(tokens)
        if self.readout == "node":
            return project(self.head, tokens).squeeze(-1), weights
        out = project(self.head, self._read(tokens, mask))
        return (out if self.readout == "class" else out.squeeze(-1)), weights

    def _hidden(self, mask: Tensor | None) -> list[Tensor | None]:
        """Whom nobody attends to, layer by layer: what was not measured, until it has heard something."""
        found = [mask]
        for index in range(len(self.layers) - 1):
            hidden, layer = found[-1], cast("PriorTransformerLayer", self.layers[index])
            found.append(None if hidden is None else hidden & ~layer.attention.has_live_source(hidden))
        return found

    def _read(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """What a head of all nodes reads of tokens ``(..., B, n, embed_dim)``; linear in them."""
        if not self.shared_head:
            return (tokens if mask is None else tokens.masked_fill(mask.unsqueeze(-1), 0.0)).flatten(-2)
        if mask is None:
            return tokens.mean(-2)
        # In half precision 65,520 nodes would count as infinitely many.
        wide = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        count = (~mask).to(wide.dtype).sum(-1, keepdim=True)
        mean = wide.masked_fill(mask.unsqueeze(-1), 0.0).sum(-2) / count.clamp(min=1.0)
        return mean.to(tokens.dtype)

    def jet(
        self,
        x: Tensor,
        order: int = 2,
        *,
        inputs: Sequence[str],
        outputs: Sequence[Any] | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Exact Taylor coefficients ``(B, M, K)`` of the outputs in the values of the nodes ``inputs``.

        See :func:`pyg_kpnn.nn.transformer_jet.transformer_jet`.
        """
        from .transformer_jet import transformer_jet  # it imports this module

        return transformer_jet(
            self, x, order, inputs=inputs, outputs=outputs, key_padding_mask=key_padding_mask
        )

    def _bias_of(self, layer: int) -> Tensor | None:
        if self.sign_class is not None:
            return self.sign_bias[layer].index_select(0, self.sign_class)
        if self.log_weight is not None and self.value_weight.is_meta:
            return self.log_weight.to("meta")  # it keeps its values when the model goes there
        return self.log_weight
