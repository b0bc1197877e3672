"""The compiled kernel of ``csrc/``: finding it, and calling it on tensors.

The library has a plain C interface and is loaded with ctypes, so that one build serves every
version of torch. It is loaded after torch: both then share torch's OpenMP threads.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
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
    "slices_of_one",
]

_ROUTINES = ("pk_level", "pk_forward", "pk_backward", "pk_read_rows", "pk_second_order", "pk_taylor")
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
        ("source_ptr", ctypes.c_void_p),
        ("by_source", ctypes.c_void_p),
        ("target_by_source", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bias_batch", "bias_edge", "bias_head")),
        ("key_mask", ctypes.c_void_p),
        ("drop_low", ctypes.c_uint32),
        ("drop_high", ctypes.c_uint32),
        ("drop_below", ctypes.c_uint32),
        ("drop_scale", ctypes.c_double),
    ]


class _Gradients(ctypes.Structure):  # pk_gradients
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("mixed", "norm", "grad")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("query", "key", "value", "bias")),
        ("node", ctypes.c_int64),
    ]


def _load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    spec = importlib.util.find_spec("pyg_kpnn.ops._native")  # finds the file, does not import it
    if spec is None or spec.origin is None:
        if (Path(__file__).parents[2] / "csrc").is_dir():
            return (
                "the native library is not in the source folder, from which pyg_kpnn is imported here: work "
                "in another folder to use the installed package, or install with `pip install -e .`"
            )
        return (
            "the native library was not built when pyg_kpnn was installed: no C++ compiler, or one "
            "that failed; `pip install -v` shows why"
        )
    try:
        library = ctypes.CDLL(spec.origin)
    except OSError as error:
        return f"the native library cannot be loaded: {str(error).splitlines()[0]}"
    lacking = [name for name in _ROUTINES if not hasattr(library, name)]
    if lacking:
        return f"the native library is another version's, without {lacking[0]}: install pyg_kpnn again"
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


_INDICES = ("target_ptr", "source", "position", "source_ptr", "by_source", "target_by_source")


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
    source_ptr: Tensor  # (S + 1,) int64
    by_source: Tensor  # (E,) int64, sorted edges by source
    target_by_source: Tensor  # (E,) int64
    dropout_p: float


def slices_of_one(tensors: Sequence[Tensor]) -> bool:
    """Whether three ``(B, N, H, d)`` tensors lie as ``unbind(2)`` of one contiguous ``(B, N, 3, H, d)``."""
    first = tensors[0]
    _, nodes, heads, width = first.shape
    row = heads * width
    strides = (3 * nodes * row, 3 * row, width, 1)
    return all(
        tensor.shape == first.shape
        and tensor.stride() == strides
        and tensor.data_ptr() == first.data_ptr() + i * row * first.element_size()
        and tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for i, tensor in enumerate(tensors)
    )


def _padded_width(channels: int) -> int:
    """Width at which the kernel reads heads: 3, 5, 6 and 7 are rounded up to what vectors hold."""
    return 1 << (channels - 1).bit_length() if 2 < channels < 8 else channels


def _widen(tensor: Tensor, width: int) -> Tensor:
    more = width - tensor.shape[-1]
    return torch.nn.functional.pad(tensor, (0, more)) if more else tensor


def _narrow(tensor: Tensor, width: int) -> Tensor:
    return tensor if tensor.shape[-1] == width else tensor[..., :width].contiguous()


def _problem(inputs: NativeInputs) -> tuple[_Problem, list[Tensor | None]]:
    """The struct, and the tensors made for it, which have to outlive the call."""
    width = _padded_width(inputs.query.shape[-1])
    query, key, value = (_rows(_widen(tensor, width)) for tensor in inputs[:3])
    bias, seed, dropout_p = inputs.bias, inputs.seed, inputs.dropout_p
    key_mask = None if inputs.key_mask is None else inputs.key_mask.contiguous()
    batch, targets, heads, channels = inputs.query.shape
    problem = _Problem(
        batch=batch,
        targets=targets,
        sources=key.shape[1],
        edges=inputs.source.numel(),
        heads=heads,
        channels=width,
        dtype=NATIVE_DTYPES[query.dtype],
        threads=torch.get_num_threads(),
        scale=channels**-0.5,
        query=_strided(query),
        key=_strided(key),
        value=_strided(value),
        key_mask=_pointer(key_mask),
        **{name: _pointer(getattr(inputs, name)) for name in _INDICES},
    )
    if bias is not None:
        problem.bias = _pointer(bias)
        problem.bias_batch, problem.bias_edge, problem.bias_head = bias.stride()
    if dropout_p > 0.0 and seed is not None:
        number = int(seed)
        problem.drop_low, problem.drop_high = number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF
        problem.drop_below = round(dropout_p * 2**24)
        problem.drop_scale = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
    return problem, [query, key, value, key_mask]


def native_forward(inputs: NativeInputs, need_weights: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """``mixed`` (B, T, H, d), ``norm`` (B, T, 2, H), weights (B, E, H) in the caller's order or None.

    ``norm`` holds the maximum and the inverse sum of each softmax. Results are float32, or float64
    for float64.
    """
    problem, alive = _problem(inputs)
    query = inputs.query
    dtype = _accumulator(query.dtype)
    batch, targets, heads, channels = query.shape
    mixed = query.new_empty(batch, targets, heads, problem.channels, dtype=dtype)
    norm = query.new_empty(batch, targets, 2, heads, dtype=dtype)
    weights = query.new_empty(batch, problem.edges, heads, dtype=dtype) if need_weights else None
    failed = library().pk_forward(ctypes.byref(problem), _pointer(mixed), _pointer(norm), _pointer(weights))
    assert not failed
    del alive
    return _narrow(mixed, channels), norm, weights


def native_backward(
    inputs: NativeInputs, mixed: Tensor, norm: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value and, if there is one, bias, in the results' dtype.

    Where query, key and value are slices of one tensor, so are their gradients; else they are contiguous.
    """
    problem, alive = _problem(inputs)
    channels, width = inputs.query.shape[-1], problem.channels
    dtype = _accumulator(inputs.query.dtype)
    mixed, grad = (_widen(tensor.to(dtype), width).contiguous() for tensor in (mixed, grad))
    if slices_of_one(inputs[:3]):
        batch, nodes, heads, _ = inputs.query.shape
        results = inputs.query.new_empty(batch, nodes, 3, heads, width, dtype=dtype).unbind(2)
    else:
        results = tuple(tensor.new_empty(*tensor.shape[:-1], width, dtype=dtype) for tensor in inputs[:3])
    bias = inputs.bias
    grad_bias = None if bias is None else bias.new_empty(bias.shape, dtype=dtype)
    gradients = _Gradients(*(_pointer(tensor) for tensor in (mixed, norm, grad, *results, grad_bias)))
    gradients.node = results[0].stride(1)
    failed = library().pk_backward(ctypes.byref(problem), ctypes.byref(gradients))
    assert not failed
    del alive
    grad_query, grad_key, grad_value = (_narrow(tensor, channels) for tensor in results)
    return grad_query, grad_key, grad_value, grad_bias


def read_rows(key: Tensor, value: Tensor, target_ptr: Tensor, source: Tensor) -> Tensor:
    """Sums (B, T) over the key and value rows of each target's edges, read once: a floor to measure by."""
    targets = target_ptr.numel() - 1
    query = key.new_empty(1, 1, *key.shape[2:]).expand(key.shape[0], targets, -1, -1)  # not read
    order = (target_ptr, source, source, source, source, source)
    inputs = NativeInputs(query, key, value, None, None, None, *order, 0.0)
    problem, alive = _problem(inputs)
    sums = key.new_empty(key.shape[0], targets)
    failed = library().pk_read_rows(ctypes.byref(problem), _pointer(sums))
    assert not failed
    del alive
    return sums
