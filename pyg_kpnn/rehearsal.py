"""Loading a state dict without loading it: the rehearsal behind :mod:`pyg_kpnn.checkpoint`.

torch finds out entry by entry what it cannot load, with the entries before it already copied. Here the
same code runs on a stand-in first, whose parameters have shapes and no memory.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

__all__ = ["INTEGERS", "describe", "has_numbers", "own_copy", "rehearse"]

INTEGERS = {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}


def describe(value: Any) -> str:
    """An entry in words, never its numbers."""
    if isinstance(value, Tensor):
        if value.is_nested:
            return "a nested tensor"
        how = "" if value.layout == torch.strided else f"{value.layout} "
        return f"a {how}{value.dtype} tensor of shape {tuple(value.shape)}{' without data' * value.is_meta}"
    return f"a {type(value).__name__}"


def has_numbers(value: Any) -> bool:
    """Whether ``value`` is a dense tensor whose numbers can be read."""
    if not isinstance(value, Tensor) or value.is_nested:
        return False
    return value.layout == torch.strided and not value.is_meta


def own_copy(state_dict: Mapping[str, Any], model: nn.Module | None = None) -> OrderedDict[str, Any]:
    """The same entries in a dict of our own; torch writes into the ``_metadata`` of one it loads.

    With a ``model``, entries that are other tensors of that model get memory of their own: as the first
    layer takes the numbers of the second, the second must still find those of the first.
    """
    entries = OrderedDict(state_dict)
    if hasattr(state_dict, "_metadata"):
        entries._metadata = copy.deepcopy(state_dict._metadata)  # type: ignore[attr-defined]
    if model is not None:
        named = chain(
            model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        )
        own = {name: place for name, tensor in named if (place := _place(tensor)) is not None}
        storages = {place[0] for place in own.values()}
        for name, entry in entries.items():
            place = _place(entry)
            if place is not None and place[0] in storages and place != own.get(name):
                entries[name] = entry.detach().clone()
    return entries


def _place(value: Any) -> tuple[int, int, tuple[int, ...]] | None:
    """Where the numbers of a plain tensor lie, None for anything that has none."""
    if type(value) not in (Tensor, nn.Parameter) or not has_numbers(value) or not value.numel():
        return None
    return value.untyped_storage().data_ptr(), value.data_ptr(), value.stride()


def _stand_in(model: nn.Module) -> nn.Module:
    """A model that loads like ``model`` and may be written to: modules, buffers and hooks of its own.

    Parameters are on the meta device and take no memory; other attributes are shared, unless loading
    may write into them as well.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if not is_lazy(parameter):
            shadow = torch.empty_like(parameter, device="meta")
            memo[id(parameter)] = nn.Parameter(shadow, parameter.requires_grad)
    for module in model.modules():
        twin = object.__new__(module.__class__)
        twin.__dict__.update(module.__dict__)
        memo[id(module)] = twin
        for name in getattr(module, "_shared_in_rehearsal", ()):
            memo[id(module._buffers[name])] = module._buffers[name]
    for module in model.modules():
        twin = memo[id(module)]
        for name, value in module.__dict__.items():
            # Names torch itself uses, among them hooks bound to the module they belong to.
            if name in ("_parameters", "_buffers", "_modules") or name.startswith("_load_state_dict_"):
                twin.__dict__[name] = copy.deepcopy(value, memo)
            elif type(module).set_extra_state is not nn.Module.set_extra_state:
                with contextlib.suppress(Exception):  # what cannot be copied is shared
                    twin.__dict__[name] = copy.deepcopy(value, memo)
    return memo[id(model)]


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex or dtype.is_floating_point:
        return "complex" if dtype.is_complex else "floating point"
    return "integer" if dtype in INTEGERS else str(dtype)


class _KeepKinds(TorchFunctionMode):
    """In a rehearsal, refuse what real memory would refuse or take in silently changed.

    A copy to the meta device accepts any dtype, and torch drops fractions and imaginary parts.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.copy_, Tensor.module_load) and all(isinstance(each, Tensor) for each in args[:2]):
            own, other = (tensor.dtype for tensor in args[:2])
            if own != other:
                if _kind(own) != _kind(other):
                    raise TypeError(
                        f"the model has {own}, the checkpoint {other}, which is another kind of number"
                    )
                torch.empty(1, dtype=own, device="cpu").copy_(torch.empty(1, dtype=other, device="cpu"))
        return func(*args, **(kwargs or {}))


def rehearse(load: Callable[..., Any], model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> None:
    """Call ``load``, some ``load_state_dict``, on a stand-in of ``model``."""
    parameters = list(model.parameters())
    has_data = not parameters or any(not parameter.is_meta for parameter in parameters)
    for name, entry in state_dict.items():
        if not isinstance(name, str):
            raise RuntimeError(f"Names of entries must be text, got {name!r}.")
        if isinstance(entry, Tensor) and not has_numbers(entry) and (has_data or not entry.is_meta):
            raise RuntimeError(f"{name} must be a dense tensor with data, got {describe(entry)}.")
    with warnings.catch_warnings(), _KeepKinds():
        # That copying to a meta tensor does nothing is what is wanted here.
        warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter", UserWarning)
        load(_stand_in(model), own_copy(state_dict), strict=strict)
