"""Backend ``scatter``: the segment kernels of torch_scatter.

torch_scatter's ``segment_csr`` and ``gather_csr`` compute right first derivatives and wrong
second ones without an error, so their own autograd is never used: a sum over segments and
its spread back are wrapped here as two functions, each the other's backward.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from .kernels import BatchedFunction
from .layout import EdgeLayout

__all__ = ["ScatterKernel", "scatter_missing"]


@cache
def scatter_missing() -> str | None:
    """Why torch_scatter cannot be used here, or None when it can."""
    try:
        import torch_scatter  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:  # OSError: built for another torch
        return f"torch_scatter cannot be imported: {str(error).splitlines()[0]}"
    return None


def _torch_scatter() -> ModuleType:
    import torch_scatter

    return torch_scatter


class ScatterKernel:
    """torch_scatter's CSR kernels; sums towards sources walk the edges source by source."""

    def edge_order(self, layout: EdgeLayout, side: str) -> tuple[Tensor | None, Tensor]:
        if side == "target":
            return None, layout.source
        return layout.by_source, layout.target_by_source

    def add_rows(self, out: Tensor, rows: Tensor, layout: EdgeLayout, side: str, edges: slice) -> None:
        if edges.start == 0 and edges.stop == layout.num_edges:
            ptr = layout.target_ptr if side == "target" else layout.source_ptr
            # ``out`` is still zero: written to, where adding would read it too
            _torch_scatter().segment_csr(rows, ptr if rows.dim() == 3 else ptr.unsqueeze(0), out, "sum")
            return
        # A slice touches few segments; a CSR sum would write all of them once a slice.
        if side == "target":
            index = layout.target[edges]
        else:
            index = layout.source.index_select(0, layout.by_source[edges])
        out.index_add_(-3, index, rows)

    def segment_max(self, scores: Tensor, layout: EdgeLayout) -> Tensor:
        # Segments without an edge come back as 0, which no edge reads.
        if scores.numel() == 0:
            return scores.new_zeros(scores.shape[0], layout.num_targets, scores.shape[2])
        return _torch_scatter().segment_csr(scores, layout.target_ptr.unsqueeze(0), reduce="max")

    def segment_sum(self, values: Tensor, layout: EdgeLayout) -> Tensor:
        return _SegmentSum.apply(values, layout)

    def spread(self, values: Tensor, layout: EdgeLayout) -> Tensor:
        return _Spread.apply(values, layout)


class _SegmentSum(BatchedFunction):
    @staticmethod
    def forward(values: Tensor, layout: EdgeLayout) -> Tensor:
        if values.numel() == 0:  # the kernels size their output by its first row
            return values.new_zeros(values.shape[0], layout.num_targets, values.shape[2])
        return _torch_scatter().segment_csr(values, layout.target_ptr.unsqueeze(0), reduce="sum")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.layout = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Spread.apply(grad, ctx.layout), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        with _set_fwd_grad_enabled(True):
            return _SegmentSum.apply(tangent, ctx.layout)


class _Spread(BatchedFunction):
    @staticmethod
    def forward(values: Tensor, layout: EdgeLayout) -> Tensor:
        if layout.num_edges == 0 or values.numel() == 0:
            return values.new_zeros(values.shape[0], layout.num_edges, values.shape[2])
        return _torch_scatter().gather_csr(values.contiguous(), layout.target_ptr.unsqueeze(0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.layout = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _SegmentSum.apply(grad, ctx.layout), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        with _set_fwd_grad_enabled(True):
            return _Spread.apply(tangent, ctx.layout)
