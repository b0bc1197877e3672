"""Derivatives by the compiled routines of ``csrc/jets_*.inc``, for values that nobody traces."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ops.native_library import NATIVE_DTYPES, library, native_missing
from .indices import JetSpace, product_rows
from .memory import keep_memory, values_only
from .towers import ACTIVATIONS

if TYPE_CHECKING:
    from .network import AttentionNet

__all__ = ["second_order", "taylor"]

# Numbers in one derivative of one layer's activation for the points that are taken at a time.
_BLOCK = 2**18
_DTYPES = (torch.float32, torch.float64)
_TANH = ACTIVATIONS["tanh"]


class _Problem(ctypes.Structure):  # pk_jet_problem in csrc/jets.h
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("points", "in_dim", "hidden", "memory", "out_dim", "depth")),
        *((name, ctypes.c_int32) for name in ("dtype", "threads", "activation", "order")),
        *((name, ctypes.c_void_p) for name in ("weights", "keys", "offers", "readout", "readout_bias")),
        *((name, ctypes.c_void_p) for name in ("x", "biases", "query", "derivatives", "places")),
        *((name, ctypes.c_void_p) for name in ("value", "gradient", "hessian", "laplacian", "jet")),
    ]


def second_order(net: AttentionNet, x: Tensor, *asked: str) -> list[Tensor] | None:
    """Results at x ``(B, in_dim)``, or None where only torch's operations will do.

    That is where a gradient or a transform follows the computation, off the CPU, and without the
    library. ``asked`` is among ``"value"`` (B, out_dim), ``"gradient"`` (B, in_dim, out_dim),
    ``"hessian"`` (B, out_dim, in_dim, in_dim), symmetric to the last bit, and ``"laplacian"`` (B, out_dim).
    The number of threads shows in no bit but for those of torch's own products, by which networks of
    other activations than tanh are encoded.
    """
    if not _able(net, x):
        return None
    named = net.activation is _TANH
    if not named and asked == ("value",):  # most of it is not the routine's
        return None
    net.activation.require_tower()
    count, in_dim = x.shape
    out_dim = net.readout_bias.shape[0]
    shapes = {"value": (out_dim,), "gradient": (in_dim, out_dim), "hessian": (out_dim, in_dim, in_dim)}
    results = {name: x.new_empty(count, *shapes.get(name, (out_dim,))) for name in asked}
    if named:
        _run("pk_second_order", net, x, [], results)
        return list(results.values())
    order = 2 if "hessian" in asked or "laplacian" in asked else 1
    for piece, given, parts in _pieces(net, x, order, results):
        if given is None:
            return None
        _run("pk_second_order", net, piece, given, parts, order)
    return list(results.values())


def taylor(net: AttentionNet, x: Tensor, space: JetSpace) -> Tensor | None:
    """Taylor coefficients ``(B, size, out_dim)`` to an order of at least 1, or None as above."""
    if not _able(net, x):
        return None
    net.activation.require_tower()
    order = space.order
    tables = [
        product_rows(space.n_vars, j, k, x.device) if j and j + k <= order else None
        for j in range(order + 1)
        for k in range(order + 1)
    ]
    jet = x.new_empty(x.shape[0], space.size, net.readout_bias.shape[0])
    for piece, given, parts in _pieces(net, x, order, {"jet": jet}):
        if given is None:
            return None
        _run("pk_taylor", net, piece, given, parts, order, tables)
    return jet


def _able(net: AttentionNet, x: Tensor) -> bool:
    if native_missing() is not None or x.dtype not in _DTYPES or not values_only(x, *net.tensors()):
        return False
    keep_memory()
    return True


def _pieces(
    net: AttentionNet, x: Tensor, order: int, results: dict[str, Tensor]
) -> Iterator[tuple[Tensor, list[Tensor] | None, dict[str, Tensor]]]:
    """Some points, their query and each layer's derivatives 1 to ``order``, and their part of the results.

    None in place of the derivatives where a tower of the user's own holds parameters that want a
    gradient, or answers in another dtype.
    """
    step = max(1, _BLOCK // net.keys.shape[1])
    for begin in range(0, x.shape[0], step):
        piece = x[begin : begin + step]
        query, levels = net.encode(piece, order)
        given = [query, *(level for tower in levels for level in tower[:order])]
        good = values_only(*given) and all(level.dtype == x.dtype for level in given)
        parts = {name: result[begin : begin + step] for name, result in results.items()}
        yield piece, given if good else None, parts


def _run(
    routine: str,
    net: AttentionNet,
    x: Tensor,
    given: Sequence[Tensor],
    results: dict[str, Tensor],
    order: int = 2,
    tables: Sequence[Tensor | None] = (),
) -> None:
    """Call a routine; ``given`` is as in :func:`_pieces`, or empty where the routine knows the activation."""
    weights, biases, given = _plain(net.weights), _plain(net.biases), _plain(given)
    keys, offers, readout, bias, x = _plain((net.keys, net.offers(), net.readout_weight, net.readout_bias, x))
    problem = _Problem(
        x.shape[0], x.shape[1], keys.shape[1], keys.shape[0], bias.shape[0], len(weights),
        NATIVE_DTYPES[x.dtype], torch.get_num_threads(), 0 if given else 1, order,
    )  # fmt: skip
    tensors = {"keys": keys, "offers": offers, "readout_bias": bias, "x": x, **results}
    if net.residual:
        tensors["readout"] = readout
    if given:
        tensors["query"] = given[0]
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    lists = {"weights": weights, "biases": biases, "derivatives": given[1:], "places": tables}
    arrays = {name: _addresses(some) for name, some in lists.items()}  # to live as long as the call
    for name, array in arrays.items():
        setattr(problem, name, ctypes.addressof(array))
    failed = getattr(library(), routine)(ctypes.byref(problem))
    assert not failed


def _plain(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    places = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    return (ctypes.c_void_p * len(tensors))(*places)
