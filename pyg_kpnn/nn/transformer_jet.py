"""Exact Taylor coefficients of a PriorTransformer in the measured values of named nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PriorGraphError
from ..jets import JetSpace, activation, affine, compose, constant, edge_softmax, layer_norm, product
from ..jets.indices import grade_size, product_rows
from ..ops.precision import without_autocast
from .jet_checks import ELEMENTWISE, check_values, chosen_outputs, jet_refusal, layers_of, units_of
from .packed_attention import PackedMultiheadAttention
from .prior_transformer import PriorTransformer
from .projection import NodeLinear, is_plain

__all__ = ["jet_at_units", "transformer_jet"]

# Numbers in the largest intermediate result: samples are taken that many at a time.
_BLOCK = 2**24


def transformer_jet(
    model: PriorTransformer,
    x: Tensor,
    order: int = 2,
    *,
    inputs: Sequence[str],
    outputs: Sequence[Any] | None = None,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    r"""Taylor coefficients :math:`D^\alpha f / \alpha!` of a model's outputs in some of its inputs.

    The jet algebra of :mod:`pyg_kpnn.jets`, carried through every layer: no differentiation program
    runs, all orders and mixed derivatives come out of one pass, and a coefficient that the wiring
    rules out is zero to the last bit.

    Parameters
    ----------
    model : PriorTransformer
        Without active dropout (``model.eval()``), made of the layers it was constructed with, or of
        ``nn.Linear``, layer norms and smooth activations in their place.
    x : Tensor
        ``(B, n)`` values in the order of ``graph.nodes``, as the model takes them, finite where not masked.
    order : int, default 2
        Highest total order, >= 0.
    inputs : sequence of str
        Nodes whose measured values are the variables, in that order. A node of w units is w variables.
    outputs : sequence, optional
        Names of nodes with ``readout="node"`` (a node of w units is w outputs), class numbers with
        ``readout="class"``; None for all. With ``readout="graph"`` there is one output and this is None.
    key_padding_mask : Tensor, optional
        ``(B, n)`` bool, True = not measured, as the model takes it. A derivative in such a value is 0.

    Returns
    -------
    Tensor
        ``(B, M, K)``: K outputs, M multi-indices by total order, then ascending lexicographic. With two
        variables (0,0), (0,1), (1,0), (0,2), (1,1), (2,0): ``JetSpace(num_variables, order).indices``.
        Differentiable in the parameters and in ``x``.

    Raises
    ------
    PriorGraphError
        For an unknown or repeated name, ``x`` of another shape or not finite, dropout at work, or a
        module the algebra does not know, which the message names.

    Notes
    -----
    M grows as (number of variables) ** order / order!, and products of the highest order cost about
    M times the edges times ``embed_dim``. Samples are evaluated a block at a time.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn import PriorGraph, PriorTransformer
    >>> graph = PriorGraph.from_edges([("a", "t"), ("b", "t"), ("c", "a")])
    >>> model = PriorTransformer(graph, embed_dim=8, num_heads=2, num_layers=1).double()
    >>> x = torch.randn(5, 4, dtype=torch.float64)
    >>> jet = transformer_jet(model, x, inputs=["a", "b", "c"], outputs=["t"])
    >>> jet.shape
    torch.Size([5, 10, 1])
    >>> space = JetSpace(3, 2)
    >>> torch.allclose(jet[:, 0, 0], model(x)[:, 3])
    True
    >>> bool((jet[:, space.position((1, 1, 0))] != 0).all())  # a and b meet in t
    True
    >>> bool((jet[:, space.position((1, 0, 1))] == 0).all())  # c is two edges away from t
    True
    """
    if not isinstance(model, PriorTransformer):
        raise PriorGraphError(f"model must be a PriorTransformer, got {type(model).__name__}.")
    refused = jet_refusal(model)
    if refused is not None:
        raise PriorGraphError(refused)
    units = units_of(model, "inputs", inputs)
    check_values(model.graph, x, key_padding_mask)
    return jet_at_units(model, x, order, units, chosen_outputs(model, outputs), key_padding_mask)


def jet_at_units(
    model: PriorTransformer,
    x: Tensor,
    order: int,
    units: list[int],
    chosen: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """:func:`transformer_jet` in the values at positions ``units``, of outputs at ``chosen``; unchecked."""
    space = JetSpace(len(units), order)
    x = x.to(model.value_weight.dtype)
    layout = layers_of(model)[0].attention._layout
    width, size = model.value_weight.shape[1], space.grade_sizes
    pairs = max(size[j] * size[order - j] for j in range(order + 1))
    each = pairs * max(layout.num_edges * width, 4 * x.shape[1] * width)
    block = max(1, _BLOCK // each)
    masks: Iterable[Tensor | None] = repeat(None) if mask is None else mask.split(block)
    with without_autocast(x.device.type):
        pieces = [
            _run(model, *given, units, chosen, space) for given in zip(x.split(block), masks, strict=False)
        ]
    return torch.cat(pieces, dim=1).transpose(0, 1)


def _run(
    model: PriorTransformer,
    x: Tensor,
    mask: Tensor | None,
    units: list[int],
    chosen: Tensor,
    space: JetSpace,
) -> Tensor:
    """(size, B, K)."""
    tokens, hidden = _embed(model, x, mask, units, space), model._hidden(mask)
    for index, layer in enumerate(layers_of(model)):
        normed = _layer_norm(layer.attention_norm, tokens, space)
        tokens = tokens + _attend(layer.attention, normed, model._bias_of(index), hidden[index], space)
        normed = _layer_norm(layer.feedforward_norm, tokens, space)
        tokens = tokens + _chain(layer.feedforward, normed, space)
    if model.readout == "node":
        tokens = tokens.index_select(2, chosen)  # the rest of the model acts on single tokens
    tokens = _layer_norm(model.norm, tokens, space)
    if isinstance(model.head, NodeLinear):
        read = torch.einsum("...nd,nd->...n", tokens, model.head.weight[chosen])
        return torch.cat([read[:1] + model.head.bias[chosen], read[1:]])
    if model.readout == "node":
        return _chain(model.head, tokens, space).squeeze(-1)
    return _chain(model.head, model._read(tokens, mask), space).index_select(-1, chosen)


def _embed(
    model: PriorTransformer, x: Tensor, mask: Tensor | None, units: list[int], space: JetSpace
) -> Tensor:
    if mask is not None:
        x = x.masked_fill(mask, 0.0)
    value = torch.addcmul(model.name_embedding, x.unsqueeze(-1), model.value_weight)
    if space.order == 0:
        return value.unsqueeze(0)
    place = torch.tensor(units[::-1], device=x.device)  # the first row of order 1 is the last variable's
    at = nn.functional.one_hot(place, x.shape[1]).to(value.dtype)
    slopes = (at.unsqueeze(-1) * model.value_weight).unsqueeze(1).expand(-1, *value.shape)
    if mask is not None:  # what is not measured is no variable
        slopes = slopes.masked_fill(mask.unsqueeze(-1), 0.0)
    return torch.cat([value.unsqueeze(0), slopes, constant(value, space)[1 + len(units) :]])


def _attend(
    attention: PackedMultiheadAttention,
    jet: Tensor,
    bias: Tensor | None,
    hidden: Tensor | None,
    space: JetSpace,
) -> Tensor:
    layout = attention._layout
    query, key, value = (
        affine(jet, p.weight, p.bias).unflatten(-1, (attention.num_heads, attention.head_dim))
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key, value = (
        query.index_select(-3, layout.target),
        key.index_select(-3, layout.source),
        value.index_select(-3, layout.source),
    )
    scores = _inner(query, key, space) / math.sqrt(attention.head_dim)
    level = scores[:1]
    if bias is not None:
        bias = bias.index_select(0, layout.by_target)  # from the order of the graph to that of the layout
        level = level + bias.reshape(layout.num_edges, -1)
    if hidden is not None:
        level = level.masked_fill(hidden.index_select(-1, layout.source).unsqueeze(-1), -math.inf)
    if bias is not None or hidden is not None:
        scores = torch.cat([level, scores[1:]])
    carried = product(edge_softmax(scores, layout, space).unsqueeze(-1), value, space)
    mixed = carried.new_zeros(*carried.shape[:2], layout.num_targets, *carried.shape[3:])
    mixed = mixed.index_add(2, layout.target, carried)
    return affine(mixed.flatten(-2), attention.out_proj.weight, attention.out_proj.bias)


def _inner(left: Tensor, right: Tensor, space: JetSpace) -> Tensor:
    """Jet of the inner product over the last axis, whose terms are never stored one by one."""
    a, b = space.grades(left), space.grades(right)
    rows = []
    for grade in range(space.order + 1):
        total = left.new_zeros(grade_size(space.n_vars, grade), *left.shape[1:-1])
        for j in range(grade + 1):
            pairs = torch.einsum("i...d,j...d->ij...", a[j], b[grade - j]).flatten(0, 1)
            total = total.index_add(0, product_rows(space.n_vars, j, grade - j, left.device), pairs)
        rows.append(total)
    return torch.cat(rows)


def _layer_norm(norm: nn.Module, jet: Tensor, space: JetSpace) -> Tensor:
    assert isinstance(norm, nn.LayerNorm)
    return layer_norm(jet, space, norm.weight, norm.bias, norm.eps)


def _chain(module: nn.Module, jet: Tensor, space: JetSpace) -> Tensor:
    """A module that acts on single tokens; :func:`jet_refusal` has seen it."""
    if isinstance(module, nn.Sequential):
        for part in module:
            jet = _chain(part, jet, space)
        return jet
    if is_plain(module):
        return affine(jet, module.weight, module.bias)  # type: ignore[arg-type]
    if isinstance(module, nn.LayerNorm):
        return _layer_norm(module, jet, space)
    if isinstance(module, (nn.Dropout, nn.Identity)):
        return jet
    name = "gelu" if isinstance(module, nn.GELU) else ELEMENTWISE[type(module)]
    return compose(activation(name).derivatives(jet[0], space.order), jet, space)
