"""Find and read the tables of the curated networks: edges, rules and named states."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from pyg_kpnn.datasets.rules import BooleanNetwork
from pyg_kpnn.errors import PriorGraphError

__all__ = ["CuratedTables", "curated_names", "read_tables", "table_path"]

_FILES = ("edges.csv", "rules.csv", "states.csv")
# a built package carries the tables inside itself, a checkout keeps them at the top of the repository
_PLACES = (Path(__file__).parents[1] / "tables" / "datasets", Path(__file__).parents[2] / "datasets")


class CuratedTables(NamedTuple):
    """The tables of one curated network.

    Attributes
    ----------
    network : BooleanNetwork
        The published rules, genes in alphabetical order.
    start : tuple of str or None
        Genes that are on at the start, or None if cells start from random states.
    attractors : dict of str to tuple of str
        Name the literature gives an attractor, to the genes that are on in it, in class order.
    digest_text : str
        All tables as one text.
    """

    network: BooleanNetwork
    start: tuple[str, ...] | None
    attractors: dict[str, tuple[str, ...]]
    digest_text: str


def curated_names() -> tuple[str, ...]:
    """Names of the curated networks, alphabetically.

    Examples
    --------
    >>> curated_names()
    ('gsd', 'hsc', 'mcad', 'vsc')
    """
    found = {path.parent.name for place in _PLACES for path in place.glob("*/rules.csv")}
    if not found:
        raise PriorGraphError(
            "the tables of the curated networks must lie in "
            + " or ".join(f"{place}/<name>/" for place in _PLACES)
            + "; found none: the installation is incomplete"
        )
    return tuple(sorted(found))


def table_path(name: str, file: str) -> Path:
    """Where one table of one curated network lies.

    Parameters
    ----------
    name : str
        A name of :func:`curated_names`.
    file : str
        ``"edges.csv"``, ``"rules.csv"`` or ``"states.csv"``.

    Raises
    ------
    PriorGraphError
        For a name that is not curated or a table that is in neither place.
    """
    if not isinstance(name, str) or name not in curated_names():
        raise PriorGraphError(
            f"name must be one of the curated networks {', '.join(curated_names())}; got {name!r}"
        )
    places = [place / name / file for place in _PLACES]
    for path in places:
        if path.is_file():
            return path
    raise PriorGraphError(
        f"network {name!r} must have a table {file!r}; it is neither {places[0]} nor {places[1]}"
    )


def read_tables(name: str) -> CuratedTables:
    """Read and check the rules and named states of one curated network.

    Raises
    ------
    PriorGraphError
        For an unknown name or table, a gene with two rules, a rule that is not Boolean, or a named
        attractor that is not a fixed point of the rules.

    Examples
    --------
    >>> tables = read_tables("mcad")
    >>> tables.attractors
    {'anterior': ('Fgf8', 'Pax6', 'Sp8'), 'posterior': ('Coup', 'Emx2')}
    """
    texts = {file: table_path(name, file).read_text(encoding="utf-8") for file in _FILES}
    rules: dict[str, str] = {}
    for row in csv.DictReader(texts["rules.csv"].splitlines()):
        if row["gene"] in rules:
            raise PriorGraphError(f"a gene has one rule; {row['gene']!r} has two in network {name!r}")
        rules[row["gene"]] = row["rule"]
    network = BooleanNetwork(rules)
    start: tuple[str, ...] | None = None
    attractors: dict[str, tuple[str, ...]] = {}
    for row in csv.DictReader(texts["states.csv"].splitlines()):
        on = tuple(row["on"].split())
        state = network.state(on)
        if row["role"] == "start":
            start = on
        elif (network.update(state) == state).all():
            attractors[row["name"]] = on
        else:
            raise PriorGraphError(
                f"a named attractor must be a fixed point of the rules; {row['name']!r} of network "
                f"{name!r} is not"
            )
    return CuratedTables(network, start, attractors, "\n".join(texts.values()))
