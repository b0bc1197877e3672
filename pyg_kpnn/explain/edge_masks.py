"""What PyG's explainers say of edges and nodes, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import PriorGraphError
from ..nn.fixed_edges import FixedEdgeModel
from ..prior import PriorGraph
from ..prior.names import show
from .attributions import map_node_attributions
from .named_model import labels
from .weighted_edges import evaluating

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["edge_mask_table", "explain_edges", "node_mask_table"]


def explain_edges(
    model: Any,
    x: Tensor,
    *,
    algorithm: Any = None,
    target: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Run an explainer of PyG on a model with fixed edges over a batch, and name its edge mask.

    One mask is learned for all samples of ``x``: the edges that together keep the outputs as they are, or the
    ``target`` as given.

    Parameters
    ----------
    model : nn.Module
        A :class:`~pyg_kpnn.PriorTransformer`, or a module over :class:`~pyg_kpnn.PackedMultiheadAttention`
        with an attribute ``graph``.
    x : Tensor
        ``(B, n)``, finite where not masked.
    algorithm : ExplainerAlgorithm, optional
        ``GNNExplainer(epochs=100)`` by default.
    target : Tensor, optional
        What to explain in place of the model's own prediction; ``explanation_type="phenomenon"``.
    key_padding_mask : Tensor, optional
        ``(B, n)``, passed on to the model.
    seed : int, default 0
        For what the explainer draws; the global generators are put back afterwards.
    **options
        For :class:`torch_geometric.explain.Explainer`: ``threshold_config``, another ``model_config``.

    Returns
    -------
    pandas.DataFrame
        See :func:`edge_mask_table`. Self-loops that a layer adds are not explained: they stay as they are.

    Raises
    ------
    PriorGraphError
        If the model has no graph or no layer with fixed edges.
    """
    from torch_geometric.explain import Explainer, GNNExplainer

    graph = getattr(model, "graph", None)
    if not isinstance(model, nn.Module) or not isinstance(graph, PriorGraph):
        raise PriorGraphError(
            f"model must be a module with a PriorGraph as its attribute graph, got {type(model).__name__} "
            f"with {type(graph).__name__}."
        )
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
        what = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise PriorGraphError(f"x must be floating point of shape (B, {graph.num_sources}), got {what}.")
    fixed = FixedEdgeModel(model)
    edge_index = torch.stack([graph.source_index, graph.target_index]).to(x.device)
    classes = getattr(model, "readout", None) == "class"
    mode = "multiclass_classification" if classes else "regression"
    settings: dict[str, Any] = {
        "explanation_type": "model" if target is None else "phenomenon",
        "edge_mask_type": "object",
        # a sample is a graph of the batch, not a node
        "model_config": {"mode": mode, "task_level": "graph", "return_type": "raw"},
        **options,
    }
    beside = {} if key_padding_mask is None else {"key_padding_mask": key_padding_mask}
    if target is not None:
        beside["target"] = target
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), evaluating(fixed):
        torch.manual_seed(seed)
        explainer = Explainer(fixed, GNNExplainer(epochs=100) if algorithm is None else algorithm, **settings)
        explanation = explainer(x, edge_index, **beside)
    return edge_mask_table(explanation, graph)


def edge_mask_table(explanation: Any, graph: PriorGraph) -> pd.DataFrame:
    """Name the ``edge_mask`` of an explanation.

    Parameters
    ----------
    explanation : torch_geometric.explain.Explanation
        With ``edge_index`` ``(2, E)``, in any order, and ``edge_mask`` ``(E,)``. Of a batch of B graphs,
        whose indices count on, every sample gets its rows.
    graph : PriorGraph
        Whose units the indices count. Not bipartite.

    Returns
    -------
    pandas.DataFrame
        Columns ``source``, ``target`` (categoricals) and ``weight``, in the order of ``edge_index``; with
        ``sample`` in front for a batch of more than one graph.

    Raises
    ------
    PriorGraphError
        If there is no mask, or an edge that the graph has not (self-loops aside).
    """
    import pandas as pd

    mask = _mask(explanation, "edge_mask", graph)
    edge_index = getattr(explanation, "edge_index", None)
    if not isinstance(edge_index, Tensor) or edge_index.shape != (2, mask.numel()) or mask.dim() != 1:
        shape = tuple(edge_index.shape) if isinstance(edge_index, Tensor) else None
        raise PriorGraphError(
            f"edge_mask must be (E,) beside edge_index (2, E), got {tuple(mask.shape)} beside {shape}."
        )
    units = graph.state_dim
    edges = edge_index.detach().cpu().numpy()
    sample, ends = edges // units, edges % units
    keys = graph.source_index.numpy() * units + graph.target_index.numpy()
    strange = ~np.isin(ends[0] * units + ends[1], keys) & (ends[0] != ends[1])
    strange |= (sample[0] != sample[1]) | (edges < 0).any(0)
    names = labels(graph.nodes, graph.node_widths)
    if strange.any():
        place = int(np.flatnonzero(strange)[0])
        source, target = (names[unit] for unit in ends[:, place])
        raise PriorGraphError(
            f"Explained edges must be edges of the graph, got {source} -> {target} at position {place}. Pass "
            "the graph the model was built on."
        )
    known = pd.Index(names, dtype=object)
    columns: dict[str, Any] = {
        "source": pd.Categorical.from_codes(ends[0], known),
        "target": pd.Categorical.from_codes(ends[1], known),
        "weight": mask.numpy().astype(np.float64),
    }
    if len(sample[0]) and sample.max() > 0:
        columns = {"sample": sample[0], **columns}
    return pd.DataFrame(columns)


def node_mask_table(explanation: Any, graph: PriorGraph, *, reduce: str | None = "sum") -> pd.DataFrame:
    """Name the ``node_mask`` ``(N, 1)`` or ``(N, F)`` of an explanation.

    Returns
    -------
    pandas.DataFrame
        As :func:`map_node_attributions` with ``reduce``; ``sample`` in front for a batch of several graphs.

    Raises
    ------
    PriorGraphError
        If there is no such mask, or it has another number of nodes.
    """
    mask = _mask(explanation, "node_mask", graph)
    units = graph.state_dim
    if mask.dim() != 2 or len(mask) == 0 or len(mask) % units:
        raise PriorGraphError(
            f"node_mask must have one row for each of the {units} units, got shape {tuple(mask.shape)}."
        )
    several = len(mask) > units
    return map_node_attributions(
        mask.view(-1, units, mask.shape[1]),
        graph,
        axis=1,
        sample_axis=0 if several else None,
        reduce=reduce,
    )


def _mask(explanation: Any, name: str, graph: Any) -> Tensor:
    if not isinstance(graph, PriorGraph) or graph.is_bipartite:
        kind = "a bipartite one" if isinstance(graph, PriorGraph) else show(graph)
        raise PriorGraphError(f"graph must be a PriorGraph that is not bipartite, got {kind}.")
    mask = getattr(explanation, name, None)
    if not isinstance(mask, Tensor):
        raise PriorGraphError(
            f"explanation must have {name}, got a {type(explanation).__name__} without. Build the Explainer "
            f"with {name}_type='object'."
        )
    return mask.detach().cpu()
