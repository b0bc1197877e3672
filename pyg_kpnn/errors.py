"""The one error type of the package."""

from __future__ import annotations

__all__ = ["PriorGraphError"]


class PriorGraphError(ValueError):
    """A prior graph, a layer argument or a checkpoint broke a stated rule.

    The message names the rule, what came instead, and the node or edge concerned where
    there is one. It is a :class:`ValueError`, so code that already catches ``ValueError``
    keeps working.
    """
