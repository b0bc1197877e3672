"""The data of an audit: columns by name, one split for all graphs, values on one scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, align_inputs
from pyg_kpnn.prior.align import is_anndata
from pyg_kpnn.prior.names import encode, is_frame, listing, show

__all__ = ["Problem", "make_problem"]


@dataclass(frozen=True)
class Problem:
    """What every graph is fitted to and scored on.

    Attributes
    ----------
    kind : {"class", "graph", "node"}
        Classes; one number a sample; several numbers a sample.
    x_train, y_train, x_test, y_test : Tensor
        Samples in rows. ``x`` has one column a unit; ``y`` is int64 (B,), or float (B,) or (B, K).
    num_outputs : int
        Classes, or columns of ``y``.
    """

    kind: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    num_outputs: int


def make_problem(graph: PriorGraph, data: Any, test_share: float, standardize: bool, seed: int) -> Problem:
    """Align, split and standardise ``data`` (see :func:`pyg_kpnn.auditing.audit`)."""
    x, y = _halves(graph, data)
    x = _inputs(graph, x)
    y, kind, outputs = _targets(graph, y, x)
    rng = np.random.default_rng([seed, 1])
    test = _split(y if kind == "class" else None, len(x), test_share, rng).to(x.device)
    problem = Problem(kind, x[~test], y[~test], x[test], y[test], outputs)
    return _standardized(problem) if standardize else problem


def _halves(graph: PriorGraph, data: Any) -> tuple[Any, Any]:
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    from pyg_kpnn.datasets.aligned import AlignedDataset

    if isinstance(data, AlignedDataset) and data.labels is not None:
        if (data.graph.nodes, data.graph.node_widths) != (graph.nodes, graph.node_widths):
            raise PriorGraphError(
                "A dataset must have the nodes of the graph. Got others. Audit `dataset.graph`."
            )
        return data.tensors()[:2]
    raise PriorGraphError(
        f"'data' must be a pair (x, y) or a dataset with labels of from_frame or from_anndata. Got "
        f"{type(data).__name__}{'' if not isinstance(data, AlignedDataset) else ' without labels'}."
    )


def _inputs(graph: PriorGraph, x: Any) -> Tensor:
    if is_frame(x) or is_anndata(x):
        aligned = align_inputs(x, graph)
        cells: Any = aligned.to_numpy() if is_frame(x) else x.X[:, aligned.numpy()]
        cells = cells.toarray() if hasattr(cells, "toarray") else cells
        x = _floats(cells, "x")
        x = x.repeat_interleave(torch.from_numpy(graph._side_widths[0]), dim=1)  # a column for every unit
    else:
        x = _floats(x, "x")
    if x.dim() != 2 or x.shape[1] != graph.num_sources or len(x) < 4:
        raise PriorGraphError(
            f"'x' must be (samples, {graph.num_sources}), one column a unit of the graph, with at least 4 "
            f"samples. Got shape {tuple(x.shape)}. Pass a frame to have its columns put in order by name."
        )
    _refuse_missing(x, "x", np.repeat(graph.source_nodes, graph._side_widths[0]).tolist())
    return x


def _floats(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor) and values.is_floating_point():
        return values.detach()
    try:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        return torch.from_numpy(array.astype(np.float32))
    except (TypeError, ValueError):
        raise PriorGraphError(f"{what!r} must hold numbers. Got {show(values)}.") from None


def _refuse_missing(values: Tensor, what: str, names: list[str]) -> None:
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        at = bad[0].tolist()
        column = f" for {show(names[at[1]])}" if len(at) == 2 and len(names) == values.shape[1] else ""
        number = float(values[tuple(at)])
        raise PriorGraphError(
            f"{what!r} must be finite. Got {number}{column} in sample {at[0]}. Fill the value in, or leave "
            "the sample or the node (graph.restrict_to) out."
        )


def _targets(graph: PriorGraph, y: Any, x: Tensor) -> tuple[Tensor, str, int]:
    if is_frame(y):
        y = align_inputs(y, graph, nodes=graph.target_nodes).to_numpy()
        y = np.repeat(y, graph._side_widths[1], axis=1)
    if not isinstance(y, Tensor):
        y = np.asarray(y)
        if y.dtype.kind not in "fiub" and y.ndim == 1:
            y = _codes(y)
        elif y.dtype.kind not in "fiub":
            raise PriorGraphError(f"'y' must hold numbers or one label a sample. Got {show(y)}.")
        y = torch.from_numpy(np.ascontiguousarray(y))
    if y.dim() not in (1, 2) or len(y) != len(x):
        raise PriorGraphError(
            f"'y' must have one row for each of the {len(x)} samples, in one dimension or two. Got shape "
            f"{tuple(y.shape)}."
        )
    y = y.detach().to(x.device)
    if y.is_floating_point() or y.dim() == 2:
        y = y.to(x.dtype)
        _refuse_missing(y, "y", np.repeat(graph.target_nodes, graph._side_widths[1]).tolist())
        return y, "graph" if y.dim() == 1 else "node", 1 if y.dim() == 1 else y.shape[1]
    names, codes, counts = y.unique(return_inverse=True, return_counts=True)
    if len(names) < 2 or int(counts.min()) < 2:
        raise PriorGraphError(
            f"There must be two classes or more, each of 2 samples or more. Got {len(names)} of "
            f"{listing(map(str, counts.tolist()))} samples. Numbers to predict must be floating point."
        )
    return codes, "class", len(names)


def _codes(labels: np.ndarray) -> np.ndarray:
    """Text labels as positions of their sorted names."""
    import pandas as pd

    codes, distinct = encode(pd.Series(labels), "Labels")
    if (codes < 0).any():
        raise PriorGraphError(
            f"Every sample must have a label. Got none for sample {int(np.argmin(codes))}. Leave it out."
        )
    order = sorted(range(len(distinct)), key=lambda code: str(distinct[code]))
    return np.argsort(order)[codes]


def _split(classes: Tensor | None, samples: int, share: float, rng: np.random.Generator) -> Tensor:
    """Mask (samples,) of the test samples: ``share`` of all, or of each class, and at least one."""
    groups = np.zeros(samples, dtype=np.int64) if classes is None else classes.cpu().numpy()
    test = np.zeros(samples, dtype=bool)
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        test[rows[: min(max(round(share * len(rows)), 1), len(rows) - 1)]] = True
    return torch.from_numpy(test)


def _standardized(problem: Problem) -> Problem:
    """Mean 0 and deviation 1 in the training samples, numbers to predict too; a constant column is 0."""
    changed = {}
    for what in ("x", "y") if problem.kind != "class" else ("x",):
        train, test = getattr(problem, f"{what}_train"), getattr(problem, f"{what}_test")
        mean, deviation = train.mean(0), train.std(0, correction=0)
        deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        changed[f"{what}_train"] = (train - mean) / deviation
        changed[f"{what}_test"] = (test - mean) / deviation
    return replace(problem, **changed)
