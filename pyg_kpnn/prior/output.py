"""What all writers share: a file is there whole or not at all, and what would not come back is refused."""

from __future__ import annotations

import gzip
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.align import need_graph
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import brief, listing, name_list, show

__all__ = ["check_graph", "isolated", "no_room", "refuse_names", "text_file", "unquoted", "whole"]

_PARTS = ("isolated", "signs", "weights", "widths")


def check_graph(graph: Any, path: Path, leave_out: Iterable[str], lacks: tuple[str, ...]) -> set[str]:
    """Refuse what is no graph, and what a format has no room for; returns what may be left out."""
    need_graph(graph)
    allowed = set(name_list(leave_out, "leave_out", of="words"))
    if not allowed <= set(_PARTS):
        raise PriorGraphError(
            f"'leave_out' must hold words among {', '.join(map(repr, _PARTS))}. Got "
            f"{listing(map(show, sorted(map(str, allowed - set(_PARTS)))))}."
        )
    there: dict[str, Callable[[], list[str]]] = {
        "isolated": lambda: isolated(graph),
        "signs": lambda: [] if graph._sign is None else ["signs"],
        "weights": lambda: [] if graph._weight is None else ["weights"],
        "widths": lambda: list(graph.widths),
    }
    for part in lacks:
        if part not in allowed and (found := there[part]()):
            of_names = part in ("isolated", "widths")
            what = {"isolated": "nodes without an edge", "widths": "nodes with a width"}.get(part, part)
            raise no_room(path, what, listing(map(show, found), len(found)) if of_names else part, part)
    return allowed


def no_room(path: Path, what: str, got: str, part: str) -> PriorGraphError:
    """The error for what a format cannot hold, and how to lose it."""
    return PriorGraphError(
        f"{path.name} has no room for {what}. Got {got}. Write GraphML or Cytoscape JSON, or pass "
        f"leave_out=[{part!r}] to lose them."
    )


def isolated(graph: PriorGraph) -> list[str]:
    """Names of the nodes without an edge."""
    offset = len(graph.source_nodes) if graph.is_bipartite else 0
    alone = np.ones(graph.num_nodes, dtype=bool)
    alone[graph._source] = alone[graph._target + offset] = False
    return list(graph._named(alone))


def unquoted(name: str) -> bool:
    """Whether a format without quotes would give back another name."""
    return name != name.strip() or name.startswith("\ufeff") or any(c in name for c in "\t\r\n\0")


def refuse_names(names: Iterable[str], bad: Callable[[str], Any], why: str) -> None:
    """Refuse the names for which ``bad`` is true."""
    found = [show(brief(name)) for name in dict.fromkeys(names) if bad(name)]
    if found:
        raise PriorGraphError(f"Every name must come back as it is. Got {listing(found, len(found))}: {why}")


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place only when all of it is written."""
    place = Path(os.path.realpath(path))  # where a link leads, so that the link stays
    part = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def text_file(path: Path) -> Iterator[io.TextIOWrapper]:
    """The same for text, packed where the suffix is ``.gz``."""
    with whole(path) as file:
        if path.suffix.lower() != ".gz":
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            yield text
            text.flush()
            text.detach()
            return
        # without a time in it the same graph gives the same bytes
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            text = io.TextIOWrapper(packed, encoding="utf-8", newline="")  # type: ignore[arg-type,unused-ignore]
            yield text
            text.flush()
            text.detach()
