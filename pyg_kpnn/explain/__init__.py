"""What a trained model makes of the nodes of its graph, as tables by name."""

from .attributions import map_node_attributions, node_attributions
from .differential import differential_edges
from .edge_masks import edge_mask_table, explain_edges, node_mask_table
from .export import export_edges, to_networkx
from .figures import plot_edge_heatmap, plot_subgraph, plot_training
from .interactions import interactions
from .knockouts import knockout
from .network_view import write_network_html
from .weight_table import edge_weights

__all__ = [
    "differential_edges",
    "edge_mask_table",
    "edge_weights",
    "explain_edges",
    "export_edges",
    "interactions",
    "knockout",
    "map_node_attributions",
    "node_attributions",
    "node_mask_table",
    "plot_edge_heatmap",
    "plot_subgraph",
    "plot_training",
    "to_networkx",
    "write_network_html",
]
