"""What commands share: priors and tables from files, and folders that are there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..datasets import AlignedDataset, from_anndata, from_frame, read_measurements
from ..errors import PriorGraphError
from ..prior import DEFAULT_SIGNS, PriorGraph, ReadReport, match, read_prior
from ..prior.names import is_frame, listing
from . import show

__all__ = ["features_of", "finished_folder", "load_prior", "read_samples", "write_json"]


def load_prior(
    path: Path,
    source: str | None,
    target: str | None,
    sign: str | None,
    weight: str | None,
    activating: str | None,
    inhibiting: str | None,
    drop_self_loops: bool,
    keep_first: bool,
    undirected: bool = False,
) -> tuple[PriorGraph, ReadReport]:
    """The graph of a file and the report of its reader, to which is left what was not asked for."""
    if not path.is_file():
        raise PriorGraphError(f"A prior must be a file. Got {str(path)!r}, which is not there.")
    options: dict[str, Any] = {"source": source, "target": target, "sign": sign, "weight": weight}
    options = {name: value for name, value in options.items() if value is not None}
    words = dict.fromkeys(_words(activating), 1) | dict.fromkeys(_words(inhibiting), -1)
    if words:
        options["sign_map"] = {**DEFAULT_SIGNS, **words}
    if drop_self_loops:
        options["drop_self_loops"] = True
    if keep_first:
        options |= {"on_duplicate": "first", "on_conflict": "unknown"}
    graph, report = read_prior(path, return_report=True, **options)
    return graph.to_undirected() if undirected else graph, report


def _words(text: str | None) -> list[str]:
    return [word for part in (text or "").split(",") if (word := part.strip())]


def read_samples(
    path: Path,
    graph: PriorGraph,
    label: str | None,
    *,
    genes_in_rows: bool,
    missing: str,
    missing_labels: str = "error",
    rename: str | None = None,
    sep: str | None = None,
) -> AlignedDataset:
    """Samples of a table in the order of the graph's nodes; what is lost on the way is told on stderr."""
    table = read_measurements(path, sep=sep)
    if is_frame(table):
        table = _with_sample_names(table, graph, label, genes_in_rows)
    if rename is not None:
        graph = _renamed(graph, rename, _features(table, genes_in_rows))
    options: dict[str, Any] = {
        "missing": missing,
        "missing_labels": missing_labels,
        "isolated": "drop" if missing == "restrict" else "keep",
    }
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UserWarning)
        if is_frame(table):
            samples = from_frame(table, graph, label, genes_in_rows=genes_in_rows, **options)
        else:
            samples = from_anndata(table, graph, obs_key=label, **options)
    for doubt in doubts:
        show.note(f"note: {show.in_shell_words(str(doubt.message))}")
    if samples.report.missing:
        show.note(str(samples.report))
    if samples.dropped:
        show.note(f"samples dropped   {len(samples.dropped)}, without a label: {listing(samples.dropped)}")
    return samples


def _with_sample_names(table: Any, graph: PriorGraph, label: str | None, genes_in_rows: bool) -> Any:
    """A first column of different texts that is nothing else names the rows, whatever it is called."""
    import pandas as pd

    if not isinstance(table.index, pd.RangeIndex) or table.shape[1] < 2:
        return table
    first = table.iloc[:, 0]
    if first.name == label or (first.name in graph.nodes and not genes_in_rows):
        return table
    names = first.is_unique and first.map(lambda cell: isinstance(cell, str)).all()
    return table.set_index(first.name) if names else table


def _features(table: Any, genes_in_rows: bool) -> Any:
    if not is_frame(table):
        return table.var_names
    return list(table.index if genes_in_rows else table.columns)


def _renamed(graph: PriorGraph, text: str, features: Any) -> PriorGraph:
    if text == "auto":
        return graph.rename(match(graph, features).renames())
    pairs = [part.partition("=") for part in text.split(",")]
    wrong = next((part for part in pairs if not all(word.strip() for word in part)), None)
    if wrong is not None:
        raise PriorGraphError(f"--rename must be OLD=NEW, with commas between. Got {''.join(wrong)!r}.")
    return graph.rename({old.strip(): new.strip() for old, _, new in pairs})


def features_of(path: Path, genes_in_rows: bool, sep: str | None = None) -> Any:
    """Names that a table measures."""
    return _features(read_measurements(path, sep=sep), genes_in_rows)


@contextmanager
def finished_folder(out: Path, force: bool) -> Iterator[Path]:
    """A folder to write into that takes the name ``out`` when everything is in it, and is gone otherwise."""
    if out.exists() and not force:
        raise PriorGraphError(
            f"The folder for results must be new. Got {str(out)!r}; pass --force to replace it."
        )
    if out.exists() and not out.is_dir():
        raise PriorGraphError(f"Results go into a folder. Got {str(out)!r}, which is a file.")
    if out.exists() and not (out / "run.json").is_file() and any(out.iterdir()):
        raise PriorGraphError(
            f"--force replaces folders of results alone. Got {str(out)!r}, which holds other files."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield part
        os.chmod(part, 0o777 & ~_umask())
        if out.exists():
            old = part.with_suffix(".old")
            os.replace(out, old)
            os.replace(part, out)
            shutil.rmtree(old)
        else:
            os.replace(part, out)
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(part, ignore_errors=True)


def _stop(number: int, _: Any) -> None:
    raise SystemExit(128 + number)  # so that folders are tidied up as for Ctrl-C


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(value: Any, path: Path) -> None:
    """JSON that people can read."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
