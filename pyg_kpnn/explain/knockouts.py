"""In-silico knock-outs: what the outputs do when a node's value is taken away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import PriorGraphError
from ..nn.checks import flag
from ..nn.jet_checks import jet_refusal
from ..nn.prior_transformer import PriorTransformer
from ..prior import PriorGraph
from ..prior.names import name_of, show
from .batches import Batch, Batches, finite
from .named_model import chosen_positions, graph_of_model, output_names, unit_labels
from .reach import distances
from .weighted_edges import evaluating

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["knockout"]


def knockout(
    model: Any,
    data: Any,
    nodes: Sequence[Any] | None = None,
    *,
    value: float | str = 0.0,
    outputs: Sequence[Any] | None = None,
    per_sample: bool = False,
    batch_size: int = 64,
    key_padding_mask: Tensor | None = None,
) -> pd.DataFrame:
    """Set the input of a node, or of several at once, and see how far each output moves.

    Parameters
    ----------
    model : callable
        With a :class:`~pyg_kpnn.PriorGraph` as its attribute ``graph``; takes ``(B, n)`` or ``(B, n, c)``
        values and, where something is masked, a mask after them; returns ``(B,)`` or ``(B, K)``. A
        :class:`~pyg_kpnn.PriorTransformer` or a model of your own.
    data, batch_size, key_padding_mask
        As in :func:`edge_weights`.
    nodes : sequence, optional
        Names, and tuples of names that are knocked out together; every node alone by default.
    value : float, "mean" or "mask", default 0.0
        What the node's input becomes: a number, its own mean over the samples where it was measured, or
        not measured at all (``key_padding_mask``), as the model treats that.
    outputs : sequence, optional
        Names of nodes where the model returns one value a unit, numbers of columns otherwise.
    per_sample : bool, default False
        False: the mean over samples. True: a row a sample.

    Returns
    -------
    pandas.DataFrame
        Columns ``node`` (several joined by ``" + "``), ``output``, ``change`` (with the knock-out less
        without) and ``baseline`` (without); ``per_sample`` puts ``sample`` in front. Outputs turn
        fastest, then nodes.

    Raises
    ------
    PriorGraphError
        If an argument is not as above, or a value is not finite and not masked.

    Notes
    -----
    A PriorTransformer of L layers with ``readout="node"`` changes only what lies at most L edges
    downstream; all else is exactly 0. A knock-out asks the model, not the organism: it says what the
    model would predict for an input it may never have seen. Standardised values have mean 0, so that 0 is the
    average sample there, and a lack of expression in raw counts.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn import PriorGraph
    >>> class Double:
    ...     graph = PriorGraph.from_edges([("a", "c"), ("b", "c")])
    ...     def __call__(self, x):
    ...         return 2.0 * x[:, 0] + x[:, 2]
    >>> x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
    >>> knockout(Double(), x, ["a", ("b", "c")])
        node  output  change  baseline
    0      a       0    -4.0       8.0
    1  b + c       0    -4.0       8.0
    """
    graph = graph_of_model(model)
    flag("per_sample", per_sample)
    number = isinstance(value, Real) and not isinstance(value, bool) and np.isfinite(float(value))
    if not number and not (isinstance(value, str) and value in ("mean", "mask")):
        raise PriorGraphError(f"value must be a finite number, 'mean' or 'mask', got {show(value)}.")
    entries = _entries(graph, nodes)
    batches = Batches(data, batch_size, key_padding_mask=key_padding_mask)
    batches.again(1 + (value == "mean"), "value='mean'")
    fill = _means(graph, batches) if value == "mean" else None
    found: list[list[Tensor]] = [[], []]
    names: list[Any] = []
    samples = 0
    with torch.no_grad(), evaluating(model):
        fixed = _unreached(model, graph, list(entries.values()))
        for base, change in _runs(model, graph, batches, list(entries.values()), value, fill):
            if not names:
                known, by_node = output_names(model, graph, base.shape[1])
                chosen = chosen_positions(outputs, known, by_node)
                names = [known[place] for place in chosen]
            samples += len(base)
            base, change = base[:, chosen], change[:, :, chosen]
            if fixed is not None:
                change.masked_fill_(torch.from_numpy(fixed[:, chosen]).unsqueeze(1), 0.0)
            if per_sample:
                found[0].append(base)
                found[1].append(change)
            else:  # running sums
                sums = (base.sum(0, keepdim=True), change.sum(1, keepdim=True))
                found = [[sum(kept, new)] for kept, new in zip(found, sums, strict=True)]
    base, change = torch.cat(found[0]), torch.cat(found[1], 1)
    if not per_sample:
        base, change = base / samples, change / samples
    return _frame(list(entries), names, by_node, base, change, per_sample)


def _entries(graph: PriorGraph, nodes: Any) -> dict[str, list[int]]:
    """Label and units of every knock-out."""
    if isinstance(nodes, (str, bytes)) or not (nodes is None or hasattr(nodes, "__iter__")):
        raise PriorGraphError(
            f"nodes must be a sequence of names and of tuples of names, got {show(nodes)}. Put a single name "
            "in a list."
        )
    found: dict[str, list[int]] = {}
    side = "source" if graph.is_bipartite else None
    for entry in graph.source_nodes if nodes is None else nodes:
        several = list(entry) if isinstance(entry, (tuple, list)) else [entry]
        label = " + ".join(name_of(name) for name in several)
        spans = [graph.node_units(name, side) for name in several]
        units = [unit for span in spans for unit in range(span.start, span.stop)]
        if not units or len(set(units)) < len(units) or label in found:
            raise PriorGraphError(f"nodes must be different, at least one in a tuple, got {show(entry)}.")
        found[label] = units
    if not found:
        raise PriorGraphError("nodes must hold at least one name, got none.")
    return found


def _means(graph: PriorGraph, batches: Batches) -> Tensor:
    """Mean value ``(n, ...)`` of every unit where it is not masked."""
    total: Any = 0.0
    count: Any = 0.0
    names, first = unit_labels(graph, "source"), 0
    for batch in batches:
        _check(graph, batch)
        finite(batch, names, first)
        first += len(batch)
        live = torch.ones(batch.x.shape[:2], dtype=torch.bool) if batch.mask is None else ~batch.mask
        there = live.to(batch.x.device).double()
        wide = there.unsqueeze(-1) if batch.x.dim() == 3 else there
        total = total + torch.where(wide > 0, batch.x.double(), 0.0).sum(0).cpu()
        count = count + wide.sum(0).cpu()
    mean: Tensor = total / count.clamp(min=1.0)
    return mean


def _check(graph: PriorGraph, batch: Batch) -> None:
    if batch.x.shape[1] != graph.num_sources:
        raise PriorGraphError(
            f"data must hold {graph.num_sources} values a sample, one a unit, got {tuple(batch.x.shape)}."
        )


def _unreached(model: Any, graph: PriorGraph, entries: list[list[int]]) -> np.ndarray | None:
    """``(entries, n)``, the units a knock-out cannot reach; None where no bound is known.

    What is known to be 0 is set to 0: a device that adds in any order would leave rounding there.
    """
    if not isinstance(model, PriorTransformer) or model.readout != "node" or jet_refusal(model) is not None:
        return None
    layers = len(model.layers)
    return np.stack([distances(graph, units).min(0) > layers for units in entries])


def _runs(
    model: Any, graph: PriorGraph, batches: Batches, entries: list[list[int]], value: Any, fill: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batch by batch, outputs ``(B, K)`` and their changes ``(entries, B, K)``, float64 on the CPU."""
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    names, first = unit_labels(graph, "source"), 0
    for batch in batches:
        _check(graph, batch)
        finite(batch, names, first)
        first += len(batch)
        device = batch.x.device if weight is None else weight.device
        x, mask = batch.x.to(device), None if batch.mask is None else batch.mask.to(device)
        if value == "mask" and mask is None:  # or the two calls would take different roads
            mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=device)
        base = _called(model, x, mask)
        changes = []
        for units in entries:
            x_out, mask_out = x, mask
            if value == "mask":
                assert mask is not None
                mask_out = mask.clone()
                mask_out[:, units] = True
            else:
                x_out = x.clone()
                x_out[:, units] = float(value) if fill is None else fill[units].to(x)
            changes.append(_called(model, x_out, mask_out) - base)
        yield base, torch.stack(changes)


def _called(model: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    out = model(x) if mask is None else model(x, mask)
    if not isinstance(out, Tensor) or out.dim() not in (1, 2) or len(out) != len(x):
        what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise PriorGraphError(f"model must return (B,) or (B, K), got {what} for {len(x)} samples.")
    return (out.unsqueeze(1) if out.dim() == 1 else out).cpu().double()


def _frame(
    entries: list[str], outputs: list[Any], by_node: bool, base: Tensor, change: Tensor, per_sample: bool
) -> pd.DataFrame:
    import pandas as pd

    knocked, samples, count = change.shape
    output: Any = np.array(outputs * (samples * knocked), dtype=np.int64) if not by_node else None
    if by_node:
        codes = np.tile(np.arange(count, dtype=np.int32), samples * knocked)
        output = pd.Categorical.from_codes(codes, pd.Index(outputs, dtype=object))
    codes = np.tile(np.repeat(np.arange(knocked, dtype=np.int32), count), samples)
    columns = {
        "node": pd.Categorical.from_codes(codes, pd.Index(entries, dtype=object)),
        "output": output,
        "change": change.transpose(0, 1).reshape(-1).numpy(),
        "baseline": base.unsqueeze(1).expand(-1, knocked, -1).reshape(-1).numpy(),
    }
    if per_sample:
        columns = {"sample": np.repeat(np.arange(samples), knocked * count), **columns}
    return pd.DataFrame(columns, copy=False)
