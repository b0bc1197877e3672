"""When only values are asked for, and how their memory is kept."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _get_tracing_state
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

__all__ = ["keep_memory", "values_only"]

_KEPT = 2**24  # bytes


def values_only(*tensors: Tensor) -> bool:
    """Whether what is computed from ``tensors``, on the CPU, is neither recorded for a derivative nor traced.

    Intermediate results may then be written over, points be taken a block at a time, and the compiled
    routines do the work.
    """
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return False
    if peek_interpreter_stack() is not None:  # a transform of torch.func, which tensors need not show
        return False
    if forward_ad._current_level >= 0 or _get_tracing_state() is not None:
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return all(tensor.is_cpu and type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)


def keep_memory() -> None:
    """Let malloc keep the memory of intermediate results for the next ones.

    glibc returns memory to the system above a limit that follows the largest block it was given back.
    Every result after that is paged in anew, which takes as long as computing it. So it is given a large
    block once; memory that nobody touches is not there.
    """
    torch.empty(_KEPT, dtype=torch.uint8)
