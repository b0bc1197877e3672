"""Find and read the tables of the curated networks: edges, rules and named states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyg_kpnn.datasets.rules import BooleanNetwork
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.text import Dialect, read_records

__all__ = ["CuratedTables", "curated_names", "read_tables", "table_path"]

_COLUMNS = {
    "edges.csv": ["source", "target", "sign"],
    "rules.csv": ["gene", "rule"],
    "states.csv": ["role", "name", "on"],
}
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
    # by name only, so that no path leads out of the folders of the tables
    places = [place / name / Path(file).name for place in _PLACES]
    for path in places:
        if path.is_file():
            return path
    raise PriorGraphError(
        f"network {name!r} must have a table {file!r}; it is neither " + " nor ".join(map(str, places))
    )


def read_tables(name: str) -> CuratedTables:
    """Read and check the rules, named states and edges of one curated network.

    Raises
    ------
    PriorGraphError
        For an unknown name or table, a file that is no such table, a gene with two rules, a rule that is
        not Boolean, a state named twice, a named attractor that is not a fixed point of the rules, or edges
        that are not those the rules imply.

    Examples
    --------
    >>> tables = read_tables("mcad")
    >>> tables.attractors
    {'anterior': ('Fgf8', 'Pax6', 'Sp8'), 'posterior': ('Coup', 'Emx2')}
    """
    paths = {file: table_path(name, file) for file in _COLUMNS}
    rules: dict[str, str] = {}
    for gene, rule in _rows(paths["rules.csv"]):
        if gene in rules:
            raise PriorGraphError(f"a gene has one rule; {gene!r} has two in network {name!r}")
        rules[gene] = rule
    network = BooleanNetwork(rules)
    start: tuple[str, ...] | None = None
    attractors: dict[str, tuple[str, ...]] = {}
    for role, title, genes in _rows(paths["states.csv"]):
        on = tuple(genes.split())
        state = network.state(on)
        if role not in ("start", "attractor"):
            raise PriorGraphError(f"a state is a 'start' or an 'attractor'; network {name!r} has {role!r}")
        if title in attractors or (role == "start" and start is not None):
            raise PriorGraphError(
                f"network {name!r} must have one start at most and attractors of different names; "
                f"{title!r} is one too many"
            )
        if role == "start":
            start = on
        elif (network.update(state) == state).all():
            attractors[title] = on
        else:
            raise PriorGraphError(
                f"a named attractor must be a fixed point of the rules; {title!r} of network {name!r} is not"
            )
    listed = [(source, target, sign) for source, target, sign in _rows(paths["edges.csv"])]
    implied = [(source, target, str(sign)) for source, target, sign in network.edges()]
    if sorted(listed) != implied:
        odd = sorted(set(listed) ^ set(implied)) or [edge for edge in listed if listed.count(edge) > 1]
        raise PriorGraphError(
            f"the edges of network {name!r} must be those its rules imply, each once; they differ in {odd[0]}"
        )
    texts = (path.read_text(encoding="utf-8") for path in paths.values())
    return CuratedTables(network, start, attractors, "\n".join(texts))


def _rows(path: Path) -> Iterator[list[str]]:
    """Rows of one table, all cells there, the header checked and left out."""
    columns = _COLUMNS[path.name]
    with path.open("rb") as stream:
        records = read_records(stream, f"{path.parent.name}/{path.name}", Dialect(","))
        _, header = next(records, (0, []))
        if header != columns:
            raise PriorGraphError(
                f"table {path} must have the columns {', '.join(columns)}; got {', '.join(header) or 'none'}"
            )
        for line, cells in records:
            if len(cells) != len(columns):
                raise PriorGraphError(
                    f"a row of table {path} must have {len(columns)} cells; line {line} has {len(cells)}"
                )
            yield cells
