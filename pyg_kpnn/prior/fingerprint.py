"""The canonical payload of a graph, its digest, and the way back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import listing, show

if TYPE_CHECKING:
    from pyg_kpnn.prior.graph import PriorGraph

VERSION = 1


def digest(payload: Mapping[str, Any]) -> str:
    """SHA-256 hex of the payload as JSON: sorted keys, no blanks, UTF-8 without escapes."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def without_defaults(
    sign: np.ndarray | None, weight: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Turn all-unknown signs and all-1 weights into None: one graph has one form and one digest."""
    return (
        None if sign is None or not sign.any() else sign,
        None if weight is None or bool((weight == 1).all()) else weight,
    )


def to_payload(graph: PriorGraph) -> dict[str, Any]:
    """The dict behind :meth:`PriorGraph.to_dict`; defaults are left out so that old digests stay."""
    source, target = graph._edge_names
    payload: dict[str, Any] = {
        "kpnn2_spec": VERSION,
        "layout": "bipartite" if graph.is_bipartite else "adjacency",
        "edges": [list(pair) for pair in zip(source.tolist(), target.tolist(), strict=True)],
    }
    if graph.widths:
        payload["widths"] = graph.widths
    if graph._sign is not None:
        payload["signs"] = graph._sign.tolist()
    if graph._weight is not None:
        payload["weights"] = graph._weight.tolist()
    ends = (graph._source, graph._target)
    if graph.is_bipartite:
        for key, names, used in zip(
            ("sources", "targets"), (graph.source_nodes, graph.target_nodes), ends, strict=True
        ):
            alone = _unused(names, used)
            if alone:
                payload[key] = alone
    else:
        alone = _unused(graph.nodes, np.concatenate(ends))
        if alone:
            payload["nodes"] = alone
    return payload


def _unused(names: Sequence[str], used: np.ndarray) -> list[str]:
    free = np.ones(len(names), dtype=bool)
    free[used] = False
    return [names[i] for i in np.flatnonzero(free).tolist()]


def _bad(rule: str, got: object, hint: str = "") -> PriorGraphError:
    return PriorGraphError(f"{rule} Got {show(got)} ({type(got).__name__}).{' ' if hint else ''}{hint}")


def _listed(payload: Mapping[str, Any], key: str) -> list[Any]:
    value = payload[key]
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _bad(f"{key!r} of the payload must be a list.", value)
    return list(value)


def _names(payload: Mapping[str, Any], key: str) -> list[str]:
    names = _listed(payload, key) if key in payload else []
    for name in names:
        if not isinstance(name, str):
            raise _bad(f"{key!r} of the payload must hold names (str).", name)
    return names


def from_payload(payload: Any) -> PriorGraph:
    """Validate a payload and rebuild the graph it describes."""
    from pyg_kpnn.prior.build import bipartite_graph, graph_from_pairs

    if not isinstance(payload, Mapping):
        raise _bad("A payload must be a mapping as returned by to_dict().", payload)
    if "kpnn2_spec" not in payload or "edges" not in payload or "layout" not in payload:
        raise PriorGraphError(
            "A payload must have the keys 'kpnn2_spec', 'layout' and 'edges'. Got the keys "
            f"[{listing(map(show, payload), len(payload))}]. Pass what to_dict() returned."
        )
    version, layout = payload["kpnn2_spec"], payload["layout"]
    if type(version) is not int or version != VERSION:
        raise _bad(f"'kpnn2_spec' of the payload must be {VERSION}.", version)
    if not isinstance(layout, str) or layout not in ("adjacency", "bipartite"):
        raise _bad(
            "'layout' of the payload must be 'adjacency' or 'bipartite'.",
            layout,
            "A layered graph has no counterpart here: build it from its edgelist.",
        )
    pairs: list[tuple[str, str]] = []
    for row, pair in enumerate(_listed(payload, "edges")):
        if (
            not isinstance(pair, (list, tuple))
            or len(pair) != 2
            or not all(isinstance(name, str) for name in pair)
        ):
            raise _bad(f"Every edge of the payload must be two names (str); edge {row} is not.", pair)
        pairs.append((pair[0], pair[1]))

    extra: dict[str, Any] = {"widths": payload.get("widths")}
    if "signs" in payload:
        extra["sign"] = _listed(payload, "signs")
        for row, sign in enumerate(extra["sign"]):
            if isinstance(sign, bool) or not isinstance(sign, int) or sign not in (-1, 0, 1):
                raise _bad(f"'signs' of the payload must be -1, 0 or 1; entry {row} is not.", sign)
    if "weights" in payload:
        extra["weight"] = _listed(payload, "weights")
        for row, weight in enumerate(extra["weight"]):
            if isinstance(weight, bool) or not isinstance(weight, Real):
                raise _bad(f"'weights' of the payload must be numbers; entry {row} is not.", weight)
    if layout == "adjacency":
        return graph_from_pairs(pairs, nodes=_names(payload, "nodes"), **extra)
    sources = {s for s, _ in pairs}.union(_names(payload, "sources"))
    targets = {t for _, t in pairs}.union(_names(payload, "targets"))
    return bipartite_graph(pairs, sources=sorted(sources), targets=sorted(targets), **extra)
