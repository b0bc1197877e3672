"""What a PriorDataModule is given, as batches of values, targets and masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..datasets.samples import NamedSamples
from ..errors import PriorGraphError
from ..prior import PriorGraph, align_inputs
from ..prior.align import need_graph
from ..prior.names import is_frame, is_missing, name_of, near_names, show

__all__ = ["Samples", "samples_of"]


class Samples(Protocol):
    """Batches by position: values, targets or None, and a mask of what is not measured; all targets."""

    units: int
    masked: bool

    def __len__(self) -> int: ...

    def batch(self, places: Tensor) -> tuple[Tensor, Tensor | None, Tensor]: ...

    def labels(self) -> Tensor | None: ...


class InMemory:
    """Samples that lie in tensors."""

    def __init__(self, x: Tensor, y: Tensor | None, mask: Tensor | None) -> None:
        hidden = x.isnan()
        self.x, self.y = x, y
        self.mask = hidden if mask is None else hidden | mask
        self.units = x.shape[1]
        self.masked = mask is not None or bool(hidden.any())

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, places: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Rows of the tensors."""
        return self.x[places], None if self.y is None else self.y[places], self.mask[places]

    def labels(self) -> Tensor | None:
        """All targets."""
        return self.y


class FromDataset:
    """Samples that a dataset gives one by one, or many at once through ``__getitems__``."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        first = self._item(dataset[0], 0)
        self.units = len(first[0])
        self.parts = len(first)
        # Whether NaN stands in for a missing value is known only when it comes, so masks always go along.
        self.masked = True

    def __len__(self) -> int:
        return len(self.dataset)

    def _item(self, item: Any, place: int) -> tuple[Tensor, ...]:
        parts = (item,) if isinstance(item, Tensor) else item
        if not isinstance(parts, (tuple, list)) or not 1 <= len(parts) <= 3:
            got = f"{len(parts)} parts" if isinstance(parts, (tuple, list)) else type(item).__name__
            raise PriorGraphError(
                f"A sample must be x, (x, y) or (x, y, key_padding_mask). Got {got} at {place}."
            )
        parts = tuple(torch.as_tensor(part) for part in parts)
        x = parts[0]
        if x.dim() != 1 or not x.is_floating_point():
            raise PriorGraphError(
                f"x of a sample must be a row of floating-point values. Got "
                f"{tuple(x.shape)} {x.dtype} at {place}."
            )
        return parts

    def batch(self, places: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Samples stacked."""
        numbers = places.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        items = many(numbers) if many is not None else [self.dataset[number] for number in numbers]
        rows = [self._item(item, number) for item, number in zip(items, numbers, strict=True)]
        for row, number in zip(rows, numbers, strict=True):
            if len(row) != self.parts or len(row[0]) != self.units:
                raise PriorGraphError(
                    f"Every sample must be like the first, {self.parts} parts and {self.units} values. Got "
                    f"{len(row)} and {len(row[0])} at {number}."
                )
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        x, mask = columns[0], columns[0].isnan()
        if self.parts == 3:
            mask = mask | columns[2].bool()
        return x, columns[1] if self.parts > 1 else None, mask

    def labels(self, step: int = 1024) -> Tensor | None:
        """All targets: the dataset's ``labels`` where it has them, else by going through it once."""
        if self.parts == 1:
            return None
        told = getattr(self.dataset, "labels", None)
        if isinstance(told, Tensor) and told.dim() and len(told) == len(self):
            return told
        blocks = [self.batch(places)[1] for places in torch.arange(len(self)).split(step)]
        return torch.cat([block for block in blocks if block is not None])


def samples_of(
    data: Any, labels: Any, graph: PriorGraph | None, mask: Any
) -> tuple[Samples, tuple[str, ...]]:
    """Samples and the names of their classes.

    Raises
    ------
    PriorGraphError
        For data, labels, a graph or a mask of another kind, or of sizes that do not go together.
    """
    if graph is not None:
        need_graph(graph)
    samples: Samples
    names: tuple[str, ...] = ()
    if isinstance(data, Tensor) or is_frame(data):
        if is_frame(data):
            data, labels = _of_frame(data, labels, graph)
        if data.dim() != 2 or not data.is_floating_point() or not data.numel():
            raise PriorGraphError(
                f"'data' must be (samples, units) in floating point. Got {tuple(data.shape)} {data.dtype}."
            )
        targets, names = _targets(labels, data)
        if mask is not None and (
            not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != data.shape
        ):
            what = f"{tuple(mask.shape)} {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise PriorGraphError(f"'mask' must be boolean of shape {tuple(data.shape)}. Got {what}.")
        samples = InMemory(data, targets, mask)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and isinstance(data, Dataset):
        if labels is not None or mask is not None:
            raise PriorGraphError("A dataset brings its labels and masks. Got 'labels' or 'mask' beside it.")
        if isinstance(data, IterableDataset) or not len(data):  # type: ignore[arg-type]
            raise PriorGraphError("A dataset must have samples by number. Got none.")
        samples, names = _of_dataset(data)
    else:
        raise PriorGraphError(
            f"'data' must be a tensor, a DataFrame or a map-style Dataset. Got {type(data).__name__}."
        )
    if graph is not None and samples.units != graph.state_dim:
        raise PriorGraphError(
            f"'data' must have one column a unit of the graph, {graph.state_dim}. Got {samples.units}."
        )
    return samples, names


def _of_dataset(data: Any) -> tuple[Samples, tuple[str, ...]]:
    """Samples of a dataset, and its ``class_names`` where it has them."""
    if isinstance(data, NamedSamples):  # graphs one by one, and a table of the same
        return InMemory(data.expression, data.labels, None), data.class_names
    names = getattr(data, "class_names", ())
    return FromDataset(data), tuple(names) if isinstance(names, (list, tuple)) else ()


def _of_frame(frame: Any, labels: Any, graph: PriorGraph | None) -> tuple[Tensor, Any]:
    if graph is None:
        raise PriorGraphError("A DataFrame needs 'graph', by which its columns are found. Got none.")
    if isinstance(labels, str):
        if list(frame.columns).count(labels) != 1:
            columns = [name for name in frame.columns if isinstance(name, str)]
            raise PriorGraphError(
                f"'labels' must name one column of the frame. Got {show(labels)}"
                f"{near_names(labels, columns)}."
            )
        labels = frame[labels]
    elif hasattr(labels, "reindex") and not labels.index.equals(frame.index):
        raise PriorGraphError(
            "Labels with an index must have that of the frame, in its order. Got another. "
            "Pass labels.loc[frame.index]."
        )
    table = align_inputs(frame, graph)
    try:
        values = table.to_numpy(dtype="float64", na_value=float("nan"))
    except (TypeError, ValueError) as error:
        raise PriorGraphError(f"Columns of nodes must hold numbers. {error}.") from error
    return torch.from_numpy(values.copy()).to(torch.get_default_dtype()), labels


def _targets(labels: Any, data: Tensor) -> tuple[Tensor | None, tuple[str, ...]]:
    """Targets as a tensor, and the names of classes where they came by name."""
    if labels is None:
        return None, ()
    names: tuple[str, ...] = ()
    if not isinstance(labels, Tensor):
        if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
            raise PriorGraphError(
                f"'labels' must be a tensor or a sequence. Got {show(labels)} ({type(labels).__name__})."
            )
        values = list(labels)
        if values and all(isinstance(value, float) for value in values):
            labels = torch.tensor(values, dtype=data.dtype)
        else:
            for place, value in enumerate(values):
                if is_missing(value):
                    raise PriorGraphError(
                        f"Every sample must have a class. Got {show(value)} at position {place}. "
                        "Drop the sample."
                    )
            texts = [name_of(value, "Labels", f" at position {place}") for place, value in enumerate(values)]
            names = tuple(sorted(set(texts)))
            number = {name: code for code, name in enumerate(names)}
            labels = torch.tensor([number[text] for text in texts])
    whole = not labels.is_floating_point()
    if whole and (labels.dim() != 1 or labels.dtype == torch.bool or labels.is_complex()):
        raise PriorGraphError(
            f"Classes must be integers, one a sample. Got {tuple(labels.shape)} {labels.dtype}."
        )
    if len(labels) != len(data) or (labels.dim() != 1 and labels.shape != data.shape):
        raise PriorGraphError(
            f"'labels' must have one entry a sample, {len(data)}, or one a value. Got {tuple(labels.shape)}."
        )
    if whole and bool((labels < 0).any()):
        raise PriorGraphError(f"Classes must be numbered from 0. Got {int(labels.min())}.")
    return (labels.long() if whole else labels), names
