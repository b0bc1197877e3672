"""Layers: attention on the edges of a graph as PyTorch and PyG modules."""

from .attention_jet_mlp import AttentionJetMLP, make_attention_jet_mlp
from .edge_attention import EdgeAttention
from .fixed_edges import FixedEdgeModel
from .packed_attention import PackedMultiheadAttention
from .prior_attention_conv import PriorAttentionConv
from .prior_transformer import PriorTransformer, PriorTransformerLayer

__all__ = [
    "AttentionJetMLP",
    "EdgeAttention",
    "FixedEdgeModel",
    "PackedMultiheadAttention",
    "PriorAttentionConv",
    "PriorTransformer",
    "PriorTransformerLayer",
    "make_attention_jet_mlp",
]
