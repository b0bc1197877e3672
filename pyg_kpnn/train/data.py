"""PriorDataModule: a split by class, standardised by its training part alone."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import Any

import lightning
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import PriorGraphError
from ..nn.checks import flag, positive_int
from ..prior import PriorGraph
from ..prior.names import show
from .samples import Samples, samples_of

__all__ = ["PriorDataModule"]

_STEP = 1024  # samples read at a time


class _Places(Dataset[int]):
    """Positions of samples; what is there is read a batch at a time."""

    def __init__(self, places: Tensor) -> None:
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, item: int) -> int:
        return int(self.places[item])


class PriorDataModule(lightning.LightningDataModule):
    """Measurements of a prior's nodes as batches for training, validation and test.

    Parameters
    ----------
    data : Tensor, pandas.DataFrame or Dataset
        ``(N, n)`` floating values, NaN where not measured, in the order of ``graph.nodes``; or a frame with
        samples in rows, whose columns are found by name; or a map-style dataset of ``(x, y)``,
        ``(x, y, key_padding_mask)``, or ``x`` alone. A dataset's ``labels``, a tensor with an entry a sample,
        and ``class_names`` are taken as they are; without them all samples are read once. Of
        :class:`~pyg_kpnn.datasets.CuratedGRN` and its kin the table is read, no transform applied.
    labels : Tensor, sequence or str, optional
        ``(N,)`` targets, or ``(N, n)`` numbers, one a node. Floating point are numbers to predict; a tensor
        of integers are classes from 0; anything else are names of classes, numbered in sorted order. Of a
        frame also the name of a column. Without labels there is something to reconstruct only.
    graph : PriorGraph, optional
        Needed for a frame; else columns are counted against it, if given.
    mask : Tensor, optional
        ``(N, n)`` bool beside a tensor or a frame, True = not measured.
    val_fraction, test_fraction : float, default 0.15, 0.15
        Shares of the samples, of each class where there are classes. 0: no such part.
    standardise : bool, default True
        Subtract the mean and divide by the deviation of each column, over what is measured in the
        training part. A column that never varies there is only shifted.
    batch_size : int, default 64
    num_workers : int, default 0
    seed : int, default 0
        Of the split and of the order of training; the global random state stays as it is.

    Attributes
    ----------
    class_names : tuple of str
        In the order of their numbers, those of a dataset included; empty for numbers and for integer
        tensors.
    train_index, val_index, test_index : Tensor
        Which samples are in which part, ascending.
    scaling : tuple of Tensor
        Mean and deviation ``(n,)`` in float64, zeros and ones without ``standardise``.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule.

    Examples
    --------
    >>> import torch
    >>> data = PriorDataModule(torch.randn(20, 3), torch.arange(20) % 2, batch_size=7)
    >>> len(data.train_index), len(data.val_index), len(data.test_index)
    (12, 4, 4)
    >>> [tuple(part.shape) for part in next(iter(data.val_dataloader()))]
    [(4, 3), (4,)]
    """

    def __init__(
        self,
        data: Any,
        labels: Any = None,
        *,
        graph: PriorGraph | None = None,
        mask: Tensor | None = None,
        val_fraction: float = 0.15,
        test_fraction: float = 0.15,
        standardise: bool = True,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.batch_size = positive_int("batch_size", batch_size)
        for name, value in (("num_workers", num_workers), ("seed", seed)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise PriorGraphError(f"{name!r} must be an int of at least 0. Got {show(value)}.")
        self.num_workers, self.seed = num_workers, seed
        shares = (_share("val_fraction", val_fraction), _share("test_fraction", test_fraction))
        if sum(shares) >= 1:
            raise PriorGraphError(
                f"'val_fraction' and 'test_fraction' must leave something to train on. "
                f"Got {shares[0]} and {shares[1]}."
            )
        flag("standardise", standardise)
        self.samples: Samples
        self.samples, names = samples_of(data, labels, graph, mask)
        targets = self.samples.labels()
        classes = None if targets is None or targets.is_floating_point() else targets
        self.class_names: tuple[str, ...] = () if classes is None else names
        self.train_index, self.val_index, self.test_index = _split(len(self.samples), classes, shares, seed)
        self.scaling = self._statistics() if standardise else _plain(self.samples.units)

    @property
    def validates(self) -> bool:
        """Whether there is a validation part."""
        return len(self.val_index) > 0

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each column over the measured values of the training part, float64.

        Sums are of differences from the first block's mean: squares of large values would lose the digits
        in which they differ.
        """
        count = total = squares = near = torch.zeros(self.samples.units, dtype=torch.float64)
        for number, places in enumerate(self.train_index.split(_STEP)):
            x, _, hidden = self.samples.batch(places)
            seen = ~hidden
            x = x.double()
            if number == 0:
                near = x.masked_fill(hidden, 0.0).sum(0) / seen.sum(0).clamp(min=1)
            shifted = (x - near).masked_fill(hidden, 0.0)
            count = count + seen.sum(0)
            total = total + shifted.sum(0)
            squares = squares + shifted.square().sum(0)
        safe = count.clamp(min=1.0)
        mean = total / safe
        variance = (squares / safe - mean.square()).clamp(min=0.0)
        mean = torch.where(count > 0, near + mean, 0.0)
        # Exactly zero in a column that does not vary: what is left of it is one power of two, summed exactly.
        return mean, torch.where(variance > 0, variance.sqrt(), 1.0)

    def _collate(self, places: list[int]) -> Any:
        x, y, mask = self.samples.batch(torch.tensor(places))
        mean, scale = self.scaling
        x = ((x.double() - mean) / scale).to(x.dtype).masked_fill(mask, 0.0)
        parts = [x] if y is None else [x, y]
        if self.samples.masked:
            parts.append(mask)
        return tuple(parts)

    def _loader(self, places: Tensor, shuffle: bool = False) -> Any:
        if not len(places):
            return []  # Lightning's word for: no such part
        return DataLoader(
            _Places(places),
            self.batch_size,
            shuffle=shuffle,
            collate_fn=self._collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            # Workers draw their seeds from it too, and the global stream stays where it is.
            generator=Generator().manual_seed(self.seed),
        )

    def train_dataloader(self) -> Any:
        """Batches of the training part in random order."""
        return self._loader(self.train_index, shuffle=True)

    def val_dataloader(self) -> Any:
        """Batches of the validation part in ascending order."""
        return self._loader(self.val_index)

    def test_dataloader(self) -> Any:
        """Batches of the test part in ascending order."""
        return self._loader(self.test_index)

    def predict_dataloader(self) -> Any:
        """Batches of all samples in their order."""
        return self._loader(torch.arange(len(self.samples)))

    def __iter__(self) -> Iterator[Any]:
        """Batches of the training part, for a loop of one's own."""
        return iter(self.train_dataloader())


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise PriorGraphError(f"{name!r} must be a number from 0 to below 1. Got {show(value)}.")
    return float(value)


def _plain(units: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(units, dtype=torch.float64), torch.ones(units, dtype=torch.float64)


def _split(count: int, classes: Tensor | None, shares: tuple[float, float], seed: int) -> list[Tensor]:
    """Positions of the training, validation and test part; classes keep their shares in each."""
    generator = Generator().manual_seed(seed)
    groups = (
        [torch.arange(count)]
        if classes is None
        else [(classes == label).nonzero().flatten() for label in classes.unique()]
    )
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for group in groups:
        group = group[torch.randperm(len(group), generator=generator)]
        val, test = (round(share * len(group)) for share in shares)
        while val + test >= len(group):  # the one sample of a rare class is there to learn from
            val, test = (val - 1, test) if val >= test else (val, test - 1)
        for part, piece in zip(parts, group.split([len(group) - val - test, val, test]), strict=True):
            part.append(piece)
    return [torch.cat(part).sort().values for part in parts]
