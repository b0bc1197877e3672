"""Checkpoints that know their graph, and loading that changes all layers or none.

A layer with fixed edges stores two facts beside its weights: ``index_digest``, a hash of
its edges and sizes, and ``identity``, the name of the graph it was built for. Loading
compares both before a single weight is copied. The formats are those of kpnn2 0.3.0, so
checkpoints travel both ways.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .errors import PriorGraphError
from .rehearsal import INTEGERS, describe, has_numbers, own_copy, rehearse

__all__ = [
    "AllOrNothing",
    "FixedGraph",
    "FrozenBuffers",
    "check_checkpoint",
    "index_digest",
    "load_checkpoint",
]


_INDICES = ("source_index", "target_index")
_NOTHING = "No weights were loaded."


def index_digest(
    source_index: Tensor,
    target_index: Tensor,
    query_features: int,
    key_features: int,
    embed_dim: int,
    num_heads: int,
) -> Tensor:
    """SHA-256 of the edges and sizes of a layer.

    Parameters
    ----------
    source_index, target_index : Tensor
        ``(nnz,)`` integer tensors.
    query_features, key_features, embed_dim, num_heads : int
        Sizes of the layer.

    Returns
    -------
    Tensor
        32 bytes, uint8 on the CPU: the hash of the little-endian int64 bytes of the sources,
        then the targets, then the four sizes in the order of the signature.
    """
    digest = hashlib.sha256()
    for index in (source_index, target_index):
        # Hashed where it lies, if it is int64 already: a big graph must not be in memory twice.
        numbers = np.ascontiguousarray(index.detach().cpu().numpy(), dtype="<i8").reshape(-1)
        digest.update(numbers.data)
    digest.update(struct.pack("<4q", query_features, key_features, embed_dim, num_heads))
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def encode_identity(identity: str) -> Tensor:
    """UTF-8 bytes of ``identity`` as a 1-D uint8 tensor on the CPU."""
    try:
        data = identity.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PriorGraphError(f"identity must be text that UTF-8 can hold: {error.reason}.") from None
    return torch.tensor(list(data), dtype=torch.uint8, device="cpu")


def decode_identity(stored: Any, key: str) -> str:
    """Text of a stored identity; raises when it is not UTF-8 bytes in a 1-D uint8 tensor."""
    if not isinstance(stored, Tensor) or stored.dtype != torch.uint8 or stored.dim() != 1:
        raise PriorGraphError(
            f"The checkpoint's '{key}' must be a 1-D uint8 tensor of UTF-8 bytes, got {describe(stored)}. "
            + _NOTHING
        )
    try:
        return bytes(stored.tolist()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise PriorGraphError(
            f"The checkpoint's '{key}' must hold UTF-8 bytes, got bytes that are not: {error.reason}. "
            + _NOTHING
        ) from None


class FrozenBuffers(nn.Module):
    """Mixin of modules with buffers that belong to the graph and not to the training.

    ``to_empty`` would leave garbage in them and a move to meta would lose them, so those named in
    ``_frozen_buffers`` keep their values and follow the module to real devices only.
    """

    _frozen_buffers: tuple[str, ...] = ()

    def _frozen(self) -> dict[str, Tensor]:
        names = self._frozen_buffers
        return {name: tensor for name in names if (tensor := self._buffers.get(name)) is not None}

    def _apply(self, fn: Any, recurse: bool = True) -> FrozenBuffers:
        kept = self._frozen()
        super()._apply(fn, recurse)
        for name, tensor in kept.items():
            device = getattr(self._buffers[name], "device", tensor.device)
            self._buffers[name] = tensor if device.type == "meta" else tensor.to(device)
        return self


class FixedGraph(FrozenBuffers):
    """Base of layers whose edges are fixed at construction.

    Holds ``source_index`` and ``target_index`` as buffers, the digest over them, and the
    identity; refuses checkpoints of another graph. A subclass calls :meth:`_fix_graph` once
    and lists in ``digest_sizes`` the four sizes that enter the digest.
    """

    source_index: Tensor
    target_index: Tensor
    index_digest: Tensor

    _frozen_buffers: tuple[str, ...] = ("source_index", "target_index", "identity")
    # Compared by a load, never written, and as long as the graph: a rehearsal needs no copies of them.
    _shared_in_rehearsal: tuple[str, ...] = _INDICES

    def digest_sizes(self) -> tuple[int, int, int, int]:
        """query_features, key_features, embed_dim, num_heads."""
        raise NotImplementedError

    def _fix_graph(self, source_index: Tensor, target_index: Tensor, identity: str | None) -> None:
        self.register_buffer("source_index", source_index)
        self.register_buffer("target_index", target_index)
        # Not a buffer: it belongs to the graph and stays on the CPU wherever the weights go.
        self.index_digest = index_digest(source_index, target_index, *self.digest_sizes())
        if identity is not None:
            # A buffer without register_buffer: the name is taken by the property, and being a
            # buffer is what lets functional_call swap in the entry of a state dict.
            self._buffers["identity"] = encode_identity(identity)

    @property
    def identity(self) -> str | None:
        """Label of the graph this layer was built for, or None."""
        stored = self._buffers.get("identity")
        return None if stored is None else decode_identity(stored, "identity")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "identity":  # torch would take None for "remove that buffer"
            raise AttributeError("identity is read-only: build the layer with the identity it should have.")
        super().__setattr__(name, value)

    def check_state(self, state_dict: Mapping[str, Any], prefix: str = "") -> None:
        """Raise unless the entries of ``state_dict`` under ``prefix`` are of this layer's graph."""
        place = prefix or type(self).__name__
        self._check_digest(state_dict, prefix, place)
        own = self.identity
        key = f"{prefix}identity"
        if key not in state_dict:
            return
        other = decode_identity(state_dict[key], key)
        if own is None:
            raise PriorGraphError(
                f"A layer without an identity loads only checkpoints saved without one; the checkpoint "
                f"for '{place}' carries identity {_shown(other)}. Build the layer with that identity. "
                + _NOTHING
            )
        if other != own:
            left, right = _shown(own), _shown(other)
            if left == right:  # they differ behind the part that is shown
                left, right = repr(own), repr(other[: len(own) + 24])
            raise PriorGraphError(
                f"The checkpoint must come from the same graph; '{place}' has identity {left}, the "
                f"checkpoint {right}. {_NOTHING}"
            )

    def _check_digest(self, state_dict: Mapping[str, Any], prefix: str, place: str) -> None:
        key = f"{prefix}index_digest"
        if key in state_dict:
            stored = state_dict[key]
            if not has_numbers(stored) or stored.dtype != torch.uint8 or stored.shape != (32,):
                raise PriorGraphError(
                    f"The checkpoint's '{key}' must be 32 bytes in a uint8 tensor, got {describe(stored)}. "
                    + _NOTHING
                )
            if not torch.equal(stored.cpu(), self.index_digest):
                raise PriorGraphError(
                    f"The checkpoint must have the edges and sizes of '{place}' {self.digest_sizes()} "
                    "(query_features, key_features, embed_dim, num_heads); its index digest differs. "
                    + _NOTHING
                )
        # An entry that is absent is torch's to report; the other one is compared all the same.
        pair = [state_dict.get(f"{prefix}{name}", getattr(self, name)) for name in _INDICES]
        for name, index in zip(_INDICES, pair, strict=True):
            if not has_numbers(index) or index.dtype not in INTEGERS or index.dim() != 1:
                raise PriorGraphError(
                    f"The checkpoint's '{prefix}{name}' must be an integer tensor with one entry an edge, "
                    f"got {describe(index)}. {_NOTHING}"
                )
        # Compared by digest, because the layer's own indices may be on any device.
        if not torch.equal(index_digest(pair[0], pair[1], *self.digest_sizes()), self.index_digest):
            counts = " and ".join(str(index.numel()) for index in pair)
            raise PriorGraphError(
                f"The checkpoint must have the edges of '{place}' in the same order; its source_index and "
                f"target_index differ ({counts} entries, the layer has {self.source_index.numel()} edges). "
                + _NOTHING
            )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}index_digest"] = self.index_digest
        identity = self._buffers.get("identity")
        if identity is not None:  # with the module while it runs, on the CPU in a checkpoint
            destination[f"{prefix}identity"] = identity.cpu()

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self.check_state(state_dict, prefix)
        # A copy, because the caller's dict stays as it was. What belongs to the graph was compared above:
        # it is equal, so it is never copied, and digest and identity may be absent even under strict.
        entries = dict(state_dict)
        optional = {f"{prefix}identity"}
        for name in ("index_digest", "identity", *_INDICES):
            if entries.pop(f"{prefix}{name}", None) is not None:
                optional.add(f"{prefix}{name}")
        super()._load_from_state_dict(
            entries, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        missing_keys[:] = [key for key in missing_keys if key not in optional]


def _shown(identity: str) -> str:
    # Two fingerprints differ at once; 64 digits of each would hide the message.
    return repr(identity if len(identity) <= 24 else identity[:12] + "…")


def check_checkpoint(model: nn.Module, state_dict: Mapping[str, Any], strict: bool = True) -> None:
    """Raise what ``model.load_state_dict(state_dict, strict)`` would raise, and change nothing."""
    rehearse(type(model).load_state_dict, model, state_dict, strict)


def load_checkpoint(
    model: nn.Module, state_dict: Mapping[str, Any], strict: bool = True
) -> torch.nn.modules.module._IncompatibleKeys:
    """Load ``state_dict`` into ``model``, all of it or nothing.

    Parameters
    ----------
    model : nn.Module
        Any model; layers that are not ours are checked too.
    state_dict : mapping
        As from ``model.state_dict()``. Left as it is.
    strict : bool, default True
        As in :meth:`torch.nn.Module.load_state_dict`.

    Returns
    -------
    NamedTuple
        ``missing_keys`` and ``unexpected_keys``, as torch returns them.

    Raises
    ------
    PriorGraphError
        If a key is missing or unexpected (``strict``), a shape differs, or a layer belongs to
        another graph. The model is as it was.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> load_checkpoint(model, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    <All keys matched successfully>
    >>> load_checkpoint(model, {"weight": torch.zeros(1, 2)})
    Traceback (most recent call last):
    ...
    pyg_kpnn.errors.PriorGraphError: Nothing was loaded. Error(s) in loading state_dict for Linear:
        Missing key(s) in state_dict: "bias".
    """
    if not isinstance(state_dict, Mapping):
        raise PriorGraphError(
            f"state_dict must be a mapping of names to tensors, got {describe(state_dict)}."
        )
    try:
        check_checkpoint(model, state_dict, strict)
    except RuntimeError as error:
        raise PriorGraphError(f"Nothing was loaded. {error}") from error
    return model.load_state_dict(own_copy(state_dict, model), strict=strict)


class AllOrNothing(nn.Module):
    """Mixin of our layers and models: ``load_state_dict`` checks everything, then copies."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load as torch does, but change nothing when any entry is refused."""
        if isinstance(state_dict, Mapping):
            rehearse(nn.Module.load_state_dict, self, state_dict, strict)
            state_dict = own_copy(state_dict, None if assign else self)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)


def _guard_load_state_dict() -> None:
    """Let ``load_state_dict`` of any module ask our layers first.

    torch copies module by module, so a layer of ours that refuses half-way would leave the
    modules before it overwritten. Only the outermost call sees the whole model, its class may
    be anybody's, and modules can be joined in ways that no registration hook reports
    (``ModuleList.insert``, a container attached before). So the one method is wrapped: it asks
    our layers inside, if there are any, and then runs torch's own code, unchanged.
    """
    original = nn.Module.load_state_dict

    @functools.wraps(original)
    def load_state_dict(self: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, AllOrNothing):  # it has rehearsed already, or is the rehearsal
            return original(self, state_dict, *args, **kwargs)
        modules = list(self.named_modules(remove_duplicate=False))
        if isinstance(state_dict, Mapping) and any(isinstance(module, FixedGraph) for _, module in modules):
            if any(module._load_state_dict_pre_hooks for _, module in modules):
                # Hooks may rename entries; only a rehearsal tells what a layer will be given.
                with contextlib.suppress(RuntimeError):
                    rehearse(original, self, state_dict, False)
            else:
                for name, module in modules:
                    if isinstance(module, FixedGraph):
                        module.check_state(state_dict, f"{name}." if name else "")
        return original(self, state_dict, *args, **kwargs)

    load_state_dict._pyg_kpnn_original = original  # type: ignore[attr-defined]
    nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]


if not hasattr(nn.Module.load_state_dict, "_pyg_kpnn_original"):
    _guard_load_state_dict()
