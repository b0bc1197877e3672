"""Which edges a picture shows, and how their names are written on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import PriorGraphError
from ..nn.checks import positive_int
from ..prior.names import name_list, name_of, unknown_names
from .picture_edges import Edges

__all__ = ["MOST_NODES", "labels", "select", "shortened", "strongest"]

#: Beyond this a picture says nothing, and its layout takes minutes.
MOST_NODES = 2000


def strongest(edges: Edges, top_k: Any, steps: np.ndarray | None = None) -> Edges:
    """The ``top_k`` edges of the largest absolute weight, strongest first; all of them for None.

    With ``steps`` an edge of fewer steps comes before any of more.
    """
    weight = np.ones(len(edges.source)) if edges.weight is None else np.abs(edges.weight)
    order = np.lexsort((edges.target, edges.source, -weight))
    if steps is not None:
        order = order[np.argsort(steps[order], kind="stable")]
    return edges.take(order if top_k is None else order[: positive_int("top_k", top_k)])


def select(edges: Edges, *, nodes: Any = None, top_k: Any = None, around: Any = None, hops: Any = 1) -> Edges:
    """What to draw: edges between ``nodes``, or up to ``hops`` steps from ``around``; the strongest.

    Nodes asked for stay although no edge of theirs does; others go with their last edge.
    """
    if nodes is not None and around is not None:
        raise PriorGraphError("'nodes' and 'around' each choose what to draw. Got both. Leave one out.")
    asked = np.zeros(len(edges.names), dtype=bool)
    every, steps = edges, None
    if nodes is not None:
        asked = _marked(edges, name_list(nodes, "nodes"), "nodes")
        edges = edges.take(asked[edges.source] & asked[edges.target])
    elif around is not None:
        one = isinstance(around, (str, int)) and not isinstance(around, bool)
        asked = _marked(edges, [around] if one else name_list(around, "around"), "around")
        away = np.where(asked, 0, len(asked))  # steps from the nearest of them
        for step in range(1, positive_int("hops", hops)):
            near = away < step
            met = np.concatenate([edges.target[near[edges.source]], edges.source[near[edges.target]]])
            away[met] = np.minimum(away[met], step)
        steps = np.minimum(away[edges.source], away[edges.target])
        kept = steps < len(asked)
        edges, steps = edges.take(kept), steps[kept]
    edges = strongest(edges, top_k, steps)
    drawn = asked.copy()
    if nodes is None and around is None and len(edges.source) == len(every.source):
        drawn[:] = True
    drawn[edges.source] = drawn[edges.target] = True
    if not drawn.any():
        raise PriorGraphError("There must be an edge or a node to draw. Got none.")
    if drawn.sum() > MOST_NODES:
        raise PriorGraphError(
            f"At most {MOST_NODES:,} nodes can be drawn. Got {int(drawn.sum()):,}. "
            "Choose fewer with top_k=, nodes= or around=."
        )
    number = np.cumsum(drawn) - 1
    return replace(
        edges,
        names=[name for name, there in zip(edges.names, drawn, strict=True) if there],
        source=number[edges.source],
        target=number[edges.target],
        split=None if edges.split is None else int(drawn[: edges.split].sum()),
    )


def _marked(edges: Edges, wanted: list[Any], what: str) -> np.ndarray:
    names = [name_of(value) for value in wanted]
    unknown = sorted(set(names) - set(edges.names))
    if unknown or not names:
        found = unknown_names(unknown, edges.names) or "none"
        raise PriorGraphError(f"'{what}' must name nodes of the picture. Got {found}.")
    return np.isin(np.array(edges.names, dtype=object), np.array(names, dtype=object))


def shortened(name: str, limit: int = 24) -> str:
    """A name with its middle left out, on one line."""
    name = " ".join(name.split())
    if len(name) <= limit:
        return name
    head = limit // 2
    return f"{name[:head]}…{name[len(name) - (limit - head - 1) :]}"


def labels(names: list[str], limit: int = 24) -> list[str]:
    """Shortened names, but in full where two of them would look the same."""
    short = [shortened(name, limit) for name in names]
    counts: dict[str, set[str]] = {}
    for text, name in zip(short, names, strict=True):
        counts.setdefault(text, set()).add(name)
    return [
        text if len(counts[text]) == 1 else " ".join(name.split())
        for text, name in zip(short, names, strict=True)
    ]
