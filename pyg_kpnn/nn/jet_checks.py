"""Which models have jets, and the checks of what a jet is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import PriorGraphError
from ..prior import PriorGraph
from ..prior.names import name_list, show
from .checks import mask_of, values_of
from .edge_attention import EdgeAttention
from .packed_attention import PackedMultiheadAttention
from .prior_transformer import PriorTransformer, PriorTransformerLayer
from .projection import LayerNorm, NodeLinear, is_plain

__all__ = [
    "ELEMENTWISE",
    "active_dropout",
    "check_values",
    "chosen_outputs",
    "jet_refusal",
    "layers_of",
    "units_of",
]

#: Activations whose derivatives have a closed form, and what :mod:`pyg_kpnn.jets` calls them.
ELEMENTWISE = {nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def jet_refusal(model: nn.Module) -> str | None:
    """Why there are no jets of ``model``, naming the module; None where there are."""
    own = (PriorTransformer.forward, PriorTransformer._run)
    if not isinstance(model, PriorTransformer) or (type(model).forward, type(model)._run) != own:
        return f"Jets need PriorTransformer's own forward, got {type(model).__name__} with another."
    for name, module in model.named_modules():
        where = f"{name} ({type(module).__name__})" if name else type(module).__name__
        if "forward" in module.__dict__ or any(getattr(module, hooks) for hooks in _HOOKS):
            return f"Jets do not see what hooks do, and {where} has one, or another forward. Remove it."
        if isinstance(module, EdgeAttention) and module._lifts():
            return f"Jets do not see what message hooks do, and {where} has one or is explained."
    dropping = active_dropout(model)
    if dropping is not None:
        return dropping
    for name, module, kinds in _parts(model):
        fits = _chain_refusal(name, module) if kinds is None else _kind_refusal(name, module, kinds)
        if fits is not None:
            return fits
    return None


def active_dropout(model: nn.Module) -> str | None:
    """What to say about a module that drops at random; None where nothing does."""
    for name, module in model.named_modules():
        drop = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else vars(module).get("dropout")
        if module.training and isinstance(drop, float) and drop > 0.0:
            where = f"{name or 'the model'} ({type(module).__name__})"
            return f"Derivatives need dropout to be off, and {where} is in training mode. Call model.eval()."
    return None


def layers_of(model: PriorTransformer) -> list[PriorTransformerLayer]:
    """The layers of a model that :func:`jet_refusal` has seen."""
    return cast("list[PriorTransformerLayer]", list(model.layers))


def _parts(model: PriorTransformer) -> Iterator[tuple[str, nn.Module, tuple[type, ...] | None]]:
    """Every module that computes something, with the classes that are known; None: a chain."""
    norms = (LayerNorm, nn.LayerNorm)
    for index, layer in enumerate(layers_of(model)):
        name = f"layers.{index}"
        yield name, layer, (PriorTransformerLayer,)
        yield f"{name}.attention", layer.attention, (PackedMultiheadAttention,)
        yield f"{name}.attention.attention", layer.attention.attention, (EdgeAttention,)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield f"{name}.attention.{part}", getattr(layer.attention, part), ()
        yield f"{name}.attention_norm", layer.attention_norm, norms
        yield f"{name}.feedforward_norm", layer.feedforward_norm, norms
        yield f"{name}.feedforward", layer.feedforward, None
        yield f"{name}.dropout", layer.dropout, (nn.Dropout, nn.Identity)
    yield "norm", model.norm, norms
    yield "head", model.head, (NodeLinear,) if _reads_nodes(model) else None


def _reads_nodes(model: PriorTransformer) -> bool:
    """Whether every node is read by a row of a NodeLinear."""
    head = model.head
    fits = isinstance(head, NodeLinear) and head.weight.shape == model.value_weight.shape
    return fits and model.readout == "node"


def _kind_refusal(name: str, module: nn.Module, kinds: tuple[type, ...]) -> str | None:
    known = type(module) in kinds if kinds else is_plain(module)
    if known and isinstance(module, nn.LayerNorm) and len(module.normalized_shape) != 1:
        known = False
    wanted = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds)) or "a plain Linear"
    return None if known else f"Jets need {name} to be {wanted}, got {type(module).__name__}."


def _chain_refusal(name: str, module: nn.Module) -> str | None:
    if type(module) is nn.Sequential:
        found = (_chain_refusal(f"{name}.{part}", child) for part, child in module.named_children())
        return next((refused for refused in found if refused is not None), None)
    kinds = (LayerNorm, nn.LayerNorm, nn.Dropout, nn.Identity, *ELEMENTWISE)
    if is_plain(module) or (type(module) is nn.GELU and module.approximate == "none"):
        return None
    if type(module) in kinds and _kind_refusal(name, module, kinds) is None:
        return None
    shown = repr(module)
    shown = type(module).__name__ if "\n" in shown else shown
    return f"Jets do not know {name}: {shown}. They know Linear, LayerNorm, GELU, SiLU, Tanh and Sigmoid."


def check_values(graph: PriorGraph, x: Any, mask: Any = None) -> None:
    """Refuse ``x`` that is not values of every unit of ``graph``, finite where not masked."""
    values_of(x, graph.state_dim)
    lost = (~x.isfinite() if mask_of(x, mask) is None else ~x.isfinite() & ~mask).nonzero()
    if len(lost):
        sample, unit = (int(place) for place in lost[0])
        owner = next(name for name in graph.nodes if unit < graph.node_units(name).stop)
        raise PriorGraphError(
            f"Derivatives need finite values, got {float(x[sample, unit])} for {owner} in sample {sample}. "
            "Mask it, fill it in, or leave the sample out."
        )


def units_of(model: PriorTransformer, argument: str, names: Any) -> list[int]:
    """Positions of the units of named nodes, each node once."""
    found = name_list(names, argument, ordered=True)
    every = range(model.graph.state_dim)
    units = [unit for name in found for unit in every[model.graph.node_units(name)]]
    if not units or len(set(units)) < len(units):
        raise PriorGraphError(
            f"{argument} must be names of different nodes, at least one, got {show(names)}."
        )
    return units


def chosen_outputs(model: PriorTransformer, outputs: Any) -> Tensor:
    """Positions of outputs given by node name or class number; of all for None."""
    device = model.value_weight.device
    width = _head_width(model)
    if model.readout != "class" and width != 1:
        raise PriorGraphError(f"head must give one number with readout={model.readout!r}, got {width}.")
    count = model.graph.state_dim if model.readout == "node" else width
    if outputs is None:
        return torch.arange(count, device=device)
    if model.readout == "node":
        return torch.tensor(units_of(model, "outputs", outputs), device=device)
    if model.readout == "graph":
        raise PriorGraphError(f"outputs must be None with readout='graph', got {show(outputs)}.")
    numbers = list(outputs) if isinstance(outputs, (list, tuple, range)) else []
    if not numbers or any(type(number) is not int or not 0 <= number < count for number in numbers):
        raise PriorGraphError(f"outputs must be class numbers in [0, {count}), got {show(outputs)}.")
    return torch.tensor(numbers, device=device)


def _head_width(model: PriorTransformer) -> int:
    if _reads_nodes(model):
        return 1
    linear = [module for module in model.head.modules() if is_plain(module)]
    weight = linear[-1].weight if linear else model.value_weight.T
    return len(weight)  # type: ignore[arg-type]
