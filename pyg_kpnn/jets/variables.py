"""Into jets and out of them: variables, constants, and the derivatives a jet holds."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import PriorGraphError
from .indices import JetSpace, second_order_rows

__all__ = ["constant", "gradient", "hessian", "partials", "variables"]


def variables(x: Tensor, space: JetSpace) -> Tensor:
    """The variables themselves at ``x``: value ``x``, derivative the unit matrix.

    Parameters
    ----------
    x : Tensor
        ``(..., n_vars)``.
    space : JetSpace
        Variables and order.

    Returns
    -------
    Tensor
        ``(size, ..., n_vars)``.

    Raises
    ------
    PriorGraphError
        If the last axis of ``x`` is not one entry a variable.

    Examples
    --------
    >>> import torch
    >>> variables(torch.tensor([5.0, 7.0]), JetSpace(n_vars=2, order=1))
    tensor([[5., 7.],
            [0., 1.],
            [1., 0.]])
    """
    if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[-1] != space.n_vars:
        what = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise PriorGraphError(f"x must be a tensor of shape (..., {space.n_vars}), got {what}.")
    if space.order == 0:
        return x.unsqueeze(0)
    # The first row of order 1 is the last variable's.
    unit = torch.eye(space.n_vars, dtype=x.dtype, device=x.device).flip(0)
    unit = unit.reshape(space.n_vars, *(1,) * (x.dim() - 1), space.n_vars)
    return constant(x, space).index_add(
        0,
        torch.arange(1, space.n_vars + 1, device=x.device),
        unit.expand(space.n_vars, *x.shape),
    )


def constant(value: Tensor, space: JetSpace) -> Tensor:
    """A jet that does not depend on the variables, ``(size, *value.shape)``.

    Examples
    --------
    >>> import torch
    >>> constant(torch.tensor(3.0), JetSpace(n_vars=1, order=2))
    tensor([3., 0., 0.])
    """
    return torch.cat([value.unsqueeze(0), value.new_zeros(space.size - 1, *value.shape)])


def partials(jet: Tensor, space: JetSpace) -> dict[tuple[int, ...], Tensor]:
    r"""Raw partial derivatives :math:`D^\alpha f`, by multi-index, each of the shape of ``jet[0]``.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``.

    Examples
    --------
    >>> import torch
    >>> partials(torch.tensor([1.0, 2.0, 3.0]), JetSpace(n_vars=1, order=2))
    {(0,): tensor(1.), (1,): tensor(2.), (2,): tensor(6.)}
    """
    space.grades(jet)
    raw = jet * space.factorials(jet).reshape(-1, *(1,) * (jet.dim() - 1))
    return dict(zip(space.indices, raw.unbind(0), strict=True))


def gradient(jet: Tensor, space: JetSpace) -> Tensor:
    """First derivatives, ``(n_vars, ...)``, in the order of the variables.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``, or ``space`` is of order 0.

    Examples
    --------
    >>> import torch
    >>> gradient(torch.tensor([1.0, 2.0, 3.0]), JetSpace(n_vars=2, order=1))
    tensor([3., 2.])
    """
    _needs(space, 1)
    return space.grades(jet)[1].flip(0)


def hessian(jet: Tensor, space: JetSpace) -> Tensor:
    """Second derivatives, ``(n_vars, n_vars, ...)``, symmetric to the last bit.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``, or ``space`` is of an order below 2.

    Examples
    --------
    >>> import torch
    >>> hessian(torch.tensor([1.0, 0.0, 0.0, 4.0, 5.0, 6.0]), JetSpace(n_vars=2, order=2))
    tensor([[12.,  5.],
            [ 5.,  8.]])
    """
    _needs(space, 2)
    n = space.n_vars
    rows = space.grades(jet)[2]
    upper = rows.new_zeros(n * n, *rows.shape[1:]).index_add(0, second_order_rows(n, rows.device), rows)
    upper = upper.unflatten(0, (n, n))
    # D^2 / 2! on the diagonal once and twice, D^2 beside it once: the sum is the Hessian.
    return upper + upper.transpose(0, 1)


def _needs(space: JetSpace, order: int) -> None:
    if space.order < order:
        raise PriorGraphError(f"space must be of order {order} or more, got order {space.order}.")
