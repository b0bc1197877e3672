"""The files a dataset keeps below its ``root``, written whole and read as plain data.

Such a folder travels, and a pickle in it could run anything. So everything is read with
``weights_only=True``; torch_geometric's own reading falls back to full pickles.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data.data import BaseData

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.output import whole

__all__ = ["describe_transform", "read_cells", "read_plain", "write_plain"]

_ADVICE = "Delete that folder, or pass force_reload=True."


def read_plain(path: str | os.PathLike[str]) -> Any:
    """Tensors, numbers, text and PyG data that :func:`write_plain` wrote.

    Raises
    ------
    PriorGraphError
        For a file that is cut short or damaged, and for one that only a pickle could load.
    """
    try:
        _check_sums(path)
        return torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # what a damaged file raises depends on where the damage is
        unknown = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        what = f"an object of {unknown[1]}" if unknown else f"something else ({type(error).__name__})"
        hint = " A class of yours is let in by torch.serialization.add_safe_globals." if unknown else ""
        raise PriorGraphError(
            f"Files below root must hold plain data, whole. Got {what} in {path}. {_ADVICE}{hint}"
        ) from error


def _check_sums(path: str | os.PathLike[str]) -> None:
    """Compare contents with the checksums beside them, at which ``torch.load`` does not look."""
    with zipfile.ZipFile(path) as archive:
        if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
            raise zipfile.BadZipFile("torch.save does not compress")
        damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} differs")


def write_plain(value: Any, path: str | os.PathLike[str]) -> None:
    """Write a file all at once, so that an interruption leaves none or the old one."""
    with whole(Path(path)) as file:
        torch.save(value, file)


def describe_transform(transform: Any) -> str:
    """A transform in words, without addresses in memory, as torch_geometric notes it."""
    return re.sub(r"(<.*?)\s.*(>)", r"\1\2", str(transform))


def read_cells(
    data: str, table: str, genes: int, more: Collection[str] = ()
) -> tuple[BaseData, Any, dict[str, Any]]:
    """Graphs, their slices and the table of a dataset of cells, checked against each other.

    Parameters
    ----------
    data, table : str
        The two files.
    genes : int
        Columns that ``"expression"`` must have.
    more : collection of str
        Further tensors that the table must hold, with a row for each cell.

    Raises
    ------
    PriorGraphError
        As :func:`read_plain`, and for contents that are no cells of a network of that many genes.
    """
    stored, cells = read_plain(data), read_plain(table)
    if not (isinstance(cells, dict) and _is_table(cells, genes, more)):
        raise PriorGraphError(
            f"{table} must hold a table of cells with {genes} genes. It does not. {_ADVICE}"
        )
    labels = cells["labels"]
    try:
        content, slices, kind = stored
        graphs = kind.from_dict(content)
        offsets = slices
        while isinstance(offsets, dict):  # one level for Data, two for HeteroData
            offsets = next(iter(offsets.values()))
        count = 1 if offsets is None else len(offsets) - 1
        if not isinstance(graphs, BaseData) or count != len(labels):
            raise ValueError(f"{count} graphs of class {kind.__name__}")
    except Exception as error:
        raise PriorGraphError(
            f"{data} must hold one graph for each of the {len(labels)} cells. Got something else ({error}). "
            + _ADVICE
        ) from error
    return graphs, slices, cells


def _is_table(cells: dict[str, Any], genes: int, more: Collection[str]) -> bool:
    expression, labels = cells.get("expression"), cells.get("labels")
    classes, names = cells.get("class_names"), cells.get("names")
    return (
        isinstance(expression, Tensor)
        and expression.dtype == torch.float32
        and expression.dim() == 2
        and expression.shape[1] == genes
        and isinstance(labels, Tensor)
        and labels.dtype == torch.int64
        and labels.shape == expression.shape[:1]
        and isinstance(classes, list)
        and isinstance(names, list)
        and all(isinstance(name, str) for name in (*classes, *names))
        and len(names) == len(labels)
        and bool(((labels >= 0) & (labels < len(classes))).all())
        and all(isinstance(cells.get(key), Tensor) for key in more)
        and all(cells[key].shape[:1] == labels.shape for key in more)
    )
