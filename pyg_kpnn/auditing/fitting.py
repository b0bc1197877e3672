"""Building, fitting and scoring one model of an audit."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyg_kpnn.auditing.problem import Problem
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph
from pyg_kpnn.prior.names import show

__all__ = ["default_model", "edge_shares", "fit_adamw", "metric_name", "score_default", "seeded", "train"]

Factory = Callable[[PriorGraph], nn.Module]
Fit = Callable[[nn.Module, Tensor, Tensor, int], Any]
Score = Callable[[nn.Module, Tensor, Tensor], Any]

_METRICS = {"class": "balanced accuracy", "graph": "R²", "node": "mean R² of the columns"}
#: Samples that are scored at a time, and samples whose attention is averaged.
_AT_ONCE, _LOOKED_AT = 1024, 256


def metric_name(problem: Problem) -> str:
    """What :func:`score_default` measures."""
    return _METRICS[problem.kind]


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's global generators seeded inside, and as they were outside."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def default_model(problem: Problem) -> Factory:
    """A small :class:`~pyg_kpnn.PriorTransformer` that reads out what the data asks for."""
    from pyg_kpnn.nn import PriorTransformer

    classes = problem.num_outputs if problem.kind == "class" else None

    def build(graph: PriorGraph) -> nn.Module:
        if problem.kind == "node" and problem.num_outputs != graph.state_dim:
            raise PriorGraphError(
                f"'y' must have one column a unit, {graph.state_dim}, for the default model. Got "
                f"{problem.num_outputs}. Pass a model_factory."
            )
        return PriorTransformer(
            graph, embed_dim=16, num_heads=2, num_layers=2, readout=problem.kind, num_classes=classes
        )

    return build


def fit_adamw(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    seed: int = 0,
    *,
    steps: int = 100,
    lr: float = 0.01,
    weight_decay: float = 0.01,
) -> None:
    """Train on all samples at once for a fixed number of AdamW steps; no early stop, no best step.

    Parameters
    ----------
    model : nn.Module
        Returns logits (B, classes), or what ``y`` is shaped like.
    x, y : Tensor
        Samples in rows. Cross-entropy for integer ``y``, else the mean squared error.
    seed : int
        Unused: nothing here is random (dropout draws from the generator the audit seeds).
    steps : int, default 100
    lr : float, default 0.01
        Highest rate; it falls to zero along half a cosine.
    weight_decay : float, default 0.01

    Raises
    ------
    PriorGraphError
        If the model returns another shape.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimizer.zero_grad(set_to_none=True)
        _loss(model(x), y).backward()
        optimizer.step()


def _loss(out: Tensor, y: Tensor) -> Tensor:
    if not y.is_floating_point():
        if out.dim() != 2 or len(out) != len(y):
            raise PriorGraphError(
                f"The model must return logits ({len(y)}, classes). Got shape {tuple(out.shape)}."
            )
        return nn.functional.cross_entropy(out, y)
    _same_shape(out, y)
    return nn.functional.mse_loss(out, y)


def _same_shape(out: Tensor, y: Tensor) -> None:
    if out.shape != y.shape:  # or (B, 1) and (B,) would be compared all with all
        raise PriorGraphError(
            f"The model must return what y is shaped like, {tuple(y.shape)}. Got shape {tuple(out.shape)}."
        )


def score_default(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Mean recall of the classes, or R² (the mean over the columns of ``y`` that vary)."""
    out = torch.cat([model(part) for part in x.split(_AT_ONCE)])
    if not y.is_floating_point():
        right = (out.argmax(-1) == y).double()
        return float(torch.stack([right[y == label].mean() for label in y.unique()]).mean())
    _same_shape(out, y)
    y, out = y.double().reshape(len(y), -1), out.double().reshape(len(y), -1)
    error, spread = (y - out).square().sum(0), (y - y.mean(0)).square().sum(0)
    varies = spread > 0
    return float((1.0 - error[varies] / spread[varies]).mean())


def train(
    factory: Factory, graph: PriorGraph, problem: Problem, fit: Fit, score: Score, seed: int, what: str
) -> tuple[nn.Module, float]:
    """A fitted model in evaluation mode and its score on the test samples.

    The same seed stands before every model, so that what the graph does not change starts the same.
    """
    x = problem.x_train
    with seeded(seed, x.device):
        model = factory(graph)
        if not isinstance(model, nn.Module):
            raise PriorGraphError(
                f"'model_factory' must return an nn.Module. Got {show(model)} ({type(model).__name__})."
            )
        model.to(x.device, x.dtype).train()
        fit(model, x, problem.y_train, seed)
        model.eval()
        with torch.no_grad():
            value = score(model, problem.x_test, problem.y_test)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise PriorGraphError(
            f"A score must be a finite number, higher is better. Got {show(value)} on {what}."
        )
    return model, number


def edge_shares(model: Any, graph: PriorGraph, x: Tensor) -> Tensor | None:
    """Attention (E,) on every named edge over what an even share would be; None without ``edge_weights``.

    The mean over layers, heads, samples and the unit pairs of an edge, times the number of keys of the
    target: 1 is as much as any other source of that target gets. A model may be wired by more edges than
    ``graph``, such as their ways back; None where it lacks one.
    """
    if not hasattr(model, "edge_weights") or not hasattr(model, "layers"):
        return None
    own = getattr(model, "graph", graph)
    if not isinstance(own, PriorGraph) or own.nodes != graph.nodes:
        return None
    places = np.searchsorted(own._edge_keys, graph._edge_keys).clip(max=own.num_edges - 1)
    if (own._edge_keys[places] != graph._edge_keys).any():
        return None
    with torch.no_grad():
        layers = model.edge_weights(x[:_LOOKED_AT])
    weight = torch.stack([layer.double().mean(dim=(0, 2)) for layer in layers]).mean(0).cpu()
    target = model.layers[0].attention.target_index.cpu()
    weight = (weight * target.bincount()[target])[: own.nnz]
    pair_edge = own.pair_edge
    total = torch.zeros(own.num_edges, dtype=weight.dtype).index_add(0, pair_edge, weight)
    return (total / pair_edge.bincount(minlength=own.num_edges))[places]
