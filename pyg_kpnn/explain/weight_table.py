"""Attention weights as a table by name: mean and spread over samples, a batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..nn.checks import positive_int
from .batches import SampleLabels
from .moments import Moments
from .weighted_edges import WeightedEdges

if TYPE_CHECKING:
    import pandas as pd

    from ..prior import PriorGraph

__all__ = ["edge_weights"]


def edge_weights(
    model: Any,
    data: Any,
    *,
    groupby: Any = None,
    batch_size: int = 64,
    layers: Any = None,
    heads: str = "each",
    top_k: int | None = None,
    key_padding_mask: Any = None,
    graph: PriorGraph | None = None,
    block_bytes: int = 2**28,
) -> pd.DataFrame:
    """Attention weights by name: mean and spread over samples, of all of them or group by group.

    The model runs in evaluation mode without gradients and is left as it was.

    Parameters
    ----------
    model : nn.Module
        A :class:`~pyg_kpnn.PriorTransformer`; a :class:`~pyg_kpnn.PriorTransformerLayer` or
        :class:`~pyg_kpnn.PackedMultiheadAttention`, which need ``graph``; or a module with such layers and
        an attribute ``graph`` that is called as ``model(x)`` or ``model(x, mask)``.
    data : Tensor, dataset or iterable of batches
        ``(S, n)`` values, tokens ``(S, n, F)`` for a bare layer; a dataset; or batches, as a DataLoader
        gives them: ``x``, ``(x, y)``, ``(x, mask)``, or PyG batches. A tuple is one batch. A bipartite
        layer takes tuples that begin with queries and keys.
    groupby : sequence or "y", optional
        One label a sample; ``"y"`` takes those in the batches.
    batch_size : int, default 64
        Most samples of a tensor or dataset at a time.
    layers : sequence of int, optional
        Which layers, counted from 0; all by default.
    heads : {"each", "mean"}, default "each"
        ``"mean"``: the mean over heads, taken in every sample.
    top_k : int, optional
        Only the heaviest edges of each group, layer and head, heaviest first.
    key_padding_mask : Tensor, optional
        ``(S, n)`` bool beside a tensor, True = not measured.
    graph : PriorGraph, optional
        For a model without attribute ``graph``.
    block_bytes : int, default 2**28
        Weights of that many bytes are computed at a time (one sample's in one layer at least).

    Returns
    -------
    pandas.DataFrame
        Columns ``layer``, ``head``, ``source``, ``target``, ``weight`` (mean), ``std`` (with n - 1 below,
        NaN for one sample) and ``samples``, with ``group`` in front when grouped. Names are categoricals
        in the order of the graph; a node of several units is ``a[0]``, ``a[1]``. Rows: edges of the graph
        in its order, then self-loops the layer added; this for every head, layer and group.

    Raises
    ------
    PriorGraphError
        If an argument is not as above, a value is not finite and not masked, or labels are missing, too
        few or too many.

    Notes
    -----
    **Masked nodes.** Where nobody attends to a masked node (in a PriorTransformer, until it has heard
    something), a sample in which an edge's source is masked says nothing of that edge and does not count:
    ``samples`` is the number of those that do, in each layer.

    **Memory.** 16 bytes for every layer, head, edge and group, the table itself (about 40 bytes a row), and
    a few times ``block_bytes``; nothing grows with the number of samples.

    A weight is where a layer looked, which is not by itself why the model said what it said: see
    :func:`knockout` and :func:`interactions`.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn import PriorGraph, PriorTransformer
    >>> graph = PriorGraph.from_edges([("tf", "gene"), ("tf", "other")])
    >>> model = PriorTransformer(graph, embed_dim=8, num_heads=2, num_layers=1)
    >>> table = edge_weights(model, torch.randn(5, 3), heads="mean")
    >>> table[["source", "target", "samples"]].values.tolist()[:3]
    [['tf', 'gene', 5], ['tf', 'other', 5], ['gene', 'gene', 5]]
    """
    edges = WeightedEdges(model, graph, layers, heads)
    most = None if top_k is None else positive_int("top_k", top_k)
    limit = edges.at_a_time(positive_int("block_bytes", block_bytes))
    groups = None if groupby is None else SampleLabels(groupby, "groupby")
    batches = edges.batches(
        data, batch_size, key_padding_mask, groups is not None and not groups.from_batches
    )
    if groups is not None and batches.count is not None:
        groups.check(batches.count)
    found: dict[Any, dict[int, Moments]] = {}
    first = 0
    for whole in batches:
        for start in range(0, len(whole), limit):
            batch = whole.rows(slice(start, start + limit))
            own = [None] * len(batch) if groups is None else groups.take(batch, first)
            members = {
                label: [place for place, other in enumerate(own) if other == label]
                for label in dict.fromkeys(own)
            }

            def take(layer: int, weights: Any, keys: Any, members: dict[Any, list[int]] = members) -> None:
                live = None if keys is None else keys[:, edges.source.to(keys.device)]
                for label, places in members.items():
                    held = found.setdefault(label, {})
                    if layer not in held:
                        held[layer] = Moments(edges.nnz, edges.heads)
                    alone = len(members) == 1
                    held[layer].add(
                        weights if alone else weights[places],
                        live if live is None or alone else live[places],
                    )

            edges.run(batch, first, take)
            first += len(batch)
    if groups is not None:
        groups.check(first)
    return _frame(edges, found, groups, most)


def _frame(
    edges: WeightedEdges,
    found: dict[Any, dict[int, Moments]],
    groups: SampleLabels | None,
    most: int | None,
) -> pd.DataFrame:
    import pandas as pd

    blocks = [(layer, head) for layer in edges.layers for head in range(edges.heads)]
    order = sorted_labels(found, groups)
    kept = edges.nnz if most is None else min(most, edges.nnz)
    rows = kept * len(blocks)
    values: dict[str, np.ndarray] = {
        "weight": np.empty(rows * len(order)),
        "std": np.empty(rows * len(order)),
        "samples": np.empty(rows * len(order), dtype=np.int32),
    }
    picked = np.empty(rows * len(order), dtype=np.int64) if most is not None else None
    at = 0
    for label in order:
        held = found.pop(label)
        for layer in edges.layers:
            moments = held.pop(layer)
            mean, spread = moments.means(), moments.variance().sqrt()
            for head in range(edges.heads):
                some = slice(at, at + kept)
                weight = mean[:, head].numpy()
                chosen: Any = slice(None)
                if picked is not None:
                    chosen = np.argsort(-weight, kind="stable")[:kept]
                    picked[some] = chosen
                values["weight"][some] = weight[chosen]
                values["std"][some] = spread[:, head].numpy()[chosen]
                values["samples"][some] = moments.count.numpy()[chosen]
                at += kept
    names = edges.columns(np.arange(kept), blocks * len(order))
    if picked is not None:
        for name, index in (("source", edges.source), ("target", edges.target)):
            names[name] = pd.Categorical.from_codes(index.numpy()[picked], dtype=names[name].dtype)
    columns = {**names, **values}
    if groups is not None:
        group = np.repeat(np.arange(len(order)), rows)
        columns = {"group": pd.Categorical.from_codes(group, pd.Index(order)), **columns}
    return pd.DataFrame(columns, copy=False)


def sorted_labels(found: Any, groups: SampleLabels | None) -> list[Any]:
    """Labels in the order of their categories, or sorted, or as they came where they cannot be."""
    if groups is not None and groups.order is not None:
        return [label for label in groups.order if label in found]
    try:
        return sorted(found)
    except TypeError:  # None alone, or labels of kinds that have no order
        return list(found)
