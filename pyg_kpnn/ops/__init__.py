"""Attention along edges: pure functions on tensors, no names, no modules."""

from .attention import BACKENDS, BackendStatus, backends, edge_attention
from .layout import EdgeLayout

__all__ = ["BACKENDS", "BackendStatus", "EdgeLayout", "backends", "edge_attention"]
