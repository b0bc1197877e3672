"""One call from a model and data to a trained module."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

from ..errors import PriorGraphError
from ..nn import PriorTransformer
from ..prior.names import check_choice
from .module import PriorTransformerModule

__all__ = ["fit"]


class _History(lightning.Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        scores = {name: float(value) for name, value in trainer.callback_metrics.items()}
        pl_module.history.append({"epoch": trainer.current_epoch, **scores})


def fit(
    model: PriorTransformerModule | PriorTransformer,
    data: Any,
    *,
    max_epochs: int = 100,
    patience: int | None = 10,
    monitor: str | None = None,
    mode: str | None = None,
    quiet: bool = False,
    save_to: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Any] = (),
    **trainer_options: Any,
) -> PriorTransformerModule:
    """Train with a progress bar and early stopping, and bring back the weights of the best epoch.

    Parameters
    ----------
    model : PriorTransformerModule or PriorTransformer
        A bare model is put into ``PriorTransformerModule(model)``. Trained in place.
    data : PriorDataModule, or what ``Trainer.fit`` takes as a data module
        With a validation part, if there is to be early stopping by it.
    max_epochs : int, default 100
    patience : int, optional, default 10
        Stop after that many epochs without a better ``monitor``. None: never.
    monitor : str, optional
        Which score says what is best; ``"val_loss"``, or ``"train_loss"`` where nothing validates.
    mode : {"min", "max"}, optional
        Whether a small score is good. When not given: small for losses and ``mae``, large for the others.
    quiet : bool, default False
        No progress bar, no summary, no messages of Lightning.
    save_to : path, optional
        Also write the best module there, see :meth:`PriorTransformerModule.save`.
    callbacks : sequence
        More callbacks of Lightning.
    **trainer_options
        For ``lightning.Trainer``; they win over what is set here.

    Returns
    -------
    PriorTransformerModule
        In evaluation mode, with ``history``. No other file is left behind, whatever happens.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule.
    """
    module = PriorTransformerModule(model) if isinstance(model, PriorTransformer) else model
    if not isinstance(module, PriorTransformerModule):
        raise PriorGraphError(
            f"'model' must be a PriorTransformerModule or a PriorTransformer. Got {type(model).__name__}."
        )
    if not isinstance(data, lightning.LightningDataModule):
        raise PriorGraphError(f"'data' must be a PriorDataModule. Got {type(data).__name__}.")
    check_choice(mode, (None, "min", "max"), "mode")
    validates = getattr(data, "validates", True)
    if monitor is None:
        monitor = "val_loss" if validates else "train_loss"
    if mode is None:
        mode = "min" if monitor.endswith(("loss", "mae")) else "max"
    module.history = []
    with tempfile.TemporaryDirectory() as scratch, _silence(quiet):
        # A training loss is known only at the end of the training epoch.
        late = not monitor.startswith("val_")
        best = ModelCheckpoint(
            scratch,
            filename="best",
            monitor=monitor,
            mode=mode,
            save_weights_only=True,
            save_on_train_epoch_end=late,
        )
        own: list[Any] = [best, _History()]
        if patience is not None:
            own.append(EarlyStopping(monitor, mode=mode, patience=patience, check_on_train_epoch_end=late))
        options: dict[str, Any] = {
            "logger": False,
            "default_root_dir": scratch,
            "enable_progress_bar": not quiet,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": None if validates else 0,
            **trainer_options,
            "max_epochs": max_epochs,
            "callbacks": [*own, *callbacks],
        }
        trainer = lightning.Trainer(**options)
        module.train()  # a model that was loaded is in evaluation mode, and Lightning leaves it there
        trainer.fit(module, datamodule=data)
        if best.best_model_path:
            stored = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
            module.load_state_dict(stored["state_dict"])
        trainer.strategy.barrier()  # no process may take the folder away before all have read it
        if save_to is not None and trainer.is_global_zero:
            module.save(save_to)
    nn.Module.eval(module)
    return module


@contextlib.contextmanager
def _silence(quiet: bool) -> Iterator[None]:
    """Lightning's log, and two warnings: advice on workers, which tensors in memory do not need, and that
    Lightning uses a name which torch will take away."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        try:
            for logger in loggers if quiet else ():
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
