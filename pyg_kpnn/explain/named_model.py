"""A model over the units of a graph as a function of flat inputs, each of which has a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import PriorGraphError
from ..nn.checks import mask_of
from ..nn.jet_checks import active_dropout, jet_refusal
from ..nn.prior_transformer import PriorTransformer
from ..nn.projection import is_plain
from ..prior import PriorGraph
from ..prior.names import near_names, show
from .reach import distances, meeting_hops

__all__ = ["NamedModel", "chosen_positions", "graph_of_model", "labels", "output_names", "unit_labels"]


class NamedModel:
    """Names of inputs and outputs, how far apart they are, and the model as ``(B, N)`` to ``(B, K)``.

    Parameters
    ----------
    model : callable
        See :func:`~pyg_kpnn.explain.interactions`.
    x : Tensor
        ``(B, n)`` or ``(B, n, c)``.
    mask : Tensor, optional
        ``(B, n)`` bool, True = not measured; the model is then called with it.

    Attributes
    ----------
    inputs : list of str
        Names of the N = n c entries of a sample, in the order of memory.
    outputs : list
        Names of the K outputs: of units where there are as many and the model has a node readout or is
        unknown; else column numbers.
    node_outputs : bool
        Whether outputs are units.
    has_jets : bool
        Whether :func:`~pyg_kpnn.nn.transformer_jet.transformer_jet` knows every layer.
    num_layers : int or None
        Layers along the graph that bound how far a value travels; None where no bound is known.
    pooled : bool
        Whether every output reads the tokens of all nodes.
    samples, flat : Tensor
        ``x``, with 0 where it is masked, as given and as ``(B, N)``.
    mask : Tensor or None
        As given.

    Raises
    ------
    PriorGraphError
        If the model has no graph, drops at random, mixes samples or returns something else than ``(B,)``
        or ``(B, K)``, or ``x`` does not fit it or is not finite.
    """

    def __init__(self, model: Any, x: Tensor, mask: Tensor | None = None) -> None:
        graph = graph_of_model(model)
        refused = _in_training(model) if isinstance(model, nn.Module) else None
        if refused is not None:
            raise PriorGraphError(refused)
        self.model, self.graph = model, graph
        self._check(x)
        self.mask = mask_of(x, mask)
        x = x if self.mask is None else _filled(x, self.mask)  # what is there, NaN included, is not used
        channels = x.shape[2] if x.dim() == 3 else 1
        self.samples, self.flat = x, x.detach().reshape(len(x), -1)
        self.inputs = unit_labels(graph, "source", channels)
        self._check_finite()
        with torch.no_grad():
            self._num_outputs = self._returned(x[:1], None if self.mask is None else self.mask[:1])
        self._positions = {label: place for place, label in enumerate(self.inputs)}
        known = jet_refusal(model) if isinstance(model, nn.Module) else "not a module"
        self.has_jets = known is None
        self.num_layers = len(model.layers) if self.has_jets else None
        self.pooled = self.has_jets and model.readout != "node"
        if self.pooled and not is_plain(model.head):
            self.num_layers = None
        self.outputs, self.node_outputs = output_names(model, graph, self._num_outputs)

    def part(self, start: int, stop: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """The model on some of the samples, ``(b, N)`` to ``(b, K)``, and these."""
        shape = self.samples.shape[1:]
        mask = None if self.mask is None else self.mask[start:stop]

        def function(flat: Tensor) -> Tensor:
            x = flat.reshape(-1, *shape)
            # Filled here, so that no model, whatever it does with a mask, has a slope there.
            out: Tensor = self.model(x) if mask is None else self.model(_filled(x, mask), mask)
            return out.unsqueeze(1) if out.dim() == 1 else out

        return function, self.flat[start:stop]

    @cached_property
    def measured(self) -> np.ndarray:
        """``(B, N)`` bool, what is not masked."""
        there = torch.ones_like(self.samples)
        there = there if self.mask is None else _filled(there, self.mask)
        return there.flatten(1).bool().cpu().numpy()

    def measured_together(self, inputs: Any = slice(None)) -> np.ndarray:
        """Share of the samples in which both were measured, for each pair of u inputs, ``(u, u)``."""
        there = self.measured[:, inputs].astype(np.float64)
        return there.T @ there / len(there)

    def entry(self, wanted: Any) -> tuple[int, int]:
        """Positions of a pair of inputs; -1 for the second where there is none."""
        if isinstance(wanted, str):
            return self._position(wanted), -1
        if isinstance(wanted, (tuple, list)) and len(wanted) == 2:
            return self._position(wanted[0]), self._position(wanted[1])
        raise PriorGraphError(f"An entry of pairs must be two names or one, got {show(wanted)}.")

    def chosen_outputs(self, outputs: Sequence[Any] | None) -> list[int]:
        """Positions of the outputs with these names."""
        return chosen_positions(outputs, self.outputs, self.node_outputs)

    def hops(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Hops of entries ``(P,)`` float64, NaN where no bound is known; ``b`` is -1 in first derivatives."""
        if self.num_layers is None or not len(a):
            return np.full(len(a), np.nan)
        second = np.where(b < 0, a, b)
        units, place = np.unique(np.concatenate([a, second]), return_inverse=True)
        apart = distances(self.graph, units.tolist())
        first, last = place.reshape(2, -1)
        if not self.pooled:
            return np.maximum(apart[first, out], apart[last, out])
        found = np.empty(len(a))
        for start in range(0, len(a), 4096):  # each pair looks at every token
            some = slice(start, start + 4096)
            found[some] = meeting_hops(apart[first[some]], apart[last[some]])
        return found

    def _position(self, name: Any) -> int:
        place = self._positions.get(name) if isinstance(name, str) else None
        if place is None:
            parts = [label for label in self.inputs if isinstance(name, str) and label.startswith(f"{name}[")]
            hint = f" (it has {len(parts)} inputs: {parts[0]}, …)" if parts else ""
            hint = hint or (near_names(name, self.inputs) if isinstance(name, str) else "")
            raise PriorGraphError(f"An input must be a node of the graph by name, got {show(name)}{hint}.")
        return place

    def _check(self, x: Any) -> None:
        units = self.graph.num_sources
        fits = isinstance(x, Tensor) and x.dim() in (2, 3) and x.shape[1] == units and x.is_floating_point()
        if not fits or x.numel() == 0:
            what = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise PriorGraphError(
                f"x must be floating point of shape (B, {units}) or (B, {units}, channels), B at least 1; "
                f"got {what}."
            )

    def _check_finite(self) -> None:
        lost = (~self.flat.isfinite()).nonzero()
        if len(lost):
            sample, place = (int(i) for i in lost[0])
            raise PriorGraphError(
                f"Derivatives need finite values, got {float(self.flat[sample, place])} for "
                f"{self.inputs[place]} in sample {sample}. Mask it, fill it in, or leave the sample out."
            )

    def _returned(self, x: Tensor, mask: Tensor | None) -> int:
        out = self.model(x) if mask is None else self.model(x, mask)
        if not isinstance(out, Tensor) or out.dim() not in (1, 2) or len(out) != 1:
            what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise PriorGraphError(f"model must return (B,) or (B, K), got {what} for one sample.")
        return 1 if out.dim() == 1 else out.shape[1]


def _filled(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` (B, n, ...) with 0 where it is masked."""
    return x.masked_fill(mask if x.dim() == 2 else mask.unsqueeze(-1), 0.0)


def _in_training(model: nn.Module) -> str | None:
    """What to say about a module that drops at random or mixes samples; None where nothing does."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.training:
            return (
                f"Derivatives need samples that do not influence each other, and {name} "
                f"({type(module).__name__}) is in training mode. Call model.eval()."
            )
    return active_dropout(model)


def chosen_positions(outputs: Sequence[Any] | None, known: Sequence[Any], nodes: bool) -> list[int]:
    """Positions in ``known`` of these outputs, all for None; ``nodes`` words the error: names or columns."""
    if outputs is None:
        return list(range(len(known)))
    if isinstance(outputs, (str, bytes)) or not hasattr(outputs, "__iter__"):
        raise PriorGraphError(f"outputs must be a sequence, got {show(outputs)}.")
    places = {name: place for place, name in enumerate(known)}
    chosen = []
    for wanted in outputs:
        # a bool is equal to a number, and no name of a column
        if isinstance(wanted, bool) or not isinstance(wanted, (str, int, np.integer)) or wanted not in places:
            hint = near_names(str(wanted), known) if nodes else ""
            among = "nodes" if nodes else f"columns 0 to {len(known) - 1}"
            raise PriorGraphError(f"outputs must be among the {among}, got {show(wanted)}{hint}.")
        chosen.append(places[wanted])
    if not chosen or len(set(chosen)) < len(chosen):
        raise PriorGraphError(f"outputs must be different and at least one, got {show(outputs)}.")
    return chosen


def graph_of_model(model: Any) -> PriorGraph:
    """The attribute ``graph`` of a model that can be called."""
    graph = getattr(model, "graph", None)
    if not callable(model) or not isinstance(graph, PriorGraph):
        raise PriorGraphError(
            f"model must be a callable with a PriorGraph as its attribute graph, got {type(model).__name__} "
            f"with {type(graph).__name__}."
        )
    return graph


def unit_labels(graph: PriorGraph, side: str, channels: int = 1) -> list[str]:
    """Labels of the units of a side, ``"source"`` or ``"target"``, or of all nodes where there is one set."""
    nodes = graph.target_nodes if side == "target" else graph.source_nodes
    widths = graph.node_widths[-len(nodes) :] if side == "target" else graph.node_widths[: len(nodes)]
    return labels(nodes, widths, channels)


def output_names(model: Any, graph: PriorGraph, count: int) -> tuple[list[Any], bool]:
    """Names of nodes, or numbers of columns; and which of the two."""
    names = unit_labels(graph, "target")
    tokens = not isinstance(model, PriorTransformer) or model.readout == "node"
    by_node = tokens and count == len(names) > 1
    return (list(names) if by_node else list(range(count))), by_node


def labels(names: Sequence[str], widths: Sequence[int], channels: int = 1) -> list[str]:
    """A label a unit and channel: ``a``, or ``a[1]`` where a node has several, ``a[1,0]`` for both."""
    found = []
    for name, width in zip(names, widths, strict=True):
        for unit in range(width):
            for channel in range(channels):
                parts = [str(unit)] * (width > 1) + [str(channel)] * (channels > 1)
                found.append(f"{name}[{','.join(parts)}]" if parts else name)
    return found
