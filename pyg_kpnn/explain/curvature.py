"""Rows of the Hessian of one output, a block at a time, by reverse mode over reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

__all__ = ["Curvature"]


class Curvature:
    """Gradient of one output of a model, ready to be differentiated again.

    The model is evaluated and differentiated once; each row of the Hessian is then one more backward
    pass, many of them together under ``vmap``. Where a model cannot run under ``torch.func``, rows come
    from double backward one by one: as exact, slower.

    Parameters
    ----------
    function : callable
        ``(B, N)`` to ``(B, K)``, samples independent of each other.
    x : Tensor
        ``(B, N)``.
    output : int
        Which of the K.

    Attributes
    ----------
    gradient : Tensor
        ``(B, N)``.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[2.0, 3.0]])
    >>> curve = Curvature(lambda x: x.prod(1, keepdim=True), x, 0)
    >>> curve.gradient
    tensor([[3., 2.]])
    >>> curve.rows([0])
    tensor([[[0., 1.]]])
    """

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor, output: int) -> None:
        self._x = x.detach()
        # Of the sum over samples, because samples are independent: one pass for all of them.
        self._total: Callable[[Tensor], Tensor] = lambda points: function(points)[:, output].sum()
        self._pull: Callable[[Tensor], tuple[Tensor, ...]] | None = None
        try:
            with torch.no_grad():  # parameters need no gradients, and torch.func looks past this
                pulled: Any = vjp(grad(self._total), self._x)  # its type has a third entry, for has_aux
            gradient, self._pull = pulled
            self.gradient = gradient.detach()
        except (RuntimeError, NotImplementedError):
            self._by_autograd()

    def rows(self, units: list[int]) -> Tensor:
        """Rows ``units`` of the Hessian, ``(len(units), B, N)``."""
        if self._pull is not None:
            pull = self._pull
            at = torch.tensor(units, device=self._x.device)
            directions = torch.nn.functional.one_hot(at, self._x.shape[1]).to(self._x.dtype)
            directions = directions.unsqueeze(1).expand(-1, *self._x.shape)
            try:
                with torch.no_grad():
                    found: Tensor = vmap(lambda direction: pull(direction)[0])(directions)
                return found.detach()
            except (RuntimeError, NotImplementedError):
                self._by_autograd()
        return torch.stack([self._row(unit) for unit in units])

    def _by_autograd(self) -> None:
        self._pull = None
        with torch.enable_grad():
            self._leaf = self._x.clone().requires_grad_()
            total = self._total(self._leaf)
            if not total.requires_grad:  # a model that does not look at x
                self._slope = torch.zeros_like(self._x)
            else:
                (self._slope,) = torch.autograd.grad(
                    total, self._leaf, create_graph=True, allow_unused=True, materialize_grads=True
                )
        self.gradient = self._slope.detach()

    def _row(self, unit: int) -> Tensor:
        if not self._slope.requires_grad:  # a linear model
            return torch.zeros_like(self._x)
        with torch.enable_grad():
            (row,) = torch.autograd.grad(
                self._slope[:, unit].sum(),
                self._leaf,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        return row
