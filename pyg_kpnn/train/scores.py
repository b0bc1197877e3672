"""Scores of a whole epoch from sums over its batches, so that batches of any size weigh right."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["classification_scores", "confusion", "moments", "regression_scores"]


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Count ``(C, C)`` samples by true class (row) and predicted class, float64.

    Examples
    --------
    >>> confusion(torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0]]), torch.tensor([0, 1, 1])).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    classes = logits.shape[-1]
    cells = labels * classes + logits.argmax(-1)
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes).double()


def classification_scores(counts: Tensor) -> dict[str, Tensor]:
    """Accuracy, and the mean recall of the classes that are there (balanced accuracy).

    Examples
    --------
    >>> scores = classification_scores(torch.tensor([[6.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    >>> {name: float(value) for name, value in scores.items()}
    {'accuracy': 0.875, 'balanced_accuracy': 0.75}
    """
    right, members = counts.diagonal(), counts.sum(1)
    recalls = right / members.clamp(min=1.0)
    return {
        "accuracy": right.sum() / members.sum().clamp(min=1.0),
        "balanced_accuracy": recalls.sum() / (members > 0).sum().clamp(min=1),
    }


def moments(predicted: Tensor, true: Tensor, counted: Tensor) -> Tensor:
    """Sums ``(5,)`` over the entries counted: how many, error, squared error, value, squared value."""
    weight = counted.double()
    value = true.masked_fill(~counted, 0.0).double()
    error = (predicted.double() - value).masked_fill(~counted, 0.0)
    return torch.stack(
        [weight.sum(), error.abs().sum(), error.square().sum(), value.sum(), value.square().sum()]
    )


def regression_scores(sums: Tensor) -> dict[str, Tensor]:
    """Mean absolute error, and the share of the variance explained (R²).

    Examples
    --------
    >>> everything = torch.ones(4, dtype=torch.bool)
    >>> sums = moments(torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.tensor([0.0, 2.0, 2.0, 4.0]), everything)
    >>> {name: float(value) for name, value in regression_scores(sums).items()}
    {'mae': 1.0, 'r2': 0.5}
    """
    count, error, squared, value, square = sums.unbind()
    count = count.clamp(min=1.0)
    spread = square - value.square() / count
    # Values all alike leave nothing to explain.
    return {
        "mae": error / count,
        "r2": torch.where(spread > 0, 1 - squared / spread, torch.zeros_like(spread)),
    }
