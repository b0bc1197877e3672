"""Curated, signed gene networks of the literature and cells simulated from them.

The networks are published; **the cells are simulated**, not measured.
"""

from __future__ import annotations

from pyg_kpnn.datasets.curated import CuratedGRN, curated_graph, curated_names

__all__ = ["CuratedGRN", "curated_graph", "curated_names"]
