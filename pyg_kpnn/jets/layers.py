"""Layers on jets: affine maps, activations of affine maps, softmax over an axis or over edges, layer norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import PriorGraphError
from .algebra import Parts, accumulate, convolve, power, product
from .indices import JetSpace

if TYPE_CHECKING:
    from ..ops import EdgeLayout

__all__ = ["affine", "edge_softmax", "layer_norm", "ridge", "softmax"]


def affine(jet: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Jet of ``weight @ f + bias`` over the last axis.

    Parameters
    ----------
    jet : Tensor
        ``(size, ..., in)``.
    weight : Tensor
        ``(out, in)``.
    bias : Tensor, optional
        ``(out,)``; it enters the value and no derivative.

    Returns
    -------
    Tensor
        ``(size, ..., out)``.

    Examples
    --------
    >>> import torch
    >>> affine(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]]), torch.tensor([10.0]))
    tensor([[13.],
            [ 6.]])
    """
    mapped = jet @ weight.mT
    return mapped if bias is None else _shift(mapped, bias)


def _shift(jet: Tensor, value: Tensor) -> Tensor:
    return torch.cat([jet[:1] + value, jet[1:]])


def ridge(tower: Sequence[Tensor], weight: Tensor, space: JetSpace) -> Tensor:
    r"""Jet of :math:`\sigma(Wx + b)` in x: coefficient :math:`\sigma^{(|\alpha|)}\, W^\alpha / \alpha!`.

    What :func:`affine` and :func:`compose` give for a first layer, by one product a coefficient.

    Parameters
    ----------
    tower : sequence of Tensor
        :math:`\sigma, \sigma', \dots` at :math:`Wx + b`, each ``(..., out)``.
    weight : Tensor
        ``(out, n_vars)``.
    space : JetSpace
        Variables x and order.

    Returns
    -------
    Tensor
        ``(size, ..., out)``.

    Examples
    --------
    >>> import torch
    >>> e = torch.ones(1)
    >>> ridge([e, e, e], torch.tensor([[3.0]]), JetSpace(n_vars=1, order=2)).T
    tensor([[1.0000, 3.0000, 4.5000]])
    """
    return torch.cat(ridge_parts(tower, weight, space))


def ridge_parts(tower: Sequence[Tensor], weight: Tensor, space: JetSpace) -> list[Tensor]:
    """:func:`ridge` as homogeneous parts."""
    slope = weight.mT.flip(0)  # the first row of order 1 is the last variable's
    parts, monomials = [tower[0].unsqueeze(0)], torch.ones_like(slope[:1])
    for grade in range(1, space.order + 1):
        monomials = accumulate(None, slope / grade, 1, monomials, grade - 1, space.n_vars)
        spread = monomials.reshape(-1, *(1,) * (tower[grade].dim() - 1), monomials.shape[-1])
        parts.append(tower[grade].unsqueeze(0) * spread)
    return parts


def softmax(scores: Tensor, space: JetSpace, dim: int = -1) -> Tensor:
    r"""Jet of the softmax over one axis.

    Parameters
    ----------
    scores : Tensor
        ``(size, ...)``.
    space : JetSpace
        Variables and order.
    dim : int, default -1
        Axis to normalise over, not axis 0.

    Returns
    -------
    Tensor
        In the shape of ``scores``. Row 0 sums to 1 along ``dim``, every other row to 0.

    Raises
    ------
    PriorGraphError
        If ``scores`` does not have the rows of ``space``, or ``dim`` is axis 0 or not there.

    Notes
    -----
    With :math:`\theta`, which multiplies the part of order k by k, :math:`\theta p = p\,(\theta s -
    \sum p\,\theta s)`: one product of jets. The jet of the largest score is subtracted from all
    scores before, value and derivatives. That changes nothing but rounding, so its own derivatives
    in parameters are cut off; what is left stays finite for scores of any size, and keeps its digits
    where one weight is all but 1.

    Examples
    --------
    Scores x and -x at x = 0:

    >>> import torch
    >>> softmax(torch.tensor([[0.0, 0.0], [1.0, -1.0]]), JetSpace(n_vars=1, order=1))
    tensor([[ 0.5000,  0.5000],
            [ 0.5000, -0.5000]])
    """
    dim = _axis(scores, space, dim)
    return torch.cat(softmax_parts(space.grades(scores), space.n_vars, dim))


def softmax_parts(parts: Parts, n_vars: int, dim: int) -> list[Tensor]:
    """:func:`softmax` on the homogeneous parts of a jet; ``dim`` is at least 1."""

    def total(values: Tensor) -> Tensor:
        return values.sum(dim, keepdim=True)

    # gradients pass round the subtracted jet, as they would cancel
    frozen = [part.detach() for part in parts]
    top = frozen[0].argmax(dim, keepdim=True)
    tops = [part.gather(dim, top.expand(len(part), *top.shape[1:])) for part in frozen]
    return _normalise([part - high for part, high in zip(parts, tops, strict=True)], n_vars, total)


def edge_softmax(scores: Tensor, layout: EdgeLayout, space: JetSpace, dim: int = -2) -> Tensor:
    r"""Jet of the softmax over the edges into each target.

    Parameters
    ----------
    scores : Tensor
        ``(size, ..., E, H)``, one score an edge and head, edges in the layout's sorted order: that
        in which ``layout.source`` and ``layout.target`` list them.
    layout : EdgeLayout
        The E edges, on the same device.
    space : JetSpace
        Variables and order.
    dim : int, default -2
        Axis of the edges, not axis 0.

    Returns
    -------
    Tensor
        In the shape of ``scores``. Over the edges into a target, row 0 sums to 1 and every other row
        to 0. An edge whose score is -inf has weight 0, also where all of its target are.

    Raises
    ------
    PriorGraphError
        If ``scores`` does not have the rows of ``space``, or axis ``dim`` not one entry an edge.

    Examples
    --------
    Nodes 0 and 1 feed node 0, with scores x and -x at x = 0:

    >>> import torch
    >>> from pyg_kpnn.ops import EdgeLayout
    >>> layout = EdgeLayout(torch.tensor([[0, 1], [0, 0]]), num_sources=2, num_targets=1)
    >>> scores = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    >>> edge_softmax(scores, layout, JetSpace(n_vars=1, order=1), dim=-1)
    tensor([[ 0.5000,  0.5000],
            [ 0.5000, -0.5000]])
    """
    dim = _axis(scores, space, dim)
    edges, target = layout.num_edges, layout.target
    if scores.shape[dim] != edges:
        raise PriorGraphError(
            f"scores must hold one entry an edge along axis {dim}, {edges} of them, got shape "
            f"{tuple(scores.shape)}."
        )
    if edges == 0:
        return scores

    def total(values: Tensor) -> Tensor:
        shape = [*values.shape[:dim], layout.num_targets, *values.shape[dim + 1 :]]
        return values.new_zeros(shape).index_add(dim, target, values).index_select(dim, target)

    frozen = scores.detach()
    centred = scores - frozen.gather(dim, _largest(frozen[:1], dim, layout).expand_as(frozen))
    value, *slopes = space.grades(centred)
    # An edge at -inf has weight 0, be it the largest of its group.
    value = torch.where(frozen[:1] == -math.inf, -math.inf, value)
    return torch.cat(_normalise([value, *slopes], space.n_vars, total))


def _largest(scores: Tensor, dim: int, layout: EdgeLayout) -> Tensor:
    """Position of the edge with the largest score among those into the target of each edge."""
    shape = [1] * scores.dim()
    shape[dim] = layout.num_edges
    target = layout.target.view(shape).expand_as(scores)
    edge = torch.arange(layout.num_edges, device=scores.device).view(shape).expand_as(scores)
    nodes = [*scores.shape[:dim], layout.num_targets, *scores.shape[dim + 1 :]]
    highest = scores.new_full(nodes, -math.inf).scatter_reduce(dim, target, scores, "amax")
    # Of equal scores the first; NaN equals nothing, and any edge does.
    rank = torch.where(scores == highest.gather(dim, target), edge, layout.num_edges - 1)
    first = torch.full_like(highest, layout.num_edges - 1, dtype=torch.int64)
    return first.scatter_reduce(dim, target, rank, "amin").gather(dim, target)


def _normalise(parts: Parts, n_vars: int, total: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Softmax of shifted scores; ``total`` sums over a group and shows the sum to each member."""
    weights = parts[0].exp()
    whole = total(weights)
    result = [weights / torch.where(whole == 0, 1.0, whole)]
    slopes: list[Tensor] = [parts[0]]
    for grade in range(1, len(parts)):
        rise = parts[grade] * result[0]
        if grade > 1:
            rise = rise + convolve(slopes, result, grade, n_vars, first=1, last=grade - 1) / grade
        # Rows of weights sum to zero from order 1 on, so this is the whole mean slope.
        mean = total(rise)
        slopes.append(grade * (parts[grade] - mean))
        result.append(rise - mean * result[0])
    return result


def layer_norm(
    jet: Tensor,
    space: JetSpace,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Jet of layer normalisation over the last axis (Ba, Kiros and Hinton 2016).

    Parameters
    ----------
    jet : Tensor
        ``(size, ..., channels)``.
    space : JetSpace
        Variables and order.
    weight, bias : Tensor, optional
        ``(channels,)``, scale and shift; 1 and 0 when not given.
    eps : float, default 1e-5
        Added to the variance.

    Returns
    -------
    Tensor
        In the shape of ``jet``.

    Raises
    ------
    PriorGraphError
        If ``jet`` does not have the rows of ``space``.

    Examples
    --------
    Channels x and -x at x = 1 do not change with x but for eps:

    >>> import torch
    >>> layer_norm(torch.tensor([[1.0, -1.0], [1.0, -1.0]]), JetSpace(n_vars=1, order=1), eps=0.0)
    tensor([[ 1., -1.],
            [ 0.,  0.]])
    """
    centred = jet - jet.mean(-1, keepdim=True)
    variance = product(centred, centred, space).mean(-1, keepdim=True)
    scale = power(_shift(variance, torch.full_like(variance[0], eps)), -0.5, space)
    result = product(centred, scale, space)
    if weight is not None:
        result = result * weight
    return result if bias is None else _shift(result, bias)


def _axis(scores: Tensor, space: JetSpace, dim: int) -> int:
    space.grades(scores)
    axis = dim + scores.dim() if dim < 0 else dim
    if not 0 < axis < scores.dim():
        raise PriorGraphError(
            f"dim must be an axis of scores after axis 0, which holds the coefficients, got {dim} for "
            f"shape {tuple(scores.shape)}."
        )
    return axis
