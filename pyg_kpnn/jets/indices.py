"""Multi-indices up to a total order, and the tables that multiply homogeneous parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from ..errors import PriorGraphError

__all__ = ["JetSpace"]


@dataclass(frozen=True)
class JetSpace:
    r"""The monomials :math:`\delta^\alpha,\ |\alpha| \le r` that a truncated Taylor series is written in.

    A *jet* in this space is an ordinary tensor whose axis 0 holds the :attr:`size` Taylor coefficients
    :math:`D^\alpha f / \alpha!`; every other axis is the caller's. Rows are sorted by total order
    :math:`|\alpha|`, within one order in ascending lexicographic order of :math:`\alpha`.

    Parameters
    ----------
    n_vars : int
        Number of variables n, at least 1.
    order : int
        Highest total order r, at least 0.

    Raises
    ------
    PriorGraphError
        If an argument is not such an integer.

    Notes
    -----
    The rows of one total order k are the coefficients of a homogeneous polynomial, and
    :math:`f(x + t\delta)` is a power series in t with those polynomials as coefficients. So every
    operation on jets is the textbook operation on power series in one variable (Griewank and Walther,
    *Evaluating Derivatives*, 2008, chapter 13), with products of polynomials in place of products of
    numbers.

    Examples
    --------
    >>> space = JetSpace(n_vars=2, order=2)
    >>> space.size
    6
    >>> space.indices
    ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0))
    >>> space.position((1, 1))
    4
    """

    n_vars: int
    order: int

    def __post_init__(self) -> None:
        for name, value, least in (("n_vars", self.n_vars, 1), ("order", self.order, 0)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                shown = f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
                raise PriorGraphError(f"{name} must be an integer >= {least}, got {shown}.")

    @property
    def size(self) -> int:
        """Number of rows of a jet."""
        return math.comb(self.n_vars + self.order, self.order)

    @property
    def grade_sizes(self) -> list[int]:
        """Number of rows of each total order 0 … r."""
        return [grade_size(self.n_vars, grade) for grade in range(self.order + 1)]

    @property
    def indices(self) -> tuple[tuple[int, ...], ...]:
        """The multi-indices α in the order of a jet's rows."""
        return _indices(self.n_vars, self.order)

    def position(self, alpha: tuple[int, ...]) -> int:
        """Row of a jet that holds multi-index ``alpha``.

        Raises
        ------
        PriorGraphError
            If ``alpha`` is not one of :attr:`indices`.
        """
        try:
            return self.indices.index(tuple(alpha))
        except ValueError:
            raise PriorGraphError(
                f"alpha must be {self.n_vars} integers >= 0 with a sum <= {self.order}, got {alpha!r}."
            ) from None

    def factorials(self, like: Tensor) -> Tensor:
        """``(size,)``, α! of each row in the dtype and on the device of ``like``."""
        return _table("factorials", (self.n_vars, self.order), like.device).to(like.dtype)

    def grades(self, jet: Tensor) -> tuple[Tensor, ...]:
        """The rows of each total order, as views of ``jet``.

        Raises
        ------
        PriorGraphError
            If ``jet`` is not a tensor with :attr:`size` rows.
        """
        if not isinstance(jet, Tensor) or jet.dim() == 0 or jet.shape[0] != self.size:
            what = f"shape {tuple(jet.shape)}" if isinstance(jet, Tensor) else type(jet).__name__
            raise PriorGraphError(
                f"A jet in {self.n_vars} variables to order {self.order} must be a tensor with "
                f"{self.size} rows along axis 0, got {what}."
            )
        return jet.split(self.grade_sizes)


def grade_size(n_vars: int, grade: int) -> int:
    """Number of multi-indices of total order ``grade``."""
    return math.comb(n_vars + grade - 1, grade)


@cache
def _of_grade(n_vars: int, grade: int) -> list[tuple[int, ...]]:
    # Sorted lists of variables come in descending order of the exponents they stand for.
    chosen = reversed(list(combinations_with_replacement(range(n_vars), grade)))
    return [tuple(np.bincount(pick, minlength=n_vars).tolist()) if pick else (0,) * n_vars for pick in chosen]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _indices(n_vars: int, order: int) -> tuple[tuple[int, ...], ...]:
    return tuple(alpha for grade in range(order + 1) for alpha in _of_grade(n_vars, grade))


_TABLES: dict[tuple[Any, ...], Tensor] = {}


def _table(kind: str, sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """One of the tables of ``_MAKERS`` as a tensor, made once a device."""
    dtype = torch.float64 if kind == "factorials" else torch.int64
    if torch.compiler.is_compiling():
        # Numbers, because a graph takes only one tensor from a call that it does not trace.
        return torch.tensor(_numbers(kind, sizes), dtype=dtype, device=device)
    entry = (kind, sizes, device)
    found = _TABLES.get(entry)
    if found is None:
        # A table made in inference mode could not be saved for a later backward.
        with torch.inference_mode(False):
            found = torch.from_numpy(_MAKERS[kind](*sizes))
            if device.type != "cpu":
                found = found.to(device)
        # Under torch.func a tensor that was moved belongs to the transform that is running.
        if device.type == "cpu" or peek_interpreter_stack() is None:
            _TABLES[entry] = found
    return found


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _numbers(kind: str, sizes: tuple[int, ...]) -> list[float]:
    return _MAKERS[kind](*sizes).tolist()


def _product_rows(n_vars: int, left: int, right: int) -> np.ndarray:
    place = {alpha: row for row, alpha in enumerate(_of_grade(n_vars, left + right))}
    first, second = (np.array(_of_grade(n_vars, grade)) for grade in (left, right))
    sums = (first[:, None] + second[None]).reshape(-1, n_vars).tolist()
    return np.array([place[tuple(alpha)] for alpha in sums], dtype=np.int64)


def _factorials(n_vars: int, order: int) -> np.ndarray:
    rows = JetSpace(n_vars, order).indices
    return np.array([float(math.prod(map(math.factorial, alpha))) for alpha in rows])


def _second_order_rows(n_vars: int) -> np.ndarray:
    pairs = [np.repeat(np.arange(n_vars), alpha) for alpha in _of_grade(n_vars, 2)]
    return np.array([i * n_vars + j for i, j in pairs], dtype=np.int64)


_MAKERS: dict[str, Callable[..., np.ndarray]] = {
    "product": _product_rows,
    "factorials": _factorials,
    "second order": _second_order_rows,
}


def product_rows(n_vars: int, left: int, right: int, device: torch.device) -> Tensor:
    """Where the products of two homogeneous parts go.

    ``(n_left * n_right,)`` int64: row of the part of order ``left + right`` that the product of row i
    of the part of order ``left`` and row j of that of order ``right`` belongs to, at
    ``i * n_right + j``.
    """
    return _table("product", (n_vars, left, right), device)


def second_order_rows(n_vars: int, device: torch.device) -> Tensor:
    """``(rows,)`` int64, position ``i * n_vars + j`` in a flat Hessian of each row of order 2."""
    return _table("second order", (n_vars,), device)
