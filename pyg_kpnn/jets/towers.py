"""Activations as towers of derivatives of any order, each in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import PriorGraphError
from .memory import values_only

__all__ = ["ACTIVATIONS", "Activation", "activation"]

Tower = Callable[[Tensor, int], Sequence[Tensor]]


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its derivatives.

    Parameters
    ----------
    name : str
        What messages call it.
    tower : callable or None
        ``tower(z, order)``, the ``order + 1`` tensors σ, σ′, …, of the shape of ``z``; None for a
        function without such derivatives, which can be evaluated and nothing else.
    function : callable, optional
        ``function(z)``, the value alone, where there is a quicker way than ``tower(z, 0)[0]``.

    Examples
    --------
    >>> import torch
    >>> square = Activation("square", lambda z, order: [z**2, 2 * z, 2 + 0 * z][: order + 1])
    >>> square(torch.tensor([3.0]))
    tensor([9.])
    >>> square.derivatives(torch.tensor([3.0]), 1)
    [tensor([9.]), tensor([6.])]
    """

    name: str
    tower: Tower | None
    function: Callable[[Tensor], Tensor] | None = None

    def __call__(self, z: Tensor) -> Tensor:
        """The value σ at ``z``."""
        if self.function is not None:
            return self.function(z)
        return self.derivatives(z, 0)[0]

    def __reduce__(self) -> tuple[Any, ...]:
        if ACTIVATIONS.get(self.name) is self:
            return activation, (self.name,)
        return Activation, (self.name, self.tower, self.function)

    def require_tower(self) -> Tower:
        """The tower.

        Raises
        ------
        PriorGraphError
            If there is none.
        """
        if self.tower is None:
            able = ", ".join(name for name, known in ACTIVATIONS.items() if known.tower is not None)
            raise PriorGraphError(
                f"Derivatives need an activation with a closed-form tower of them ({able}, or a function "
                f"tower(z, order) of your own), got {self.name!r}, which can only be evaluated."
            )
        return self.tower

    def derivatives(self, z: Tensor, order: int) -> Sequence[Tensor]:
        """σ, σ′, …, σ⁽ᵒʳᵈᵉʳ⁾ at ``z``.

        Raises
        ------
        PriorGraphError
            If the activation has no tower, or its tower is too short or of another shape.
        """
        tower = self.require_tower()(z, order)
        if len(tower) <= order or any(level.shape != z.shape for level in tower[: order + 1]):
            shapes = ", ".join(str(tuple(level.shape)) for level in tower)
            raise PriorGraphError(
                f"The tower of {self.name!r} must give derivatives 0 to {order}, {order + 1} tensors of "
                f"shape {tuple(z.shape)}, got {len(tower)}: {shapes}."
            )
        return tower


def activation(base: str | Activation | Tower) -> Activation:
    """An activation by name, or from a function of its derivative tower.

    Parameters
    ----------
    base : str, Activation or callable
        A name in :data:`ACTIVATIONS`; an :class:`Activation`, which is returned; or
        ``tower(z, order)`` as described there, whose first entry is the value.

    Returns
    -------
    Activation

    Raises
    ------
    PriorGraphError
        If ``base`` is none of these.

    Examples
    --------
    >>> import torch
    >>> [level.item() for level in activation("sin").derivatives(torch.tensor(0.0), 3)]
    [0.0, 1.0, -0.0, -1.0]
    """
    if isinstance(base, Activation):
        return base
    if isinstance(base, str) and base in ACTIVATIONS:
        return ACTIVATIONS[base]
    if callable(base):
        return Activation(getattr(base, "__name__", type(base).__name__), base)
    shown = repr(base) if isinstance(base, (str, int, float, type(None))) else f"a {type(base).__name__}"
    raise PriorGraphError(
        f"An activation must be one of {', '.join(ACTIVATIONS)}, or a function tower(z, order), got {shown}."
    )


def _by_polynomials(value: Tensor, slope: Tensor, slope_in: Sequence[int], order: int) -> list[Tensor]:
    r"""Tower of a σ whose slope is a polynomial s(σ) of it.

    :math:`\sigma^{(k)} = s\, p_k(\sigma)` with :math:`p_1 = 1` and
    :math:`p_{k+1} = s' p_k + s\, p_k'`: the factor s, given as ``slope``, keeps what is small small.
    """
    levels, poly = [value, slope], [1]
    slope_prime = _differentiate(slope_in)
    for _ in range(2, order + 1):
        poly = _add(_multiply(slope_prime, poly), _multiply(slope_in, _differentiate(poly)))
        level: Tensor | float = float(poly[-1])
        for coefficient in reversed(poly[:-1]):
            level = level * value + float(coefficient)
        levels.append(slope * level)
    return levels[: order + 1]


def _differentiate(poly: Sequence[int]) -> list[int]:
    return [power * coefficient for power, coefficient in enumerate(poly)][1:] or [0]


def _multiply(left: Sequence[int], right: Sequence[int]) -> list[int]:
    out = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            out[i + j] += a * b
    return out


def _add(left: Sequence[int], right: Sequence[int]) -> list[int]:
    size = max(len(left), len(right))
    out = [sum(poly[power] for poly in (left, right) if power < len(poly)) for power in range(size)]
    while len(out) > 1 and out[-1] == 0:
        out.pop()
    return out


def _tanh(z: Tensor, order: int) -> list[Tensor]:
    if values_only(z):
        # As exact, and half the time of the library's; beyond 20 there is nothing left to add to 1.
        t = (2.0 * z).clamp_(max=40.0).expm1_()
        t = t.div_(t + 2.0)
    else:
        t = z.tanh()
    if order <= 2:  # the case that has to be fast
        slope = 1.0 - t * t
        return [t, slope, slope * t * -2.0][: order + 1]
    return _by_polynomials(t, 1.0 - t * t, [1, 0, -1], order)


def _sigmoid(z: Tensor, order: int) -> list[Tensor]:
    p = z.sigmoid()
    return _by_polynomials(p, p * (1.0 - p), [0, 1, -1], order)


def _sin(z: Tensor, order: int) -> list[Tensor]:
    s, c = z.sin(), z.cos()
    return [(s, c, -s, -c)[k % 4] for k in range(order + 1)]


def _cos(z: Tensor, order: int) -> list[Tensor]:
    s, c = z.sin(), z.cos()
    return [(c, -s, -c, s)[k % 4] for k in range(order + 1)]


def _exp(z: Tensor, order: int) -> list[Tensor]:
    return [z.exp()] * (order + 1)


def _softplus_value(z: Tensor) -> Tensor:
    # torch's softplus is z itself from 20 on, off by 2e-9.
    return -functional.logsigmoid(-z)


def _softplus(z: Tensor, order: int) -> list[Tensor]:
    return [_softplus_value(z), *(_sigmoid(z, order - 1) if order else [])]


def _times_z(z: Tensor, tower: Sequence[Tensor]) -> list[Tensor]:
    """Tower of z·f(z) from that of f, by Leibniz: z f⁽ᵏ⁾ + k f⁽ᵏ⁻¹⁾."""
    return [z * tower[0], *(torch.add(z * tower[k], tower[k - 1], alpha=k) for k in range(1, len(tower)))]


def _silu(z: Tensor, order: int) -> list[Tensor]:
    return _times_z(z, _sigmoid(z, order))


def _gaussian(z: Tensor, order: int) -> list[Tensor]:
    """exp(-z²/2), whose k-th derivative is (-1)ᵏ Heₖ(z) times it, Heₖ₊₁ = z Heₖ - k Heₖ₋₁."""
    bell = (z * z * -0.5).exp()
    levels = [bell, -z * bell]
    for k in range(1, order):
        levels.append(-z * levels[k] - k * levels[k - 1])
    return levels[: order + 1]


def _normal_cdf(z: Tensor) -> Tensor:
    # erfc and not 1 + erf, which has no digits left in the lower tail
    return torch.special.erfc(z * -math.sqrt(0.5)) * 0.5


def _gelu(z: Tensor, order: int) -> list[Tensor]:
    density = [level / math.sqrt(2.0 * math.pi) for level in _gaussian(z, order - 1)] if order else []
    return _times_z(z, [_normal_cdf(z), *density])


def _identity(z: Tensor, order: int) -> list[Tensor]:
    zero = torch.zeros_like(z)
    return [z, torch.ones_like(z), *[zero] * (order - 1)][: order + 1]


#: Activations by name. ``gelu`` is the exact one, zΦ(z); ``gaussian`` is exp(-z²/2).
ACTIVATIONS: dict[str, Activation] = {
    known.name: known
    for known in (
        Activation("tanh", _tanh, torch.tanh),
        Activation("sigmoid", _sigmoid, torch.sigmoid),
        Activation("sin", _sin, torch.sin),
        Activation("cos", _cos, torch.cos),
        Activation("exp", _exp, torch.exp),
        Activation("softplus", _softplus, _softplus_value),
        Activation("silu", _silu),
        Activation("gelu", _gelu),
        Activation("gaussian", _gaussian),
        Activation("identity", _identity),
        Activation("relu", None, torch.relu),
    )
}
