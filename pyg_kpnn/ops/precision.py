"""What torch is doing around a call: autocast, export."""

from __future__ import annotations

import contextlib

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

__all__ = ["AGREEMENT", "exporting", "traced", "without_autocast"]

# How far two ways to one result may lie apart: backends, chunks, orders of edges, compiled or not. Largest
# difference over largest entry, of results and first derivatives in that dtype, for up to a thousand
# edges into a node.
AGREEMENT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def without_autocast(device_type: str) -> contextlib.AbstractContextManager[object]:
    """Context in which operations keep the dtype of their inputs."""
    # kinds that know no autocast, such as meta, refuse the question
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def exporting() -> bool:
    """Whether ``torch.export`` or an ONNX export is tracing; False where torch cannot tell."""
    asked = getattr(torch.compiler, "is_exporting", None)
    return bool(asked and asked()) or torch.onnx.is_in_onnx_export()


def traced() -> bool:
    """Whether somebody watches single operations: compiling, exporting, or a dispatch mode."""
    return torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None
