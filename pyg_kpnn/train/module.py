"""PriorTransformerModule: a PriorTransformer with its loss, scores and optimiser, for Lightning."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn import functional as F

from ..checkpoint import AllOrNothing, load_checkpoint
from ..datasets.cache import write_plain
from ..errors import PriorGraphError
from ..nn import PriorTransformer
from ..prior import PriorGraph
from ..prior.names import check_choice, show, unknown_names
from .scores import classification_scores, confusion, moments, regression_scores

__all__ = ["PriorTransformerModule", "load"]

#: What each task asks of the model's readout; the first task of a readout is its default.
TASKS = {"classification": ("class",), "regression": ("graph", "node"), "reconstruction": ("node",)}
_DEFAULT = {"class": "classification", "graph": "regression", "node": "reconstruction"}
SCHEDULES = (None, "cosine", "plateau")
KEY, FORMAT_VERSION = "pyg_kpnn", 1


class PriorTransformerModule(AllOrNothing, lightning.LightningModule):
    """Loss, scores and optimiser around a :class:`PriorTransformer`.

    Batches are ``(x, y)`` or ``(x, y, key_padding_mask)``; for ``"reconstruction"`` they are ``x``,
    ``(x,)`` or ``(x, key_padding_mask)``.

    Parameters
    ----------
    model : PriorTransformer
        What is trained.
    task : {"classification", "regression", "reconstruction"}, optional
        Follows the readout when not given: ``"class"`` classifies, ``"graph"`` is regression, ``"node"``
        reconstruction. Regression with ``"node"`` has one target a node, NaN where it is not known.
        Reconstruction hides a share of the measured values and predicts them from the others.
    lr, weight_decay : float, default 1e-3, 1e-2
        Of AdamW.
    schedule : {None, "cosine", "plateau"}, default None
        Learning rate: constant; down to zero over the epochs of the trainer along a cosine; halved after
        5 epochs in which ``val_loss`` (without validation data ``train_loss``) did not fall.
    mask_fraction : float, default 0.15
        Share of measured values that reconstruction hides, between 0 and 1. Validation hides the same
        ones in every epoch.
    class_names : sequence of str, optional
        Kept with the model; :func:`fit` takes them from the data.

    Attributes
    ----------
    mean, scale : Tensor
        ``(n,)`` buffers: how raw values were standardised. A :class:`PriorDataModule` sets them.
    history : list of dict
        One dict of scores an epoch, filled by :func:`fit`.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule, or a batch has another form.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        model: PriorTransformer,
        task: str | None = None,
        *,
        lr: float = 1e-3,
        weight_decay: float = 1e-2,
        schedule: str | None = None,
        mask_fraction: float = 0.15,
        class_names: Any = (),
    ) -> None:
        super().__init__()
        if not isinstance(model, PriorTransformer):
            raise PriorGraphError(f"'model' must be a PriorTransformer. Got {type(model).__name__}.")
        check_choice(task, (None, *TASKS), "task")
        task = _DEFAULT[model.readout] if task is None else task
        if model.readout not in TASKS[task]:
            raise PriorGraphError(
                f"task={task!r} needs a model with readout={' or '.join(map(repr, TASKS[task]))}. "
                f"Got readout={model.readout!r}."
            )
        if task == "classification" and model.config["num_classes"] < 2:
            raise PriorGraphError("Classification needs num_classes of at least 2. Got a model with 1.")
        check_choice(schedule, SCHEDULES, "schedule")
        self.task, self.schedule = task, schedule
        self.lr = _number("lr", lr, lambda value: value > 0, "above 0")
        self.weight_decay = _number("weight_decay", weight_decay, lambda value: value >= 0, "at least 0")
        self.mask_fraction = _number(
            "mask_fraction", mask_fraction, lambda value: 0 < value < 1, "between 0 and 1"
        )
        self.class_names = check_class_names(class_names, model)
        self.model = model
        like, units = model.value_weight, model.graph.state_dim
        self.register_buffer("mean", torch.zeros(units, dtype=like.dtype, device=like.device))
        self.register_buffer("scale", torch.ones(units, dtype=like.dtype, device=like.device))
        self.history: list[dict[str, float]] = []
        self._sums: dict[str, Tensor] = {}

    @property
    def graph(self) -> PriorGraph:
        """The prior of the model."""
        return self.model.graph

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments but the model, JSON-ready."""
        names = ("task", "lr", "weight_decay", "schedule", "mask_fraction")
        return {**{name: getattr(self, name) for name in names}, "class_names": list(self.class_names)}

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Call the model on standardised values, as :meth:`PriorTransformer.forward`."""
        return self.model(x, key_padding_mask)

    def standardised(self, x: Tensor) -> Tensor:
        """Raw values ``(B, n)`` as the model was trained on them, NaN where they are NaN."""
        return (x.to(self.mean) - self.mean) / self.scale

    @torch.no_grad()
    def predict(self, x: Tensor, key_padding_mask: Tensor | None = None, *, batch_size: int = 256) -> Tensor:
        """Predict from raw values, standardised here as they were in training.

        Parameters
        ----------
        x : Tensor
            ``(B, n)`` in the order of ``graph.nodes``; NaN counts as not measured.
        key_padding_mask : Tensor, optional
            ``(B, n)`` bool, True = not measured.
        batch_size : int, default 256
            Samples at a time.

        Returns
        -------
        Tensor
            What the model returns in evaluation mode: logits, or numbers.

        Raises
        ------
        PriorGraphError
            As :meth:`PriorTransformer.forward`.
        """
        training = self.model.training
        self.model.eval()
        try:
            if not isinstance(x, Tensor) or x.dim() != 2 or not len(x) or x.shape[1] != len(self.mean):
                return self.model(x, key_padding_mask)  # it says what is wrong
            x = x.to(self.mean)
            mask = x.isnan() if key_padding_mask is None else key_padding_mask.to(x.device) | x.isnan()
            x = self.standardised(x)
            pairs = zip(x.split(batch_size), mask.split(batch_size), strict=True)
            return torch.cat([self.model(values, hidden) for values, hidden in pairs])
        finally:
            self.model.train(training)

    # --- steps ------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Loss of a batch."""
        return self._step(batch, batch_idx, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Loss of a batch; its scores are added up."""
        return self._step(batch, batch_idx, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Loss of a batch; its scores are added up."""
        return self._step(batch, batch_idx, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """What the model says of a batch of the data module; targets in it are not looked at."""
        x, _, mask = self._parts(batch)
        return self(x, mask)

    def _step(self, batch: Any, batch_idx: int, stage: str) -> Tensor:
        x, y, mask = self._parts(batch)
        if self.task == "classification":
            logits = self(x, mask)
            loss = F.cross_entropy(logits, y)
            self._add(stage, lambda: confusion(logits, y))
        else:
            if self.task == "reconstruction":
                measured = ~x.isnan() if mask is None else ~(mask | x.isnan())
                counted = measured & self.hidden(x, batch_idx, stage)
                out, y = self(x, ~measured | counted), x
            else:
                out, counted = self(x, mask), ~y.isnan()
                if out.shape != y.shape:
                    raise PriorGraphError(
                        f"Targets must have the shape of the outputs, {tuple(out.shape)}. "
                        f"Got {tuple(y.shape)}."
                    )
            error = (out - y.masked_fill(~counted, 0.0)).masked_fill(~counted, 0.0)
            loss = error.square().sum() / counted.sum().clamp(min=1)
            self._add(stage, lambda: moments(out, y, counted))
        self.log(
            f"{stage}_loss",
            loss.detach(),
            on_step=False,
            on_epoch=True,
            prog_bar=True,
            batch_size=len(x),
            sync_dist=True,
        )
        return loss

    def hidden(self, x: Tensor, batch_idx: int, stage: str) -> Tensor:
        """Entries of ``x`` that reconstruction hides: in training new ones every time, else a batch's own."""
        if stage == "train":
            return torch.rand(x.shape, device=x.device) < self.mask_fraction
        # The same values in every epoch, so that epochs can be compared; the global stream stays.
        generator = torch.Generator().manual_seed(batch_idx)
        return (torch.rand(x.shape, generator=generator) < self.mask_fraction).to(x.device)

    def _parts(self, batch: Any) -> tuple[Tensor, Any, Tensor | None]:
        supervised = self.task != "reconstruction"
        parts = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        if not 1 + supervised <= len(parts) <= 2 + supervised:
            form = "(x, y) or (x, y, key_padding_mask)" if supervised else "x, (x,) or (x, key_padding_mask)"
            raise PriorGraphError(f"A batch for {self.task} must be {form}. Got {len(parts)} parts.")
        y = parts[1] if supervised else None
        return parts[0], y, parts[1 + supervised] if len(parts) == 2 + supervised else None

    def _add(self, stage: str, sums: Callable[[], Tensor]) -> None:
        if stage != "train":
            with torch.no_grad():
                new = sums()
            self._sums[stage] = self._sums[stage] + new if stage in self._sums else new

    def _scores(self, stage: str) -> None:
        sums = self._sums.pop(stage, None)
        if sums is None:
            return
        sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        scores = classification_scores(sums) if self.task == "classification" else regression_scores(sums)
        for name, value in scores.items():
            self.log(f"{stage}_{name}", value.to(self.mean.dtype), prog_bar=True, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Log the scores of the epoch."""
        self._scores("val")

    def on_test_epoch_end(self) -> None:
        """Log the scores of the test."""
        self._scores("test")

    # --- set-up -----------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Take over how the data module standardises, and its class names."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if stage != "fit" or not hasattr(data, "scaling"):
            return
        mean, scale = data.scaling
        if mean.shape != self.mean.shape:
            raise PriorGraphError(
                f"The data must have one column a unit of the model's prior, {len(self.mean)}. Got "
                f"{len(mean)}. Build the model on the graph of the data, which may be a part: dataset.graph."
            )
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        if data.class_names:
            self.class_names = check_class_names(data.class_names, self.model)

    def configure_optimizers(self) -> Any:
        """AdamW and the schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        if self.schedule is None:
            return optimizer
        if self.schedule == "cosine":
            epochs = self.trainer.max_epochs
            if epochs is None or epochs < 1:
                raise PriorGraphError(f"schedule='cosine' needs max_epochs of at least 1. Got {epochs!r}.")
            scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
            return {"optimizer": optimizer, "lr_scheduler": scheduler}
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=5)
        data: Any = getattr(self.trainer, "datamodule", None)
        validates = self.trainer.enable_validation and getattr(data, "validates", True)
        monitor = "val_loss" if validates else "train_loss"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": monitor}}

    # --- files ------------------------------------------------------------------------------------

    def _described(self) -> dict[str, Any]:
        from .. import __version__

        return {
            "format_version": FORMAT_VERSION,
            "pyg_kpnn_version": __version__,
            "prior": self.graph.to_dict(),
            "model": self.model.config,
            "module": self.config,
            "dtype": self.model.value_weight.dtype,
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the prior and the configuration, so that :func:`load` needs no other file."""
        checkpoint[KEY] = self._described()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint that :func:`load` reads: all of it, or nothing where it is interrupted."""
        write_plain({KEY: self._described(), "state_dict": self.state_dict()}, path)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, map_location: str | torch.device = "cpu"
    ) -> PriorTransformerModule:
        """Build the module a checkpoint holds, in evaluation mode.

        Parameters
        ----------
        path : path
            Written by :meth:`save`, or by Lightning's trainer or ``ModelCheckpoint``.
        map_location : str or torch.device, default "cpu"
            Where the module goes.

        Raises
        ------
        PriorGraphError
            If the file is damaged, holds more than plain data, or is of another kind or a newer version.
        """
        stored = _read(path)
        described = _described_in(stored, path)
        try:
            graph = PriorGraph.from_dict(described["prior"])
            with torch.device("meta"):  # no memory and no random number for weights that are replaced
                model = PriorTransformer(graph, **described["model"])
            module = cls(model, **described["module"])
        except (PriorGraphError, TypeError) as error:
            raise PriorGraphError(f"{path} must hold a prior and sizes that go together. {error}") from error
        module.to(described["dtype"]).to_empty(device=map_location)
        load_checkpoint(module, stored["state_dict"])
        return module.eval()

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, map_location: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """Lightning's name for :meth:`load`."""
        return cls.load(checkpoint_path, map_location="cpu" if map_location is None else map_location)


def load(path: str | os.PathLike[str], *, map_location: str | torch.device = "cpu") -> PriorTransformerModule:
    """Build the module a checkpoint holds; see :meth:`PriorTransformerModule.load`."""
    return PriorTransformerModule.load(path, map_location=map_location)


def _read(path: str | os.PathLike[str]) -> Any:
    if not Path(path).is_file():
        raise PriorGraphError(f"A checkpoint must be a file. There is none at {path}.")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare the checksums
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} differs")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file raises depends on where the damage is
        raise PriorGraphError(
            f"{path} must be a checkpoint of plain data, whole. It is not: {str(error).splitlines()[0][:200]}"
        ) from error


def _described_in(stored: Any, path: Any) -> dict[str, Any]:
    described = stored.get(KEY) if isinstance(stored, Mapping) else None
    if not isinstance(described, dict) or not isinstance(stored.get("state_dict"), Mapping):
        raise PriorGraphError(
            f"{path} must be a checkpoint of PriorTransformerModule. It has no {KEY!r} or no 'state_dict'."
        )
    version = described.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise PriorGraphError(
            f"{path} must have a format this version reads, 1 to {FORMAT_VERSION}. Got {show(version)}, "
            f"written by pyg_kpnn {show(described.get('pyg_kpnn_version'))}."
        )
    known = {"format_version": int, "pyg_kpnn_version": str, "prior": dict, "model": dict, "module": dict}
    known["dtype"] = torch.dtype
    unknown = [str(key) for key in described if key not in known]
    if unknown:
        raise PriorGraphError(f"{path} must hold only known keys. Got {unknown_names(unknown, list(known))}.")
    for key, kind in known.items():
        if not isinstance(described.get(key), kind):
            raise PriorGraphError(
                f"{key!r} in {path} must be a {kind.__name__}. Got {show(described.get(key))}."
            )
    return described


def check_class_names(names: Any, model: PriorTransformer) -> tuple[str, ...]:
    """Names of the model's classes in order, or nothing."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise PriorGraphError(f"'class_names' must be a sequence of str. Got {show(names)}.")
    classes = model.config["num_classes"]
    if len(names) and len(names) != classes:
        raise PriorGraphError(
            f"'class_names' must name each of the model's classes, {classes}. "
            f"Got {len(names)}: {show(list(names))}."
        )
    return tuple(names)


def _number(name: str, value: Any, fits: Callable[[float], bool], rule: str) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not fits(float(value)):
        raise PriorGraphError(f"{name!r} must be a number {rule}. Got {show(value)}.")
    return float(value)
