"""PriorAttentionConv: attention along edges that arrive with each call, as a PyG layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_sparse, to_edge_index

from ..errors import PriorGraphError
from ..ops.precision import without_autocast
from .checks import flag, positive_int
from .edge_attention import AttentionSettings, EdgeAttention, plain_edge_index
from .projection import project

__all__ = ["PriorAttentionConv"]


class PriorAttentionConv(AttentionSettings, nn.Module):
    r"""Graph transformer attention whose edges come with each call.

    .. math::
        x'_i = W_1 x_i + \sum_{e: j \to i} \alpha_e \left( W_2 x_j + W_6 a_e \right), \qquad
        \alpha_e = \operatorname{softmax}_{e: j \to i} \left(
        \frac{\langle W_3 x_i, W_4 x_j + W_6 a_e \rangle}{\sqrt{C}} + b_e \right)

    The operator of Shi et al. 2021 (arXiv:2009.03509) with the argument and parameter names of
    :class:`torch_geometric.nn.TransformerConv`, so state dicts of the two fit each other. It
    adds static batches ``(B, N, F)``, a score bias per edge, optional self-loops that keep the
    order of the given edges, chunked evaluation and second derivatives on every input form.

    Parameters
    ----------
    in_channels : int or tuple of int
        Features of a node, or of (source, target) nodes; -1 reads it off the first input.
    out_channels : int
        Channels C of each head.
    heads : int, default 1
        Attention patterns side by side.
    concat : bool, default True
        Concatenate the heads (``heads * out_channels`` outputs) or average them.
    dropout : float, default 0.0
        Probability of dropping an attention weight in training mode.
    edge_dim : int, optional
        Width of ``edge_attr``; None: edges have no features.
    bias : bool, default True
        Whether the projections have a bias.
    root_weight : bool, default True
        Add the transformed features of the node itself.
    add_self_loops : bool, default False
        Let every node attend to itself. N loops are appended after the given edges; a loop the
        caller gave already stands for its own, and the appended one then has weight 0. Appended
        loops have no edge features and bias 0.
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
    Follows ``torch.autocast``: projections in the autocast dtype, softmax in float32.
    The indices of ``edge_index`` are checked against the number of nodes on the CPU; on a GPU
    that check would wait for the device, and an index out of range is a device-side error.

    Examples
    --------
    >>> import torch
    >>> conv = PriorAttentionConv(16, 8, heads=2)
    >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> conv(torch.randn(4, 16), edge_index).shape
    torch.Size([4, 16])
    >>> conv(torch.randn(5, 4, 16), edge_index).shape  # 5 samples on one graph
    torch.Size([5, 4, 16])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        add_self_loops: bool = False,
        chunk_size: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.out_channels = positive_int("out_channels", out_channels)
        self.heads = positive_int("heads", heads)
        self.concat = flag("concat", concat)
        self.edge_dim = None if edge_dim is None else positive_int("edge_dim", edge_dim)
        self.root_weight = flag("root_weight", root_weight)
        self.add_self_loops = flag("add_self_loops", add_self_loops)
        self.attention = EdgeAttention(dropout, chunk_size, backend)

        bias = flag("bias", bias)
        both = in_channels if isinstance(in_channels, tuple) else (in_channels, in_channels)
        if len(both) != 2:
            raise PriorGraphError(f"in_channels must be one width or a (source, target) pair, got {both!r}.")
        sides = [n if type(n) is int and n == -1 else positive_int("in_channels", n) for n in both]
        self.in_channels = tuple(sides) if isinstance(in_channels, tuple) else sides[0]
        width = self.heads * self.out_channels
        self.lin_key = Linear(sides[0], width, bias=bias)
        self.lin_query = Linear(sides[1], width, bias=bias)
        self.lin_value = Linear(sides[0], width, bias=bias)
        self.lin_edge = None if self.edge_dim is None else Linear(self.edge_dim, width, bias=False)
        skip_width = width if self.concat else self.out_channels
        self.lin_skip = Linear(sides[1], skip_width, bias=bias) if self.root_weight else None

    def reset_parameters(self) -> None:
        """Draw every projection anew."""
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Any,
        edge_attr: Tensor | None = None,
        edge_bias: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run attention along ``edge_index``.

        Parameters
        ----------
        x : Tensor or (Tensor, Tensor)
            ``(N, F)``, or ``(..., N, F)`` for samples that share the graph; a tuple holds the
            features of source and target nodes of a bipartite graph.
        edge_index : Tensor
            ``(2, E)`` integer indices from source to target, an ``EdgeIndex``, or a (transposed)
            sparse adjacency as PyG takes it, whose own order of entries is then the edge order.
        edge_attr : Tensor, optional
            ``(E, edge_dim)`` or ``(..., E, edge_dim)``.
        edge_bias : Tensor, optional
            ``(E,)``, ``(E, heads)`` or ``(..., E, heads)``; added to the scores before the
            softmax, such as a log-prior or a learned term per sign.
        return_attention_weights : bool, optional
            Any bool also returns ``(edge_index, alpha)``, as in PyG.

        Returns
        -------
        Tensor
            ``(..., N, heads * out_channels)``, or ``(..., N, out_channels)`` with ``concat=False``.
        (Tensor, Tensor)
            If asked for: the edges and ``alpha`` ``(..., E, heads)``, the softmax weights before
            dropout, in the order given; appended self-loops come last.

        Raises
        ------
        PriorGraphError
            If a shape or an index does not fit.
        """
        both = x if isinstance(x, tuple) else (x, x)
        if len(both) != 2 or not all(isinstance(side, Tensor) for side in both):
            raise PriorGraphError("x must be a tensor or a tuple of two: features of sources and of targets.")
        source, target = both
        edges, edge_attr = _edges(edge_index, edge_attr)
        if edges.dim() != 2 or edges.shape[0] != 2:
            raise PriorGraphError(f"edge_index must have shape (2, E), got {tuple(edges.shape)}.")
        for linear, side in ((self.lin_key, source), (self.lin_query, target)):
            self._check_nodes(side, linear, source.device)
        _check_device("edge_index", edges, source.device)
        num_given = edges.shape[1]
        features = self._edge_features(edge_attr, num_given, source.device)
        query = project(self.lin_query, target).unflatten(-1, (self.heads, self.out_channels))
        key = project(self.lin_key, source).unflatten(-1, (self.heads, self.out_channels))
        value = project(self.lin_value, source).unflatten(-1, (self.heads, self.out_channels))
        if self.add_self_loops and source.shape[-2] != target.shape[-2]:
            raise PriorGraphError(
                "add_self_loops requires as many source as target nodes, got "
                f"{source.shape[-2]} and {target.shape[-2]}."
            )
        # Remembered for the caller's own tensor; what a sparse form is turned into is new each time.
        handle = edges if is_sparse(edge_index) else edge_index
        layout = self.attention.layout_of(handle, query, key, self.add_self_loops)
        if self.add_self_loops:
            with without_autocast(source.device.type):  # under which cat refuses some mixtures of dtypes
                features, edge_bias = self._with_self_loops(edges, features, edge_bias, source, target)
        wants_weights = return_attention_weights is not None
        if wants_weights:
            flag("return_attention_weights", return_attention_weights)
        mixed, alpha = self.attention(
            query,
            key,
            value,
            layout,
            bias=edge_bias,
            edge_features=features,
            need_weights=wants_weights,
            num_given=num_given,
            fixed=False,
        )
        out = mixed.flatten(-2) if self.concat else mixed.mean(-2)
        if self.lin_skip is not None:
            out = out + project(self.lin_skip, target)
        if not wants_weights:
            return out
        if self.training and self.dropout > 0.0:  # what came back has been through dropout
            alpha = self.attention.softmax_weights(query, key, layout, bias=edge_bias, edge_features=features)
        return out, (layout.edge_index if self.add_self_loops else edges, alpha)

    @staticmethod
    def _check_nodes(x: Tensor, linear: nn.Module, device: torch.device) -> None:
        width = getattr(linear, "in_channels", -1)  # -1: not known yet, or another kind of projection
        fits = x.dim() >= 2 and (width < 0 or x.shape[-1] == width)
        if not fits or not x.is_floating_point():
            shape = f"(..., N, {width if width > 0 else 'F'})"
            raise PriorGraphError(
                f"x must be floating point of shape {shape}, got {x.dtype} of shape {tuple(x.shape)}."
            )
        _check_device("the features of targets", x, device)

    def _edge_features(self, edge_attr: Tensor | None, num_edges: int, device: torch.device) -> Tensor | None:
        if self.lin_edge is None:
            if edge_attr is not None:
                raise PriorGraphError(
                    "edge_attr needs edge_dim: build the layer with edge_dim=edge_attr.shape[-1]."
                )
            return None
        if edge_attr is None:
            raise PriorGraphError(f"edge_attr must be given to a layer with edge_dim={self.edge_dim}.")
        if not isinstance(edge_attr, Tensor) or not edge_attr.is_floating_point():
            what = f"dtype {edge_attr.dtype}" if isinstance(edge_attr, Tensor) else type(edge_attr).__name__
            raise PriorGraphError(f"edge_attr must be a floating-point tensor, got {what}.")
        if edge_attr.dim() < 2 or edge_attr.shape[-2:] != (num_edges, self.edge_dim):
            raise PriorGraphError(
                f"edge_attr must have shape (..., {num_edges}, {self.edge_dim}), "
                f"got {tuple(edge_attr.shape)}."
            )
        _check_device("edge_attr", edge_attr, device)
        return project(self.lin_edge, edge_attr).unflatten(-1, (self.heads, self.out_channels))

    def _with_self_loops(
        self, edges: Tensor, features: Tensor | None, bias: Tensor | None, source: Tensor, target: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        # Always N loops, those that exist already silenced by a score of -inf: how many are
        # missing would have to be read back from the device.
        size = target.shape[-2]
        is_loop = (edges[0] == edges[1]).to(torch.int64)
        given = torch.zeros(size, dtype=torch.int64, device=edges.device)
        given = given.index_add(0, edges[1].to(torch.int64), is_loop)
        if bias is not None and (
            not isinstance(bias, Tensor) or not bias.is_floating_point() or bias.dim() == 0
        ):
            what = f"{tuple(bias.shape)} {bias.dtype}" if isinstance(bias, Tensor) else type(bias).__name__
            raise PriorGraphError(
                f"edge_bias must be a floating-point tensor with one entry an edge, got {what}."
            )
        if bias is not None:
            _check_device("edge_bias", bias, edges.device)
        dtype = source.dtype if bias is None else bias.dtype
        if bias is None:
            bias = torch.zeros(edges.shape[1], 1, dtype=dtype, device=edges.device)
        bias = bias.unsqueeze(-1) if bias.dim() == 1 else bias
        silenced = torch.zeros(size, dtype=dtype, device=edges.device).masked_fill(given > 0, -torch.inf)
        silenced = silenced.view(-1, 1).expand(*bias.shape[:-2], size, bias.shape[-1])
        bias = torch.cat([bias, silenced], dim=-2)
        if features is not None:
            none = features.new_zeros(*features.shape[:-3], size, *features.shape[-2:])
            features = torch.cat([features, none], dim=-3)
        return features, bias

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise PriorGraphError(f"{name} must be on the device of x, {device}, got one on {tensor.device}.")


def _edges(edge_index: Any, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Indices ``(2, E)`` of any form PyG takes, and the edge features a sparse form may hold."""
    if not is_sparse(edge_index):
        if not isinstance(edge_index, Tensor):
            raise PriorGraphError(
                f"edge_index must be a (2, E) tensor or a sparse adjacency, got {type(edge_index).__name__}."
            )
        return plain_edge_index(edge_index), edge_attr
    if isinstance(edge_index, SparseTensor):
        row, col, values = edge_index.coo()
        indices = torch.stack([row, col])
    else:
        indices, values = to_edge_index(edge_index)
    if edge_attr is None and values is not None and values.dim() > 1:
        edge_attr = values
    return indices.flip(0), edge_attr  # PyG's sparse adjacency is transposed: rows are targets
