"""Samples a few at a time, from a tensor, a dataset, or anything that gives batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorGraphError
from ..nn.checks import positive_int
from ..prior.names import is_missing, near_names, show

__all__ = ["Batch", "Batches", "SampleLabels", "finite"]


@dataclass
class Batch:
    """Some samples: values ``(B, n)`` or ``(B, n, F)``, what is masked ``(B, n)``, what came as label."""

    x: Tensor
    mask: Tensor | None
    y: Any
    second: Tensor | None = None  # the keys of a bipartite layer

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: Any) -> Batch:
        """The samples of a slice or an index."""
        mask = None if self.mask is None else self.mask[index]
        second = None if self.second is None else self.second[index]
        return Batch(self.x[index], mask, None if self.y is None else self.y[index], second)


class Batches:
    """Goes through the samples of ``data`` in its order, as often as ``data`` allows.

    Parameters
    ----------
    data : Tensor, tuple, dataset or iterable
        A tensor ``(S, n)`` or ``(S, n, F)``; one batch as a tuple; a dataset with a length; or an iterable
        of batches such as a DataLoader. A batch is a tensor, a tuple that begins with one, a mapping with
        ``"x"``, or a PyG batch. A boolean tensor beside the values is the mask, True = not there, anything
        else the label.
    batch_size : int
        Samples of a tensor or a dataset at a time.
    key_padding_mask : Tensor, optional
        ``(S, n)``, for a tensor.
    ordered : bool
        Whether samples have labels by position, so that a shuffled loader is refused.
    keys : bool
        Whether a tuple holds queries and then keys, as a bipartite layer takes them.

    Raises
    ------
    PriorGraphError
        If ``data`` or a batch is none of these.
    """

    def __init__(
        self,
        data: Any,
        batch_size: Any,
        *,
        key_padding_mask: Any = None,
        ordered: bool = False,
        keys: bool = False,
    ) -> None:
        self.size = positive_int("batch_size", batch_size)
        self.keys = keys
        self.count: int | None = None
        if isinstance(data, Tensor):
            data = (data,)
        if isinstance(data, tuple):
            self.whole: Batch | None = self._one(
                data if key_padding_mask is None else (*data, key_padding_mask)
            )
            self.count = len(self.whole)
            return
        self.whole = None
        if key_padding_mask is not None:
            raise PriorGraphError(
                "key_padding_mask goes with data that is a tensor. Batches bring their own: (x, mask)."
            )
        shuffled = type(getattr(data, "sampler", None)).__name__ == "RandomSampler"
        if ordered and shuffled:
            raise PriorGraphError(
                "Labels by position need samples in their order, got a DataLoader that shuffles. Build it "
                'with shuffle=False, or give the labels in the batches and pass "y".'
            )
        dataset = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)
        if isinstance(data, (str, bytes, Mapping, np.ndarray)) or not (isinstance(data, Iterable) or dataset):
            raise PriorGraphError(
                "data must be a floating tensor (S, n) or (S, n, F), a dataset, or an iterable of batches; "
                f"got {type(data).__name__}."
            )
        self.data = _loader(data, self.size) if dataset and not isinstance(data, list) else data
        self.once = isinstance(data, Iterator)

    def __iter__(self) -> Iterator[Batch]:
        if self.whole is not None:
            for start in range(0, len(self.whole), self.size):
                yield self.whole.rows(slice(start, start + self.size))
            return
        some = False
        for given in self.data:
            some = True
            yield self._one(given)
        if not some:
            raise PriorGraphError("data must give at least one batch, got none.")

    def again(self, passes: int, why: str) -> None:
        """Refuse data that can be gone through only once where ``passes`` are needed."""
        if self.whole is None and self.once and passes > 1:
            raise PriorGraphError(
                f"{why} goes through the samples {passes} times, got a {type(self.data).__name__}, which "
                "can be read once. Pass a tensor, a dataset or a DataLoader."
            )

    def _one(self, given: Any) -> Batch:
        x, rest = _parts(given)
        second = rest.pop(0) if self.keys and rest else None
        given_tokens = [("data", x)] + ([("the keys in data", second)] if self.keys else [])
        for name, tokens in given_tokens:
            fits = isinstance(tokens, Tensor) and tokens.dim() in (2, 3) and tokens.is_floating_point()
            if not fits or not tokens.numel():
                what = f"{tuple(tokens.shape)} {tokens.dtype}" if isinstance(tokens, Tensor) else show(tokens)
                raise PriorGraphError(
                    f"{name} must hold floating tensors (S, n) or (S, n, F), S at least 1; got {what}."
                )
        keyed = x if second is None else second
        mask = label = None
        for extra in rest:
            if isinstance(extra, Tensor) and extra.dtype == torch.bool and extra.dim() == 2:
                mask = extra
            elif label is None:
                label = extra
        if mask is not None and mask.shape != keyed.shape[:2]:
            raise PriorGraphError(
                f"key_padding_mask must be boolean of shape {tuple(keyed.shape[:2])}, "
                f"got {tuple(mask.shape)}."
            )
        if len(keyed) != len(x):
            raise PriorGraphError(f"Queries and keys must be as many samples, got {len(x)} and {len(keyed)}.")
        return Batch(x, mask, label, second)


def _parts(given: Any) -> tuple[Any, list[Any]]:
    """Values and what came beside them."""
    if isinstance(given, Tensor):
        return given, []
    if isinstance(given, (tuple, list)) and given:
        return given[0], [extra for extra in given[1:] if extra is not None]
    names = ("key_padding_mask", "mask", "y")
    if isinstance(given, Mapping):
        return given.get("x"), [given[name] for name in names if given.get(name) is not None]
    x = getattr(given, "x", None)
    if isinstance(x, Tensor):  # a PyG batch puts the nodes of all its graphs below each other
        graphs = getattr(given, "num_graphs", None) or 1
        beside = [getattr(given, name, None) for name in names]
        x = x.reshape(graphs, -1, *x.shape[1:])
        x = x.squeeze(-1) if x.dim() == 3 and x.shape[-1] == 1 else x
        beside = [
            extra.reshape(x.shape[:2])
            if isinstance(extra, Tensor) and extra.dtype == torch.bool and len(extra) == len(x) * x.shape[1]
            else extra
            for extra in beside
            if extra is not None
        ]
        return x, beside
    return given, []


def _loader(data: Any, size: int) -> Iterable[Any]:
    """Batches of a dataset; the loader draws its seed from a generator of its own."""
    if hasattr(data, "batch_sampler"):
        return data
    from torch_geometric.data.data import BaseData

    generator = torch.Generator()
    if len(data) and isinstance(data[0], BaseData):
        from torch_geometric.loader import DataLoader as GraphLoader

        return GraphLoader(data, batch_size=size, shuffle=False, generator=generator)
    return torch.utils.data.DataLoader(data, batch_size=size, shuffle=False, generator=generator)


def finite(batch: Batch, names: list[str], first: int) -> None:
    """Refuse a value that is not finite and not masked, by name; ``first`` numbers the samples."""
    x = batch.x if batch.second is None else batch.second
    lost = ~x.isfinite()
    lost = lost.flatten(2).any(-1) if x.dim() == 3 else lost
    if batch.mask is not None:
        lost &= ~batch.mask.to(lost.device)
    if bool(lost.any()):
        sample, place = (int(i) for i in lost.nonzero()[0])
        raise PriorGraphError(
            f"Values must be finite where they are not masked, got {names[place]} not finite in sample "
            f"{first + sample}. Mask what was not measured: key_padding_mask=x.isnan()."
        )


class SampleLabels:
    """One label a sample, by position or out of the batches (``"y"``), as codes of sorted categories.

    Raises
    ------
    PriorGraphError
        For labels that are missing, or too few or too many.
    """

    def __init__(self, given: Any, argument: str) -> None:
        self.argument = argument
        self.from_batches = isinstance(given, str) and given == "y"
        self.values: list[Any] = []
        self.order: list[Any] | None = None
        if self.from_batches:
            return
        if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
            raise PriorGraphError(f"{argument} must be a sequence of labels or 'y', got {show(given)}.")
        categories = getattr(getattr(given, "dtype", None), "categories", None)
        self.order = None if categories is None else list(categories)
        self.values = _plain(given, argument, 0)

    def take(self, batch: Batch, first: int) -> list[Any]:
        """Labels of a batch that starts at sample ``first``."""
        if self.from_batches:
            if batch.y is None:
                raise PriorGraphError(f"{self.argument}='y' needs batches (x, y), got one without y.")
            found = _plain(batch.y, self.argument, first)
            if len(found) != len(batch):
                raise PriorGraphError(
                    f"{self.argument} must have one label a sample, got {len(found)} for {len(batch)} "
                    "samples."
                )
            return found
        if first + len(batch) > len(self.values):
            self.check(first + len(batch))
        return self.values[first : first + len(batch)]

    def check(self, samples: int) -> None:
        """Refuse another number of labels than of samples."""
        if not self.from_batches and samples != len(self.values):
            raise PriorGraphError(
                f"{self.argument} must have one label a sample, got {len(self.values)} for {samples} samples"
                f"{'' if samples < len(self.values) else ' or more'}."
            )

    def known(self, wanted: Any, argument: str, among: list[Any]) -> Any:
        """``wanted`` when it is a label."""
        if isinstance(wanted, bool) or wanted not in among:
            hint = near_names(str(wanted), [str(label) for label in among])
            raise PriorGraphError(f"{argument} must be a label in {self.argument}, got {show(wanted)}{hint}.")
        return wanted


def _plain(given: Any, argument: str, first: int) -> list[Any]:
    values = given.tolist() if hasattr(given, "tolist") else list(given)
    for place, value in enumerate(values):
        if is_missing(value) or isinstance(value, (list, dict)):
            what = "none" if is_missing(value) else show(value)
            raise PriorGraphError(
                f"{argument} must have one label a sample, got {what} for sample {first + place}. Leave the "
                "sample out or name its label."
            )
    return values
