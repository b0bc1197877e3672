"""AttentionJetMLP: an encoder and one attention over a trained memory, with exact input derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoint import AllOrNothing
from ..errors import PriorGraphError
from ..jets import Activation, AttentionNet, JetSpace, activation, native, second_order
from ..jets.parameters import fitting, normals, raw_temperature, temperature
from ..ops.precision import without_autocast
from .checks import flag, positive_int

__all__ = ["AttentionJetMLP", "make_attention_jet_mlp"]


class AttentionJetMLP(AllOrNothing):
    r"""A network whose derivatives in its input are exact, of any order, and cheap.

    .. math::
        u(x) = W_o \big[\operatorname{softmax}(\beta\, q(x) K^\top)\, V + q(x)\big] + b_o, \qquad
        q(x) = \sigma(W_L\, \sigma(\cdots \sigma(W_1 x + b_1) \cdots) + b_L)

    The encoder q asks a memory of trained slots, keys K and values V, which does not depend on x:
    the softmax divides the input space softly among the slots. Physics-informed training, sensitivities
    and curvature penalties need :math:`\nabla u`, :math:`\nabla^2 u` and beyond as part of a loss; here
    they are matrix products, differentiable in the parameters and in x like any other output.

    Parameters
    ----------
    in_dim, hidden : int
        Size of x, and width of every encoder layer, of the query and of the keys.
    out_dim : int, default 1
        Size of u.
    depth : int, default 2
        Number L of encoder layers, all of them activated.
    base : str, Activation or callable, default "tanh"
        The activation σ: a name in :data:`pyg_kpnn.jets.ACTIVATIONS`, or a function
        ``tower(z, order)`` that returns its derivatives 0 to ``order`` at ``z``.
    memory : int, default 16
        Number of slots.
    value_dim : int, optional
        Width of the values; ``hidden`` when not given, and always with ``residual``.
    beta : float, default 1.0
        Inverse temperature, > 0. Larger is sharper.
    learnable_temperature : bool, default True
        Whether ``beta`` is trained.
    residual : bool, default True
        Whether q is added to what the memory answers.
    seed : int or None, default 0
        Seed of a generator of this network's own; None draws from torch's default generator.
    weight_init_scale : float, default 1.0
        Factor of the initial encoder and readout weights.
    dtype : torch.dtype, optional
        Floating point type of the parameters; torch's default when not given.

    Attributes
    ----------
    weights, biases : nn.ParameterList
        Encoder, ``(hidden, in_dim)`` then ``(hidden, hidden)``, and ``(hidden,)``.
    keys, values : nn.Parameter
        ``(memory, hidden)`` and ``(memory, value_dim)``.
    readout_weight, readout_bias : nn.Parameter
        ``(out_dim, value_dim)`` and ``(out_dim,)``.
    beta_raw : nn.Parameter
        ``()``, any real number; see :attr:`beta`.
    depth, memory, value_dim, in_dim, hidden, out_dim : int
        Sizes.
    residual : bool
        As given.
    spec : Activation
        The activation.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule above.

    Notes
    -----
    Weights start as normals with standard deviation ``weight_init_scale / sqrt(fan_in)``, biases as
    zeros, keys as normals over ``sqrt(hidden)`` so that first scores are of order 1, values as standard
    normals. Computations run in the dtype of the parameters and leave ``torch.autocast`` at the door.

    First and second derivatives come from :mod:`pyg_kpnn.jets.second_order`, higher ones from the
    arithmetic of truncated Taylor series in :mod:`pyg_kpnn.jets`.

    Examples
    --------
    >>> import torch
    >>> net = AttentionJetMLP(in_dim=2, hidden=8, dtype=torch.float64)
    >>> x = torch.rand(5, 2, dtype=torch.float64)
    >>> net(x).shape, net.gradient(x).shape, net.hessian(x).shape
    (torch.Size([5, 1]), torch.Size([5, 2, 1]), torch.Size([5, 2, 2, 1]))
    >>> torch.allclose(net.laplacian(x), net.partials(x, 2)[2, 0] + net.partials(x, 2)[0, 2])
    True
    >>> loss = (net.laplacian(x) + 1.0).square().mean()  # a Poisson equation
    >>> loss.backward()
    >>> net.keys.grad.shape
    torch.Size([16, 8])
    """

    def __init__(
        self,
        in_dim: int,
        hidden: int,
        out_dim: int = 1,
        depth: int = 2,
        base: str | Activation | Callable[[Tensor, int], Sequence[Tensor]] = "tanh",
        *,
        memory: int = 16,
        value_dim: int | None = None,
        beta: float = 1.0,
        learnable_temperature: bool = True,
        residual: bool = True,
        seed: int | None = 0,
        weight_init_scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"in_dim": in_dim, "hidden": hidden, "out_dim": out_dim, "depth": depth, "memory": memory}
        in_dim, hidden, out_dim, depth, memory = (positive_int(name, size) for name, size in sizes.items())
        value_dim = hidden if value_dim is None else positive_int("value_dim", value_dim)
        scale = _number("weight_init_scale", weight_init_scale)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise PriorGraphError(f"dtype must be a floating point torch.dtype, got {dtype!r}.")
        draw = normals(seed, dtype)
        widths = [in_dim, *[hidden] * depth]
        weights = [draw(out, fan, scale / math.sqrt(fan)) for fan, out in pairwise(widths)]
        keys = draw(memory, hidden, 1.0 / math.sqrt(hidden))
        values = draw(memory, value_dim, 1.0)
        readout = draw(out_dim, value_dim, scale / math.sqrt(value_dim))
        zeros = [weight.new_zeros(weight.shape[0]) for weight in (*weights, readout)]
        self._hold(weights, zeros[:-1], keys, values, readout, zeros[-1], beta, activation(base), residual)
        self.beta_raw.requires_grad_(flag("learnable_temperature", learnable_temperature))

    @classmethod
    def from_parameters(
        cls,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        keys: Tensor,
        values: Tensor,
        readout_weight: Tensor,
        readout_bias: Tensor,
        beta: Tensor | float,
        spec: str | Activation | Callable[[Tensor, int], Sequence[Tensor]],
        in_dim: int,
        out_dim: int,
        residual: bool = True,
    ) -> AttentionJetMLP:
        """Build a network from given tensors, which are copied.

        Parameters
        ----------
        weights, biases, keys, values, readout_weight, readout_bias
            As the attributes of those names, of one floating point dtype and device.
        beta : Tensor or float
            Inverse temperature, one number > 0.
        spec
            As ``base`` in the constructor.
        in_dim, out_dim : int
            Sizes of x and u, as the weights have them.
        residual : bool, default True
            Whether the query is added to what the memory answers.

        Returns
        -------
        AttentionJetMLP

        Raises
        ------
        PriorGraphError
            If shapes, dtypes or devices do not fit together.

        Examples
        --------
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> net = AttentionJetMLP.from_parameters([one], [one[0]], one, one, one, one[0], 1.0, "exp", 1, 1)
        >>> net(torch.tensor([[-1.0]])).item()
        3.0
        """
        net = cls.__new__(cls)
        parts = (list(weights), list(biases), keys, values, readout_weight, readout_bias)
        sizes = positive_int("in_dim", in_dim), positive_int("out_dim", out_dim)
        net._hold(*fitting(*parts, *sizes), beta, activation(spec), residual)
        return net

    def _hold(
        self,
        weights: list[Tensor],
        biases: list[Tensor],
        keys: Tensor,
        values: Tensor,
        readout_weight: Tensor,
        readout_bias: Tensor,
        beta: Any,
        spec: Activation,
        residual: bool,
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(biases)
        self.keys, self.values = nn.Parameter(keys), nn.Parameter(values)
        self.readout_weight, self.readout_bias = nn.Parameter(readout_weight), nn.Parameter(readout_bias)
        self.depth, (self.hidden, self.in_dim) = len(weights), weights[0].shape
        self.memory, self.value_dim = values.shape
        self.out_dim = readout_bias.shape[0]
        self.spec = spec
        self.residual = flag("residual", residual)
        if self.residual and self.value_dim != self.hidden:
            raise PriorGraphError(
                f"residual needs value_dim == hidden, got {self.value_dim} and {self.hidden}; pass "
                "residual=False for values of another width."
            )
        self.beta_raw = nn.Parameter(raw_temperature(_number("beta", beta), keys))

    @property
    def beta(self) -> Tensor:
        """Inverse temperature, ``()``, > 0: (r + √(r² + 4)) / 2 of r = :attr:`beta_raw`.

        Smooth and positive for every r. About r for large and -1/r for small β, so that no digit is lost
        on the way to r = β - 1/β and back.
        """
        return temperature(self.beta_raw)

    def forward(self, x: Tensor) -> Tensor:
        """u at ``x``, as :meth:`value`."""
        return self.value(x)

    def value(self, x: Tensor) -> Tensor:
        """u, ``(..., out_dim)``, at ``x`` ``(..., in_dim)``; leading axes as you like, here and below.

        Raises
        ------
        PriorGraphError
            If ``x`` is not a floating point tensor of that shape.
        """
        return self._run(x, second_order.value, self.out_dim)

    def query(self, x: Tensor) -> Tensor:
        """Encoder output q, ``(..., hidden)``."""
        return self._run(x, lambda net, points: net.encode(points)[0], self.hidden)

    def attention_weights(self, x: Tensor) -> Tensor:
        """Share of each slot in the answer, ``(..., memory)``; they sum to 1."""
        return self._run(x, lambda net, points: net.weigh(net.encode(points)[0]), self.memory)

    def jet(self, x: Tensor, order: int) -> Tensor:
        r"""Taylor coefficients :math:`D^\alpha u / \alpha!` to a total order, ``(..., M, out_dim)``.

        Parameters
        ----------
        x : Tensor
            ``(..., in_dim)``.
        order : int
            Highest total order, >= 0.

        Returns
        -------
        Tensor
            Along axis -2 one multi-index a row, by total order, then ascending lexicographic: with
            two inputs (0,0), (0,1), (1,0), (0,2), (1,1), (2,0). ``JetSpace(in_dim, order).indices``
            lists them.

        Raises
        ------
        PriorGraphError
            If an argument is not as above, or the activation has no tower of derivatives.

        Examples
        --------
        >>> net = AttentionJetMLP(in_dim=3, hidden=4)
        >>> net.jet(torch.zeros(7, 3), order=4).shape
        torch.Size([7, 35, 1])
        """
        space = JetSpace(self.in_dim, order)
        self.spec.require_tower()

        def rows(net: AttentionNet, points: Tensor) -> Tensor:
            if order <= 2:
                return second_order.jet(net, points, order)
            found = native.taylor(net, points, space)
            return net.jet(points, order).transpose(0, 1) if found is None else found

        return self._run(x, rows, space.size, self.out_dim)

    def partials(self, x: Tensor, order: int) -> dict[tuple[int, ...], Tensor]:
        r"""Raw partial derivatives :math:`D^\alpha u`, each ``(..., out_dim)``, by multi-index.

        Raises
        ------
        PriorGraphError
            As :meth:`jet`.
        """
        space, jet = JetSpace(self.in_dim, order), self.jet(x, order)
        raw = jet * space.factorials(jet).unsqueeze(-1)
        return dict(zip(space.indices, raw.unbind(-2), strict=True))

    def gradient(self, x: Tensor) -> Tensor:
        """First derivatives, ``(..., in_dim, out_dim)``.

        Raises
        ------
        PriorGraphError
            If ``x`` is not as in :meth:`value`, or the activation has no tower of derivatives. The
            methods below raise the same.
        """
        return self._run(x, second_order.gradient, self.in_dim, self.out_dim)

    def hessian(self, x: Tensor) -> Tensor:
        """Second derivatives, ``(..., in_dim, in_dim, out_dim)``, symmetric to the last bit."""
        return self._run(x, second_order.hessian, self.in_dim, self.in_dim, self.out_dim)

    def value_grad_hessian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`value`, :meth:`gradient` and :meth:`hessian` return, from one pass."""
        points = self._points(x)
        with without_autocast(x.device.type):
            u, first, second = second_order.value_gradient_hessian(self._net(), points)
        lead = x.shape[:-1]
        return (
            u.reshape(*lead, self.out_dim),
            first.reshape(*lead, self.in_dim, self.out_dim),
            second.reshape(*lead, self.in_dim, self.in_dim, self.out_dim),
        )

    def laplacian(self, x: Tensor) -> Tensor:
        """Sum of the unmixed second derivatives, ``(..., out_dim)``, without the mixed ones."""
        return self._run(x, second_order.laplacian, self.out_dim)

    def _run(self, x: Tensor, function: Callable[[AttentionNet, Tensor], Tensor], *shape: int) -> Tensor:
        """``function`` of this network at the points ``x``; ``shape`` is that of its result at one point."""
        points = self._points(x)
        with without_autocast(x.device.type):
            return function(self._net(), points).reshape(*x.shape[:-1], *shape)

    def _net(self) -> AttentionNet:
        return AttentionNet(
            tuple(self.weights),
            tuple(self.biases),
            self.keys * self.beta,
            self.values,
            self.readout_weight,
            self.readout_bias,
            self.spec,
            self.residual,
        )

    def _points(self, x: Tensor) -> Tensor:
        """``x`` as rows (B, in_dim) in the dtype of the parameters."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            what = f"dtype {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise PriorGraphError(f"x must be a floating-point tensor, got {what}.")
        if x.dim() == 0 or x.shape[-1] != self.in_dim:
            raise PriorGraphError(
                f"x must have a last axis of in_dim={self.in_dim} coordinates, got shape {tuple(x.shape)}."
            )
        return x.to(self.keys.dtype).reshape(-1, self.in_dim)

    def extra_repr(self) -> str:
        names = ("in_dim", "hidden", "out_dim", "depth", "memory", "value_dim", "residual")
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{sizes}, base={self.spec.name!r}"


def make_attention_jet_mlp(
    in_dim: int,
    hidden: int,
    out_dim: int = 1,
    depth: int = 2,
    base: str | Activation | Callable[[Tensor, int], Sequence[Tensor]] = "tanh",
    *,
    memory: int = 16,
    value_dim: int | None = None,
    beta: float = 1.0,
    residual: bool = True,
    seed: int = 0,
    weight_init_scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> AttentionJetMLP:
    """Build an :class:`AttentionJetMLP`, in double precision unless told otherwise.

    Parameters, and the errors they raise, are those of the class.

    Examples
    --------
    >>> make_attention_jet_mlp(2, 8)(torch.zeros(2, dtype=torch.float64)).dtype
    torch.float64
    """
    return AttentionJetMLP(
        in_dim,
        hidden,
        out_dim,
        depth,
        base,
        memory=memory,
        value_dim=value_dim,
        beta=beta,
        residual=residual,
        seed=seed,
        weight_init_scale=weight_init_scale,
        dtype=dtype,
    )


def _number(name: str, value: Any) -> float:
    """A finite number > 0, given as one or as a tensor of one element."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    good = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    if not good or not 0.0 < value < math.inf:
        shown = f"a {type(value).__name__}" if isinstance(value, (Tensor, np.ndarray)) else repr(value)
        raise PriorGraphError(f"{name} must be a finite number > 0, got {shown}.")
    return float(value)
