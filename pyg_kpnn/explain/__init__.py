"""What a trained model makes of the nodes of its graph, as tables by name."""

from .interactions import interactions

__all__ = ["interactions"]
