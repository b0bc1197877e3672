"""Arithmetic of jets: products, composition with a derivative tower, and what follows from them.

A jet is taken apart into its homogeneous parts, one for each total order, and treated as a power
series in one variable whose coefficients are those parts. The only multiplication of coefficients is
:func:`accumulate`: an outer product of two parts and one sum of its rows by an index table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import PriorGraphError
from .indices import JetSpace, grade_size, product_rows

__all__ = [
    "compose",
    "exp",
    "log",
    "power",
    "product",
    "reciprocal",
    "sqrt",
]

Parts = Sequence[Tensor]


def accumulate(total: Tensor | None, left: Tensor, j: int, right: Tensor, k: int, n_vars: int) -> Tensor:
    """``total`` (None: zero) plus the product of homogeneous parts of orders ``j`` and ``k``."""
    if j == 0 or k == 0 or n_vars == 1:
        return left * right if total is None else torch.addcmul(total, left, right)
    pairs = (left.unsqueeze(1) * right.unsqueeze(0)).flatten(0, 1)
    if total is None:
        total = pairs.new_zeros(grade_size(n_vars, j + k), *pairs.shape[1:])
    return total.index_add(0, product_rows(n_vars, j, k, pairs.device), pairs)


def convolve(
    left: Parts, right: Parts, grade: int, n_vars: int, first: int = 0, last: int | None = None
) -> Tensor:
    """Sum of ``left[j] * right[grade - j]`` over j from ``first`` to ``last`` (None: ``grade``)."""
    total: Tensor | None = None
    for j in range(first, (grade if last is None else last) + 1):
        total = accumulate(total, left[j], j, right[grade - j], grade - j, n_vars)
    assert total is not None
    return total


def product(left: Tensor, right: Tensor, space: JetSpace) -> Tensor:
    r"""Jet of :math:`f g`: :math:`(fg)_\gamma = \sum_{\alpha + \beta = \gamma} f_\alpha g_\beta`.

    Parameters
    ----------
    left, right : Tensor
        ``(size, ...)``; the trailing axes broadcast.
    space : JetSpace
        Variables and order of both.

    Returns
    -------
    Tensor
        ``(size, ...)``.

    Raises
    ------
    PriorGraphError
        If a jet does not have the rows of ``space``.

    Examples
    --------
    :math:`(1 + x)(2 + x) = 2 + 3x + x^2`:

    >>> import torch
    >>> space = JetSpace(n_vars=1, order=2)
    >>> product(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([2.0, 1.0, 0.0]), space)
    tensor([2., 3., 1.])
    """
    a, b = space.grades(left), space.grades(right)
    missing = left.dim() - right.dim()
    if missing > 0:
        b = tuple(part.reshape(part.shape[0], *(1,) * missing, *part.shape[1:]) for part in b)
    elif missing < 0:
        a = tuple(part.reshape(part.shape[0], *(1,) * -missing, *part.shape[1:]) for part in a)
    return torch.cat([convolve(a, b, grade, space.n_vars) for grade in range(space.order + 1)])


def compose(tower: Sequence[Tensor], jet: Tensor, space: JetSpace) -> Tensor:
    r"""Jet of :math:`\sigma(f)` from the derivatives of :math:`\sigma` at the value of f.

    Parameters
    ----------
    tower : sequence of Tensor
        :math:`\sigma, \sigma', \dots, \sigma^{(r)}` at ``jet[0]``, each of the shape of ``jet[0]``.
    jet : Tensor
        ``(size, ...)``.
    space : JetSpace
        Variables and order r.

    Returns
    -------
    Tensor
        ``(size, ...)``.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``, or ``tower`` has fewer than r + 1 entries.

    Notes
    -----
    Horner's rule for the Taylor polynomial of σ (Faà di Bruno's formula, summed in that order).
    Each step needs its argument to one order less than the next, so early steps are short.

    Examples
    --------
    :math:`(2 + x)^3 = 8 + 12 x + 6 x^2 + \dots` with :math:`\sigma(z) = z^3` at 2:

    >>> import torch
    >>> space = JetSpace(n_vars=1, order=2)
    >>> tower = torch.tensor([8.0, 12.0, 12.0]).unbind()
    >>> compose(tower, torch.tensor([2.0, 1.0, 0.0]), space)
    tensor([ 8., 12.,  6.])
    """
    if len(tower) <= space.order:
        raise PriorGraphError(
            f"tower must hold derivatives 0 to {space.order}, {space.order + 1} tensors, got {len(tower)}."
        )
    return torch.cat(compose_parts(tower, space.grades(jet), space.n_vars))


def compose_parts(tower: Sequence[Tensor], parts: Parts, n_vars: int) -> list[Tensor]:
    """:func:`compose` on the homogeneous parts of a jet."""
    order = len(parts) - 1
    result = [tower[order].unsqueeze(0) / math.factorial(order)]
    for derivative in range(order - 1, -1, -1):
        leading = tower[derivative].unsqueeze(0)
        if derivative > 1:
            leading = leading / math.factorial(derivative)
        higher = [
            convolve(parts, result, grade, n_vars, first=1) for grade in range(1, order - derivative + 1)
        ]
        result = [leading, *higher]
    return result


def exp(jet: Tensor, space: JetSpace) -> Tensor:
    r"""Jet of :math:`e^f`, ``(size, ...)``, from :math:`k\,e_k = \sum_{j=1}^{k} j f_j e_{k-j}`.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``.

    Examples
    --------
    >>> import torch
    >>> exp(torch.tensor([0.0, 1.0, 0.0]), JetSpace(n_vars=1, order=2))
    tensor([1.0000, 1.0000, 0.5000])
    """
    parts = space.grades(jet)
    slopes = [grade * part for grade, part in enumerate(parts)]
    result = [parts[0].exp()]
    for grade in range(1, space.order + 1):
        result.append(convolve(slopes, result, grade, space.n_vars, first=1) / grade)
    return torch.cat(result)


def log(jet: Tensor, space: JetSpace) -> Tensor:
    r"""Jet of :math:`\log f`, ``(size, ...)``; NaN or infinite where f is not positive, as torch.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``.

    Examples
    --------
    >>> import torch
    >>> log(torch.tensor([1.0, 1.0, 0.0]), JetSpace(n_vars=1, order=2))
    tensor([ 0.0000,  1.0000, -0.5000])
    """
    parts = space.grades(jet)
    result, slopes = [parts[0].log()], [parts[0]]
    for grade in range(1, space.order + 1):
        known = parts[grade]
        if grade > 1:
            known = known - convolve(slopes, parts, grade, space.n_vars, first=1, last=grade - 1) / grade
        result.append(known / parts[0])
        slopes.append(grade * result[-1])
    return torch.cat(result)


def power(jet: Tensor, exponent: float, space: JetSpace) -> Tensor:
    r"""Jet of :math:`f^p`, ``(size, ...)``, for a constant p and f that is nowhere 0.

    From :math:`k f_0 g_k = \sum_{j=1}^{k} (pj - (k - j)) f_j g_{k-j}`.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``.

    Examples
    --------
    >>> import torch
    >>> power(torch.tensor([1.0, 1.0, 0.0]), 3.0, JetSpace(n_vars=1, order=2))
    tensor([1., 3., 3.])
    """
    parts = space.grades(jet)
    return torch.cat(_power(parts, exponent, parts[0].pow(exponent), space.n_vars))


def reciprocal(jet: Tensor, space: JetSpace) -> Tensor:
    """Jet of ``1 / f``, ``(size, ...)``; infinite where f is 0.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``.

    Examples
    --------
    >>> import torch
    >>> reciprocal(torch.tensor([2.0, 1.0, 0.0]), JetSpace(n_vars=1, order=2))
    tensor([ 0.5000, -0.2500,  0.1250])
    """
    parts = space.grades(jet)
    return torch.cat(_power(parts, -1.0, parts[0].reciprocal(), space.n_vars))


def sqrt(jet: Tensor, space: JetSpace) -> Tensor:
    """Jet of the square root of f, ``(size, ...)``; not finite where f is not positive.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``.

    Examples
    --------
    >>> import torch
    >>> sqrt(torch.tensor([4.0, 1.0, 0.0]), JetSpace(n_vars=1, order=2))
    tensor([ 2.0000,  0.2500, -0.0156])
    """
    parts = space.grades(jet)
    return torch.cat(_power(parts, 0.5, parts[0].sqrt(), space.n_vars))


def _power(parts: Parts, exponent: float, value: Tensor, n_vars: int) -> list[Tensor]:
    result = [value]
    for grade in range(1, len(parts)):
        scaled = [((exponent + 1.0) * j / grade - 1.0) * part for j, part in enumerate(parts[: grade + 1])]
        result.append(convolve(scaled, result, grade, n_vars, first=1) / parts[0])
    return result
