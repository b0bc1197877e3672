"""The attention weights a model gives, layer by layer, and the names of their edges."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import PriorGraphError
from ..nn.packed_attention import PackedMultiheadAttention
from ..nn.prior_transformer import PriorTransformerLayer
from ..prior import PriorGraph
from ..prior.names import check_choice, show
from .batches import Batch, Batches, finite
from .named_model import unit_labels

__all__ = ["WeightedEdges", "evaluating"]

#: Called with the number of a layer, its weights ``(B, nnz, heads)``, which are gone afterwards, and which
#: keys are live in that layer, ``(B, n)`` bool, None where all are.
Taker = Callable[[int, Tensor, "Tensor | None"], None]


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Every module in evaluation mode, each back in its own mode afterwards."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


class WeightedEdges:
    """The attention layers of a model over one list of named edges.

    Parameters
    ----------
    model : nn.Module
        A PriorTransformer, a PriorTransformerLayer, a PackedMultiheadAttention, or a module that holds
        such layers and is called as ``model(x)`` or ``model(x, mask)``.
    graph : PriorGraph, optional
        The model's own attribute ``graph`` when not given.
    layers : sequence of int, optional
        Which layers to look at, counted from 0.
    heads : {"each", "mean"}
        Whether heads are kept apart.

    Raises
    ------
    PriorGraphError
        If there is no layer or no graph, or the layers run along other edges.
    """

    def __init__(self, model: Any, graph: Any, layers: Any, heads: Any) -> None:
        check_choice(heads, ("each", "mean"), "heads")
        model = getattr(model, "_orig_mod", model)  # torch.compile does not see hooks that come later
        graph = getattr(model, "graph", None) if graph is None else graph
        if not isinstance(model, nn.Module) or not isinstance(graph, PriorGraph):
            raise PriorGraphError(
                "model must be a module with a PriorGraph as its attribute graph, or graph must be given; "
                f"got {type(model).__name__} with {type(graph).__name__}."
            )
        self.model, self.graph, self.mean_heads = model, graph, heads == "mean"
        found = [part for part in model.modules() if isinstance(part, PackedMultiheadAttention)]
        if not found:
            raise PriorGraphError(
                f"model must hold a PackedMultiheadAttention, got a {type(model).__name__} without."
            )
        given = torch.stack([graph.source_index, graph.target_index])
        for number, layer in enumerate(found):
            if not torch.equal(layer.given_edge_index.cpu(), given):
                raise PriorGraphError(
                    f"Every layer must run along the edges of graph; layer {number} does not."
                )
            if layer.nnz != found[0].nnz or layer.num_heads != found[0].num_heads:
                raise PriorGraphError(
                    f"All layers must have as many edges and heads, got {found[0].nnz} and "
                    f"{found[0].num_heads} in layer 0, {layer.nnz} and {layer.num_heads} in layer {number}."
                )
        self.all_layers, self.layers = found, _numbers(layers, len(found))
        first = found[0]
        self.heads = 1 if self.mean_heads else first.num_heads
        self.source, self.target = first.source_index.cpu(), first.target_index.cpu()
        self.nnz = first.nnz
        self.source_names, self.target_names = unit_labels(graph, "source"), unit_labels(graph, "target")
        self.layer_only = isinstance(model, (PackedMultiheadAttention, PriorTransformerLayer))
        self.keys = isinstance(model, PackedMultiheadAttention) and graph.is_bipartite
        weight = next(iter(model.parameters()), first.source_index)
        self.device, self.dtype = weight.device, weight.dtype if weight.is_floating_point() else torch.float32

    def eps(self) -> float:
        """Rounding of a weight."""
        return torch.finfo(torch.promote_types(self.dtype, torch.float32)).eps

    def batches(self, data: Any, batch_size: Any, mask: Any, ordered: bool) -> Batches:
        """The samples in ``data``."""
        return Batches(data, batch_size, key_padding_mask=mask, ordered=ordered, keys=self.keys)

    def at_a_time(self, block_bytes: int) -> int:
        """Samples whose weights in one layer fill ``block_bytes`` at most, at least 1."""
        return max(1, block_bytes // (4 * self.nnz * self.all_layers[0].num_heads))

    def run(self, batch: Batch, first: int, take: Taker) -> None:
        """Give ``take`` the weights of a batch that begins with sample ``first``, one layer at a time."""
        finite(batch, self.source_names, first)
        seen: list[int] = []
        asked: dict[int, tuple[bool, bool, Tensor | None]] = {}

        def before(layer: nn.Module, args: Any, kwargs: Any) -> Any:
            call = inspect.signature(layer.forward).bind(*args, **kwargs)
            call.apply_defaults()
            names = ("need_weights", "average_attn_weights", "key_padding_mask")
            asked[id(layer)] = tuple(call.arguments[name] for name in names)
            call.arguments.update(need_weights=True, average_attn_weights=False)
            return call.args, call.kwargs

        def after(number: int) -> Callable[..., Any]:
            def hook(layer: nn.Module, args: Any, out: Any) -> Any:
                mixed, weights = out
                seen.append(number)
                need, average, mask = asked.pop(id(layer))
                if number in self.layers:
                    kept = weights if layer.batch_first else weights.transpose(0, 1)
                    if kept.dim() != 3 or len(kept) != len(batch):
                        raise PriorGraphError(f"Layer {number} must see every sample as one row of a batch.")
                    live = None if mask is None or not bool(mask.any()) else ~mask.to(weights.device)
                    take(number, kept.mean(-1, keepdim=True) if self.mean_heads else kept, live)
                if not need:
                    return mixed, None
                return mixed, weights.mean(-1) if average else weights

            return hook

        handles = []
        try:
            for number, layer in enumerate(self.all_layers):
                handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
                handles.append(layer.register_forward_hook(after(number)))
            with torch.no_grad(), evaluating(self.model):
                self._call(batch)
        finally:
            for handle in handles:
                handle.remove()
        missing = sorted(set(self.layers).difference(seen))
        if missing or len(seen) != len(set(seen)):
            number = missing[0] if missing else next(n for n in seen if seen.count(n) > 1)
            raise PriorGraphError(
                f"Every layer must run once a call, got {seen.count(number)} runs of layer {number}."
            )

    def _call(self, batch: Batch) -> None:
        x = batch.x.to(self.device)
        mask = () if batch.mask is None else (batch.mask.to(self.device),)
        if self.layer_only and x.dim() != 3:
            raise PriorGraphError(
                f"data for a {type(self.model).__name__} must be tokens (S, n, F), got {tuple(x.shape)}."
            )
        if isinstance(self.model, PackedMultiheadAttention):
            keys = x if batch.second is None else batch.second.to(self.device)
            if not self.model.batch_first:
                x, keys = x.transpose(0, 1), keys.transpose(0, 1)
            self.model(x, keys, keys, *mask)
        else:
            self.model(x, *mask)

    def columns(self, edges: np.ndarray, blocks: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Columns ``layer``, ``head``, ``source`` and ``target`` for some edges in every (layer, head)."""
        import pandas as pd

        count = len(edges)
        layer = np.repeat(np.array([number for number, _ in blocks], dtype=np.int32), count)
        head: Any = np.repeat(np.array([number for _, number in blocks], dtype=np.int32), count)
        if self.mean_heads:
            head = pd.Categorical.from_codes(np.zeros(len(head), dtype=np.int8), ["mean"])
        columns: dict[str, Any] = {"layer": layer, "head": head}
        for name, index, known in (
            ("source", self.source, self.source_names),
            ("target", self.target, self.target_names),
        ):
            kind = np.int16 if len(known) < 2**15 else np.int32
            codes = np.tile(index.numpy()[edges].astype(kind), len(blocks))
            columns[name] = pd.Categorical.from_codes(codes, pd.Index(known, dtype=object))
        return columns


def _numbers(layers: Any, count: int) -> list[int]:
    if layers is None:
        return list(range(count))
    given = [layers] if isinstance(layers, int) and not isinstance(layers, bool) else layers
    numbers = list(given) if isinstance(given, (list, tuple, range)) else []
    if (
        not numbers
        or len(set(map(str, numbers))) < len(numbers)
        or any(type(number) is not int or not 0 <= number < count for number in numbers)
    ):
        raise PriorGraphError(f"layers must be different numbers in [0, {count}), got {show(layers)}.")
    return numbers
