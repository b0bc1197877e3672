"""The compiled kernel of ``csrc/``: finding it, and calling it on tensors.

The library has a plain C interface and is loaded with ctypes, so that one build serves every
version of torch. It is loaded after torch: both then share torch's OpenMP threads.
"""

from __future__ import annotations

import ctypes
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "NATIVE_DTYPES",
    "NativeInputs",
    "library",
    "native_backward",
    "native_forward",
    "native_missing",
    "read_rows",
]

NATIVE_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("node", ctypes.c_int64),
        ("head", ctypes.c_int64),
    ]


class _Problem(ctypes.Structure):  # pk_problem in csrc/edge_attention.h
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "targets", "sources", "edges", "heads", "channels")),
        ("dtype", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("scale", ctypes.c_double),
        ("query", _Tensor),
        ("key", _Tensor),
        ("value", _Tensor),
        ("target_ptr", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("position", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bias_batch", "bias_edge", "bias_head")),
        ("key_mask", ctypes.c_void_p),
        ("drop_low", ctypes.c_uint32),
        ("drop_high", ctypes.c_uint32),
        ("drop_below", ctypes.c_uint32),
        ("drop_scale", ctypes.c_double),
    ]


def _load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    spec = importlib.util.find_spec("pyg_kpnn.ops._native")  # finds the file, does not import it
    if spec is None or spec.origin is None:
        return (
            "the native library was not built when pyg_kpnn was installed: no C++ compiler, or one "
            "that failed; `pip install -v` shows why"
        )
    try:
        library = ctypes.CDLL(spec.origin)
    except OSError as error:
        return f"the native library cannot be loaded: {str(error).splitlines()[0]}"
    library.pk_level.restype = ctypes.c_char_p
    return library


# Loaded with this module, where torch.compile does not look.
_LIBRARY = _load()
_MISSING = _LIBRARY if isinstance(_LIBRARY, str) else None


def native_missing() -> str | None:
    """Why the native library cannot be used here, or None when it can."""
    return _MISSING


def library() -> ctypes.CDLL:
    """The loaded library; only where :func:`native_missing` is None."""
    assert not isinstance(_LIBRARY, str), _LIBRARY
    return _LIBRARY


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _strided(tensor: Tensor) -> _Tensor:
    return _Tensor(tensor.data_ptr(), *tensor.stride()[:3])


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class NativeInputs(NamedTuple):
    """What the kernel reads, in the order of the custom operators' arguments."""

    query: Tensor  # (B, T, H, d), any strides
    key: Tensor  # (B, S, H, d)
    value: Tensor  # (B, S, H, d)
    bias: Tensor | None  # (B, E, H), caller's edge order
    key_mask: Tensor | None  # (B, S) bool, True = ignore
    seed: Tensor | None  # 0-d int64
    target_ptr: Tensor  # (T + 1,) int64
    source: Tensor  # (E,) int32, sorted order
    position: Tensor  # (E,) int64, the caller's position of each sorted edge
    dropout_p: float


def _problem(inputs: NativeInputs) -> tuple[_Problem, list[Tensor | None]]:
    """The struct, and the tensors it points into, which have to outlive the call."""
    query, key, value, bias, key_mask, seed, target_ptr, source, position, dropout_p = inputs
    query, key, value = _rows(query), _rows(key), _rows(value)
    if key_mask is not None:
        key_mask = key_mask.contiguous()
    batch, targets, heads, channels = query.shape
    problem = _Problem(
        batch=batch,
        targets=targets,
        sources=key.shape[1],
        edges=source.numel(),
        heads=heads,
        channels=channels,
        dtype=NATIVE_DTYPES[query.dtype],
        threads=torch.get_num_threads(),
        scale=channels**-0.5,
        query=_strided(query),
        key=_strided(key),
        value=_strided(value),
        target_ptr=_pointer(target_ptr),
        source=_pointer(source),
        position=_pointer(position),
        key_mask=_pointer(key_mask),
    )
    if bias is not None:
        problem.bias = _pointer(bias)
        problem.bias_batch, problem.bias_edge, problem.bias_head = bias.stride()
    if dropout_p > 0.0 and seed is not None:
        number = int(seed)
        problem.drop_low, problem.drop_high = number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF
        problem.drop_below = round(dropout_p * 2**24)
        problem.drop_scale = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
    return problem, [query, key, value, bias, key_mask, target_ptr, source, position]


def native_forward(inputs: NativeInputs, need_weights: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """``mixed`` (B, T, H, d), ``norm`` (B, T, 2, H), weights (B, E, H) in the caller's order or None.

    ``norm`` holds the maximum and the inverse sum of each softmax. Results are float32, or float64
    for float64.
    """
    problem, alive = _problem(inputs)
    query, source = inputs.query, inputs.source
    dtype = _accumulator(query.dtype)
    batch, targets, heads, channels = query.shape
    mixed = query.new_empty(batch, targets, heads, channels, dtype=dtype)
    norm = query.new_empty(batch, targets, 2, heads, dtype=dtype)
    weights = query.new_empty(batch, source.numel(), heads, dtype=dtype) if need_weights else None
    failed = library().pk_forward(ctypes.byref(problem), _pointer(mixed), _pointer(norm), _pointer(weights))
    assert not failed
    del alive
    return mixed, norm, weights


def native_backward(
    inputs: NativeInputs, mixed: Tensor, norm: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value and, if there is one, bias; contiguous, in the results' dtype."""
    problem, alive = _problem(inputs)
    dtype = _accumulator(inputs.query.dtype)
    bias = inputs.bias
    grad = grad.to(dtype).contiguous()
    results = [tensor.new_empty(tensor.shape, dtype=dtype) for tensor in inputs[:3]]
    grad_bias = None if bias is None else bias.new_empty(bias.shape, dtype=dtype)
    failed = library().pk_backward(
        ctypes.byref(problem),
        *(_pointer(tensor) for tensor in (mixed, norm, grad, *results, grad_bias)),
    )
    assert not failed
    del alive
    return results[0], results[1], results[2], grad_bias


def read_rows(key: Tensor, value: Tensor, target_ptr: Tensor, source: Tensor) -> Tensor:
    """Sums (B, T) over the key and value rows of each target's edges, read once: a floor to measure by."""
    targets = target_ptr.numel() - 1
    query = key.new_zeros(key.shape[0], targets, *key.shape[2:])
    inputs = NativeInputs(query, key, value, None, None, None, target_ptr, source, source, 0.0)
    problem, alive = _problem(inputs)
    sums = key.new_empty(key.shape[0], targets)
    failed = library().pk_read_rows(ctypes.byref(problem), _pointer(sums))
    assert not failed
    del alive
    return sums
