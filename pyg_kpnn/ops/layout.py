"""The edges of a graph, checked once and sorted for the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorGraphError
from .precision import exporting

__all__ = ["INTEGER_DTYPES", "EdgeLayout"]

INTEGER_DTYPES = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


class EdgeLayout:
    r"""Edges of one graph in the order the kernels read them.

    Edge :math:`e` runs from source (key, value) ``edge_index[0, e]`` to target (query)
    ``edge_index[1, e]``. Kernels work in *sorted order*: by target, then by source, so that
    the edges into one target are neighbours in memory and a result does not depend on the
    order in which the caller happened to list the edges; parallel ones keep theirs, in which
    they are summed.

    Parameters
    ----------
    edge_index : Tensor
        Integer tensor of shape ``(2, E)``, sources in row 0 and targets in row 1. Parallel
        edges are allowed, ``E = 0`` too.
    num_sources, num_targets : int
        Number of tokens that can be attended to, and that attend.

    Attributes
    ----------
    source, target : Tensor
        ``(E,)`` int64, end points in sorted order.
    source_int32 : Tensor
        ``source`` as the native kernel reads it, at half the bytes.
    by_target : Tensor
        ``(E,)`` int64, ``by_target[i]`` is the caller's position of sorted edge ``i``.
    rank : Tensor
        ``(E,)`` int64, the inverse: caller's edge ``e`` is sorted edge ``rank[e]``.
    target_ptr : Tensor
        ``(num_targets + 1,)`` int64, CSR: the edges into target ``t`` are sorted edges
        ``target_ptr[t]`` up to ``target_ptr[t + 1]``.
    by_source : Tensor
        ``(E,)`` int64, sorted edges listed source by source.
    source_ptr : Tensor
        ``(num_sources + 1,)`` int64, CSC: the edges out of source ``s`` are
        ``by_source[source_ptr[s]:source_ptr[s + 1]]``.
    target_by_source : Tensor
        ``(E,)`` int64, ``target[by_source]``.

    Raises
    ------
    PriorGraphError
        If ``edge_index`` is not an integer ``(2, E)`` tensor, or an index is out of range.
        The range is checked for tensors on the CPU, under ``torch.compile`` too; on other
        devices the check would wait for the device, so build the layout on the CPU and move it
        with :meth:`to`. An exported program checks nothing.

    Examples
    --------
    >>> import torch
    >>> layout = EdgeLayout(torch.tensor([[2, 0, 1], [1, 1, 0]]), 3, 2)
    >>> layout.source.tolist(), layout.target.tolist()
    ([1, 0, 2], [0, 1, 1])
    >>> layout.by_target.tolist(), layout.target_ptr.tolist()
    ([2, 1, 0], [0, 1, 3])
    """

    # Every tensor of a layout, so that a module can hold them as buffers and rebuild it.
    TENSORS = (
        "source",
        "source_int32",
        "target",
        "by_target",
        "rank",
        "target_ptr",
        "by_source",
        "source_ptr",
        "target_by_source",
    )

    source: Tensor
    source_int32: Tensor
    target: Tensor
    by_target: Tensor
    rank: Tensor
    target_ptr: Tensor
    by_source: Tensor
    source_ptr: Tensor
    target_by_source: Tensor

    def __init__(self, edge_index: Tensor, num_sources: int, num_targets: int) -> None:
        num_sources, num_targets = _size("num_sources", num_sources), _size("num_targets", num_targets)
        edge_index = _checked(edge_index, num_sources, num_targets)
        source, target = edge_index[0], edge_index[1]
        self.num_sources = num_sources
        self.num_targets = num_targets
        if exporting():
            # ONNX has no stable sort, and the one backend of an exported program adds in any order.
            self.by_target = torch.arange(source.shape[0], device=source.device)
        else:
            self.by_target = torch.argsort(target * num_sources + source, stable=True)
        self.rank = torch.empty_like(self.by_target)
        self.rank = self.rank.scatter(0, self.by_target, torch.arange(source.numel(), device=source.device))
        self.source = source.index_select(0, self.by_target)
        self.source_int32 = self.source.to(torch.int32)
        self.target = target.index_select(0, self.by_target)
        self.by_source = self.by_target if exporting() else torch.argsort(self.source, stable=True)
        self.target_by_source = self.target.index_select(0, self.by_source)
        self.target_ptr = _pointer(self.target, num_targets)
        self.source_ptr = _pointer(self.source, num_sources)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], num_sources: int, num_targets: int) -> EdgeLayout:
        """Put a layout together again from the tensors named in ``TENSORS``, unchecked."""
        layout = cls.__new__(cls)
        layout.num_sources = num_sources
        layout.num_targets = num_targets
        for name in cls.TENSORS:
            setattr(layout, name, tensors[name])
        return layout

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the layout by name."""
        return {name: getattr(self, name) for name in self.TENSORS}

    def to(self, device: torch.device | str) -> EdgeLayout:
        """Return the layout with every tensor on ``device``."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return self.from_tensors(moved, self.num_sources, self.num_targets)

    def with_edges_as_sources(self) -> EdgeLayout:
        """Return the layout in which edge ``e`` (caller's order) reads source ``e`` of E sources."""
        tensors = self.tensors()
        every = torch.arange(self.num_edges + 1, device=self.device)
        # Listing the sorted edges by their caller's position is what ``rank`` does.
        tensors["source"], tensors["by_source"] = self.by_target, self.rank
        tensors["source_int32"] = self.by_target.to(torch.int32)
        tensors["source_ptr"] = every
        tensors["target_by_source"] = self.target.index_select(0, self.rank)
        return self.from_tensors(tensors, self.num_edges, self.num_targets)

    @property
    def num_edges(self) -> int:
        """Number of edges E."""
        return self.source.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the index tensors."""
        return self.source.device

    @property
    def edge_index(self) -> Tensor:
        """``(2, E)`` edges in the caller's order."""
        return torch.stack([self.source, self.target]).index_select(1, self.rank)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_sources={self.num_sources}, "
            f"num_targets={self.num_targets}, num_edges={self.num_edges})"
        )


def _pointer(index: Tensor, size: int) -> Tensor:
    """Cumulative counts ``(size + 1,)`` of the values of ``index``."""
    count = torch.zeros(size + 1, dtype=torch.int64, device=index.device)
    return count.index_add(0, index + 1, torch.ones_like(index)).cumsum(0)


def _size(name: str, size: Any) -> int:
    # A SymInt is a size that torch.export leaves open.
    is_integer = isinstance(size, (int, np.integer, torch.SymInt)) and not isinstance(size, bool)
    if not is_integer or size < 0:
        raise PriorGraphError(f"{name} must be an integer >= 0, got {size!r}.")
    if not isinstance(size, torch.SymInt) and size >= 2**31:  # the kernels read int32
        raise PriorGraphError(f"{name} must be below 2**31, got {size!r}.")
    return int(size) if isinstance(size, np.integer) else size  # a numpy.uint8 would overflow


def _checked(edge_index: Tensor, num_sources: int, num_targets: int) -> Tensor:
    if not isinstance(edge_index, Tensor):
        raise PriorGraphError(
            f"edge_index must be an integer tensor of shape (2, E), got {type(edge_index).__name__}."
        )
    if edge_index.dtype not in INTEGER_DTYPES:
        raise PriorGraphError(f"edge_index must be an integer tensor, got dtype {edge_index.dtype}.")
    if edge_index.layout != torch.strided or edge_index.is_nested:
        raise PriorGraphError(
            "edge_index must be a dense tensor of shape (2, E), got a sparse or nested one."
        )
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise PriorGraphError(
            f"edge_index must have shape (2, E), sources then targets, got {tuple(edge_index.shape)}."
        )
    edge_index = edge_index.to(torch.int64)
    # Elsewhere the range check would wait for the device.
    if edge_index.is_cpu and edge_index.numel():
        if not torch.compiler.is_compiling():
            _check_range(edge_index, num_sources, num_targets)
        elif not exporting():  # an exported program must not depend on this package
            edge_index = torch.ops.pyg_kpnn.checked_edge_index(edge_index, num_sources, num_targets)
    return edge_index


def _check_range(edge_index: Tensor, num_sources: int, num_targets: int) -> None:
    sides = (("source", num_sources), ("target", num_targets))
    for row, (side, size) in zip(edge_index, sides, strict=True):
        low, high = (int(bound) for bound in torch.aminmax(row))
        if low < 0 or high >= size:
            bad = low if low < 0 else high
            first = int((row == bad).nonzero()[0])
            raise PriorGraphError(f"Every {side} index must be in [0, {size}), got {bad} at edge {first}.")


# Reading values would break the graph of torch.compile; an operator, which it does not look into, may.
@torch.library.custom_op(
    "pyg_kpnn::checked_edge_index",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor edge_index, SymInt num_sources, SymInt num_targets) -> Tensor",
)
def _checked_edge_index(edge_index: Tensor, num_sources: int, num_targets: int) -> Tensor:
    if edge_index.numel():
        _check_range(edge_index, num_sources, num_targets)
    return edge_index.clone()  # an operator may not return its argument, and is left out if nobody uses it


@_checked_edge_index.register_fake
def _(edge_index: Tensor, num_sources: int, num_targets: int) -> Tensor:
    return torch.empty_like(edge_index)
