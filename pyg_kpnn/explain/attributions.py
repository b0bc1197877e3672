"""Attributions of other tools, Captum's above all, as tables by node name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorGraphError
from ..prior import PriorGraph
from ..prior.names import check_choice, near_names, show
from .batches import Batches, finite
from .named_model import chosen_positions, graph_of_model, output_names, unit_labels
from .weighted_edges import evaluating

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["map_node_attributions", "node_attributions"]

REDUCTIONS = (None, "mean", "sum", "abs")


def map_node_attributions(
    attribution: Any,
    graph: PriorGraph,
    *,
    axis: int | None = None,
    sample_axis: int | None = None,
    reduce: str | None = "mean",
    side: str = "source",
) -> pd.DataFrame:
    """Name the entries of a tensor one axis of which runs over the units of a graph.

    Parameters
    ----------
    attribution : Tensor or ndarray
        Any shape with an axis of n units.
    graph : PriorGraph
        Whose units they are.
    axis : int, optional
        The axis of units; by default the only one of length n.
    sample_axis : int, optional
        An axis to keep, as the column ``sample``.
    reduce : {"mean", "sum", "abs", None}, default "mean"
        How all other axes go: their mean, their sum, the mean of absolute values; None keeps each as a
        column ``axis_0``, ``axis_1``, ... by its number in ``attribution``.
    side : {"source", "target"}, default "source"
        Whose units, in a bipartite graph.

    Returns
    -------
    pandas.DataFrame
        Columns ``sample`` (if asked for), ``node`` (categorical, in the order of the graph; ``a[0]``,
        ``a[1]`` for a node of several units), axes that were kept, and ``value``. The first column turns
        slowest.

    Raises
    ------
    PriorGraphError
        If no axis fits, or several do and none was named.

    Examples
    --------
    >>> graph = PriorGraph.from_edges([("a", "c"), ("b", "c")])
    >>> map_node_attributions(torch.tensor([[1.0, 2.0, 3.0], [3.0, -2.0, 5.0]]), graph)
      node  value
    0    a    2.0
    1    b    0.0
    2    c    4.0
    """
    import pandas as pd

    if not isinstance(graph, PriorGraph):
        raise PriorGraphError(f"graph must be a PriorGraph, got {type(graph).__name__}.")
    check_choice(reduce, REDUCTIONS, "reduce")
    check_choice(side, ("source", "target"), "side")
    given = attribution.detach().cpu().numpy() if isinstance(attribution, Tensor) else attribution
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "fiub":
        what = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
        raise PriorGraphError(f"attribution must be a tensor or array of real numbers, got {what}.")
    count = graph.num_targets if side == "target" else graph.num_sources
    axis = _node_axis(given.shape, axis, count)
    if sample_axis is not None:
        sample_axis = _axis(given.shape, sample_axis, "sample_axis")
        if sample_axis == axis:
            raise PriorGraphError(
                f"sample_axis must be another axis than that of units, got {axis} for both."
            )
    front = [axis] if sample_axis is None else [sample_axis, axis]
    rest = [place for place in range(given.ndim) if place not in front]
    values = given.transpose(*front, *rest).astype(np.float64)
    if reduce is not None and rest:
        last = tuple(range(len(front), given.ndim))
        values = np.abs(values) if reduce == "abs" else values
        values = values.sum(last) if reduce == "sum" else values.mean(last)
        rest = []
    elif reduce == "abs":
        values = np.abs(values)
    places = np.indices(values.shape, dtype=np.int32).reshape(values.ndim, -1)
    columns: dict[str, Any] = {}
    if sample_axis is not None:
        columns["sample"] = places[0].astype(np.int64)
    known = pd.Index(unit_labels(graph, side), dtype=object)
    columns["node"] = pd.Categorical.from_codes(places[len(front) - 1], known)
    for place, index in zip(rest, places[len(front) :], strict=True):
        columns[f"axis_{place}"] = index.astype(np.int64)
    return pd.DataFrame({**columns, "value": values.reshape(-1)})


def _axis(shape: tuple[int, ...], axis: Any, name: str) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise PriorGraphError(f"{name} must be an axis of shape {shape}, got {show(axis)}.")
    return axis % len(shape)


def _node_axis(shape: tuple[int, ...], axis: Any, count: int) -> int:
    if axis is not None:
        axis = _axis(shape, axis, "axis")
        if shape[axis] != count:
            raise PriorGraphError(f"Axis {axis} must have the {count} units, got shape {shape}.")
        return int(axis)
    fitting = [place for place, size in enumerate(shape) if size == count]
    if len(fitting) != 1:
        raise PriorGraphError(
            f"One axis must have the {count} units, got {len(fitting)} such axes in shape {shape}. "
            "Name it: axis=1."
        )
    return fitting[0]


def node_attributions(
    model: Any,
    data: Any,
    method: str = "IntegratedGradients",
    *,
    target: Any = None,
    reduce: str | None = "mean",
    batch_size: int = 64,
    key_padding_mask: Tensor | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Attribute an output to the input nodes with a method of Captum, by name.

    Parameters
    ----------
    model : callable
        With a :class:`~pyg_kpnn.PriorGraph` as its attribute ``graph``, as in :func:`knockout`.
    data, batch_size, key_padding_mask
        As in :func:`edge_weights`. What is masked gets 0 from methods that follow gradients.
    method : str, default "IntegratedGradients"
        A class of ``captum.attr`` built from a forward function alone: ``"Saliency"``,
        ``"InputXGradient"``, ``"GradientShap"``, ``"FeatureAblation"``, ...
    target : optional
        The output: a node's name where the model returns one value a unit, else a column. It may be left
        out where there is one.
    reduce : {"mean", "sum", "abs", None}, default "mean"
        How samples are combined; None: a row a sample, with the column ``sample``. Channels of a value are
        summed.
    **options
        For Captum's ``attribute``, such as ``baselines`` and ``n_steps``.

    Returns
    -------
    pandas.DataFrame
        Columns ``node`` and ``value``, ``sample`` in front with ``reduce=None``.

    Raises
    ------
    ImportError
        Without captum: ``pip install "pyg_kpnn[captum]"``.
    PriorGraphError
        If there is no such method or output.

    Notes
    -----
    Integrated gradients of a sample sum to the output less the output at the baseline (Sundararajan et al.
    2017), up to the error of the quadrature. Methods that sample draw from the global generators.
    """
    try:
        import captum.attr as methods  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError('Attributions need captum: pip install "pyg_kpnn[captum]".') from error

    graph = graph_of_model(model)
    check_choice(reduce, REDUCTIONS, "reduce")
    kinds = {
        name: kind
        for name, kind in vars(methods).items()
        if isinstance(kind, type) and issubclass(kind, methods.Attribution)
    }
    if not isinstance(method, str) or method not in kinds:
        hint = near_names(method, sorted(kinds)) if isinstance(method, str) else ""
        raise PriorGraphError(f"method must be a class of captum.attr, got {show(method)}{hint}.")
    names = unit_labels(graph, "source")
    found: list[Tensor] = []
    first = 0
    weight = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    with evaluating(model):
        explainer = kinds[method](model)
        for batch in Batches(data, batch_size, key_padding_mask=key_padding_mask):
            finite(batch, names, first)
            first += len(batch)
            device = batch.x.device if weight is None else weight.device
            x, beside = batch.x.to(device).detach(), None
            if batch.mask is not None:
                beside = batch.mask.to(device)
                wide = beside.unsqueeze(-1) if x.dim() == 3 else beside
                x = x.masked_fill(wide, 0.0)  # NaN times a gradient of 0 would be NaN
            if not found:
                column = _column(model, graph, x[:1], None if beside is None else beside[:1], target)
            extra = {} if beside is None else {"additional_forward_args": (beside,)}
            value = explainer.attribute(x.requires_grad_(), target=column, **extra, **options)
            value = value.detach().cpu()
            found.append(value.sum(-1) if value.dim() == 3 else value)
    if not found:
        raise PriorGraphError("data must give at least one batch, got none.")
    sample_axis = 0 if reduce is None else None
    return map_node_attributions(torch.cat(found), graph, axis=1, sample_axis=sample_axis, reduce=reduce)


def _column(model: Any, graph: PriorGraph, x: Tensor, mask: Tensor | None, target: Any) -> int | None:
    """The column of the output that is explained; None where the output has none."""
    with torch.no_grad():
        out = model(x) if mask is None else model(x, mask)
    count = 1 if out.dim() == 1 else out.shape[1]
    known, by_node = output_names(model, graph, count)
    if target is None and count > 1:
        what = "a node" if by_node else f"a column from 0 to {count - 1}"
        raise PriorGraphError(f"target must be {what} where there are {count} outputs, got None.")
    place = 0 if target is None else chosen_positions([target], known, by_node)[0]
    return None if out.dim() == 1 else place
