"""Attention on a prior graph of named nodes, for PyTorch Geometric.

A prior graph decides who may attend to whom; the data decides how much. Everything public
is importable from here. Names resolve on first use, so ``import pyg_kpnn`` itself loads
neither pandas, networkx, torch_geometric nor torch_scatter.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# public name -> module that defines it
_LAZY = {
    "PriorGraphError": "pyg_kpnn.errors",
    "AdjacencySpec": "pyg_kpnn.prior",
    "PriorGraph": "pyg_kpnn.prior",
    "align_inputs": "pyg_kpnn.prior",
    "audit": "pyg_kpnn.auditing",
    "match": "pyg_kpnn.prior",
    "parse_adjacency": "pyg_kpnn.prior",
    "read_edgelist": "pyg_kpnn.prior",
    "read_gml": "pyg_kpnn.prior",
    "read_gmt": "pyg_kpnn.prior",
    "read_graphml": "pyg_kpnn.prior",
    "read_prior": "pyg_kpnn.prior",
    "read_sif": "pyg_kpnn.prior",
    "backends": "pyg_kpnn.ops",
    "load_checkpoint": "pyg_kpnn.checkpoint",
    "AttentionJetMLP": "pyg_kpnn.nn",
    "EdgeAttention": "pyg_kpnn.nn",
    "PackedMultiheadAttention": "pyg_kpnn.nn",
    "PriorAttentionConv": "pyg_kpnn.nn",
    "PriorTransformer": "pyg_kpnn.nn",
    "PriorTransformerLayer": "pyg_kpnn.nn",
    "make_attention_jet_mlp": "pyg_kpnn.nn",
}
_MODULES = ("auditing", "datasets", "explain", "hub", "jets", "nn", "ops", "prior", "train")

# Without the modules: ``from pyg_kpnn import *`` must not replace the reader's ``nn``.
__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_MODULES))
