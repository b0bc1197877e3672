"""Products, powers, exp, log and composition of jets, into jets and out of them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pyg_kpnn import jets
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.jets import JetSpace

D = torch.float64
FOURTH = JetSpace(2, 4)

# Taylor coefficients at (0, 0) of functions of f = 2 + x - y/2 + xy + x^2/3 - y^3/4, from sympy 1.14:
# diff(g(f), x, a, y, b).subs({x: 0, y: 0}) / (a! b!) to 17 digits, rows as in JetSpace(2, 4).indices.
F = [2, -1 / 2, 1, 0, 1, 1 / 3, -1 / 4, 0, 0, 0, 0, 0, 0, 0, 0]
OF_F = {
    "exp": [7.3890560989306502, -3.6945280494653251, 7.3890560989306502, 0.92363201236633128,
            3.6945280494653251, 6.1575467491088752, -2.0012026934603844, -2.7708960370989938,
            4.3102827243762126, 3.6945280494653251, 0.94287434595729651, -1.0775706810940532,
            0.76969334363860940, 4.3102827243762126, 1.9498898038844771],
    "log": [0.69314718055994531, -1 / 4, 1 / 2, -1 / 32, 5 / 8, 1 / 24, -0.13020833333333333, 0.15625,
            -0.27083333333333333, -1 / 24, -0.0322265625, 0.1015625, -0.26302083333333333, 0.03125,
            0.012152777777777778],
    "reciprocal": [1 / 2, 1 / 8, -1 / 4, 1 / 32, -3 / 8, 1 / 24, 0.0703125, -0.171875, 0.30208333333333333,
                   1 / 48, 0.033203125, -0.125, 0.34375, -0.10416666666666667, -0.017361111111111111],
    "sqrt": [1.4142135623730950, -0.17677669529663688, 0.35355339059327376, -0.011048543456039805,
             0.39774756441743298, 0.073656956373598700, -0.089769415580323416, 0.052480581416189074,
             -0.090229771557658408, -0.018414239093399675, -0.011264335320415583, 0.032109829419115683,
             -0.079756673073287343, -0.00046035597733499188, 0.0026854098677874526],
    "power": [5.6568542494923802, -3.5355339059327376, 7.0710678118654752, 0.66291260736238830,
              4.4194173824159220, 5.0086730334047116, -1.7953883116064683, -2.4859222776089561,
              4.0879610787347279, 1.9887378220871649, 0.66204943990488519, -1.1531917232241547,
              2.0232645203872893, 2.2373300498480605, 0.50178801529514115],
    "sin": [0.90929742682568170, 0.20807341827357119, -0.41614683654714239, -0.11366217835321021,
            0.038501876865698461, -0.59336432559522164, 0.095366983375386797, 0.50666706798123365,
            -0.86178456482485368, -0.23374133618403683, -0.11129421630418500, 0.26039901488261152,
            -0.58855159098700934, -0.24015831566165324, 0.056728675163055930],
}  # fmt: skip
APPLY = {
    "exp": jets.exp,
    "log": jets.log,
    "reciprocal": jets.reciprocal,
    "sqrt": jets.sqrt,
    "power": lambda jet, space: jets.power(jet, 2.5, space),
    "sin": lambda jet, space: jets.compose(
        jets.activation("sin").derivatives(jet[0], space.order), jet, space
    ),
}


@pytest.mark.parametrize("name", APPLY)
def test_functions_of_a_polynomial(name):
    got = APPLY[name](torch.tensor(F, dtype=D), FOURTH)
    torch.testing.assert_close(got, torch.tensor(OF_F[name], dtype=D), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", APPLY)
def test_batched_over_any_axes(name):
    space = JetSpace(2, 4)
    jet = torch.tensor(F, dtype=D)
    wide = torch.stack([jet, 2 * jet, jet + 1]).T.reshape(15, 3, 1).expand(15, 3, 2)
    got = APPLY[name](wide, space)
    for column, one in enumerate((jet, 2 * jet, jet + 1)):
        for copy in range(2):
            torch.testing.assert_close(got[:, column, copy], APPLY[name](one, space), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", APPLY)
@pytest.mark.parametrize("order", range(4))
def test_lower_orders_are_a_prefix(name, order):
    space = JetSpace(2, order)
    jet = torch.tensor(F, dtype=D)
    got = APPLY[name](jet[: space.size], space)
    torch.testing.assert_close(got, APPLY[name](jet, FOURTH)[: space.size], rtol=1e-15, atol=0)


@pytest.mark.parametrize(("n_vars", "order"), [(1, 5), (2, 3), (3, 4)])
def test_product_of_integer_polynomials_is_exact(n_vars, order, gen):
    space = JetSpace(n_vars, order)
    left, right = torch.randint(-9, 10, (2, space.size), generator=gen).double()
    expected = torch.zeros(space.size, dtype=D)
    for (i, a), (j, b) in itertools.product(enumerate(space.indices), enumerate(space.indices)):
        total = tuple(x + y for x, y in zip(a, b, strict=True))
        if sum(total) <= order:
            expected[space.position(total)] += left[i] * right[j]
    assert torch.equal(jets.product(left, right, space), expected)


def test_product_broadcasts_trailing_axes(gen):
    space = JetSpace(2, 3)
    left = torch.randn(space.size, 3, 5, generator=gen, dtype=D)
    right = torch.randn(space.size, 5, generator=gen, dtype=D)
    got = jets.product(left, right, space)
    assert got.shape == (10, 3, 5)
    torch.testing.assert_close(got, jets.product(right, left, space))
    for row in range(3):
        torch.testing.assert_close(got[:, row], jets.product(left[:, row], right, space))


def test_functions_undo_each_other(gen):
    space = JetSpace(3, 4)
    jet = torch.randn(space.size, 7, generator=gen, dtype=D) * 0.3
    jet[0] = jet[0].abs() + 1.0
    torch.testing.assert_close(jets.log(jets.exp(jet, space), space), jet)
    root = jets.sqrt(jet, space)
    torch.testing.assert_close(jets.product(root, root, space), jet)
    one = jets.product(jets.reciprocal(jet, space), jet, space)
    torch.testing.assert_close(one, jets.constant(torch.ones(7, dtype=D), space))


def test_compose_by_hand():
    # sigma(f) with f = a + bx + cy to order 2 in two variables; sigma', sigma'' at a are 3 and 8
    jet = torch.tensor([7.0, 5.0, 2.0, 0.0, 0.0, 0.0], dtype=D)  # rows 1, y, x: b = 2, c = 5
    tower = [torch.tensor(v, dtype=D) for v in (11.0, 3.0, 8.0)]
    got = jets.compose(tower, jet, JetSpace(2, 2))
    assert got.tolist() == [11.0, 15.0, 6.0, 4 * 25.0, 8 * 10.0, 4 * 4.0]


def test_variables_and_constants():
    space = JetSpace(3, 2)
    x = torch.tensor([[5.0, 7.0, 9.0], [1.0, 2.0, 3.0]])
    jet = jets.variables(x, space)
    assert jet.shape == (10, 2, 3)
    assert torch.equal(jet[0], x)
    for variable in range(3):
        alpha = tuple(int(v == variable) for v in range(3))
        unit = torch.zeros(2, 3)
        unit[:, variable] = 1.0
        assert torch.equal(jet[space.position(alpha)], unit)
    assert not jet[4:].any()
    assert torch.equal(jets.variables(x, JetSpace(3, 0)), x.unsqueeze(0))
    flat = jets.constant(x, space)
    assert flat.shape == (10, 2, 3)
    assert torch.equal(flat[0], x)
    assert not flat[1:].any()


def test_a_whole_function_by_arithmetic(taylor, gen):
    """1 / sqrt(log(2 + x·y + z^2) + exp(-x)) at two points, the variables as jets."""
    space = JetSpace(3, 4)
    points = torch.rand(2, 3, generator=gen, dtype=D)

    def plain(p):
        return (torch.log(2 + p[0] * p[1] + p[2] ** 2) + torch.exp(-p[0])) ** -0.5

    v = jets.variables(points, space)
    inner = jets.product(v[..., 0], v[..., 1], space) + jets.product(v[..., 2], v[..., 2], space)
    inner = inner + jets.constant(torch.full((2,), 2.0, dtype=D), space)
    outer = jets.log(inner, space) + jets.exp(-v[..., 0], space)
    got = jets.reciprocal(jets.sqrt(outer, space), space)
    expected = torch.stack([taylor(plain, p, space) for p in points], dim=1)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


def test_partials_are_raw(gen):
    space = JetSpace(2, 4)
    jet = torch.randn(space.size, 3, generator=gen, dtype=D)
    found = jets.partials(jet, space)
    assert tuple(found) == space.indices
    for row, (alpha, value) in enumerate(found.items()):
        torch.testing.assert_close(value, jet[row] * math.factorial(alpha[0]) * math.factorial(alpha[1]))


def test_gradient_and_hessian_of_a_quadratic(gen):
    space = JetSpace(4, 2)
    matrix = torch.randn(4, 4, generator=gen, dtype=D)
    slope = torch.randn(4, generator=gen, dtype=D)
    v = jets.variables(torch.randn(4, generator=gen, dtype=D), space)
    moved = v @ matrix  # x^T A x + s x
    jet = jets.product(v, moved, space).sum(-1) + v @ slope
    x = v[0]
    torch.testing.assert_close(jets.gradient(jet, space), (matrix + matrix.T) @ x + slope)
    hessian = jets.hessian(jet, space)
    torch.testing.assert_close(hessian, matrix + matrix.T)
    assert torch.equal(hessian, hessian.T)
    wide = jets.hessian(jet.unsqueeze(1).expand(-1, 3), space)
    assert torch.equal(wide, hessian.unsqueeze(-1).expand(-1, -1, 3))


@pytest.mark.parametrize("name", APPLY)
def test_differentiable_twice(name, gen):
    space = JetSpace(2, 3)
    jet = torch.randn(space.size, 2, generator=gen, dtype=D) * 0.3
    jet[0] = 1.5
    jet.requires_grad_(True)
    assert gradcheck(lambda j: APPLY[name](j, space), jet)
    assert gradgradcheck(lambda j: APPLY[name](j, space), jet)


def test_vmap(gen):
    space = JetSpace(3, 3)
    left, right = torch.randn(2, 5, space.size, 2, generator=gen, dtype=D)
    got = torch.func.vmap(lambda a, b: jets.product(a, b, space))(left, right)
    for sample in range(5):
        torch.testing.assert_close(got[sample], jets.product(left[sample], right[sample], space))
    got = torch.func.vmap(lambda a: jets.exp(a, space), in_dims=1, out_dims=1)(left[0])
    torch.testing.assert_close(got, jets.exp(left[0], space))


def test_refuses_jets_of_another_space():
    space, wrong = JetSpace(2, 2), torch.zeros(5)
    for call in (jets.exp, jets.log, jets.sqrt, jets.reciprocal, jets.partials, jets.gradient, jets.hessian):
        with pytest.raises(PriorGraphError, match=r"tensor with 6 rows along axis 0, got shape \(5,\)"):
            call(wrong, space)
    with pytest.raises(PriorGraphError, match="6 rows"):
        jets.product(torch.zeros(6), wrong, space)
    with pytest.raises(PriorGraphError, match="tower must hold derivatives 0 to 2, 3 tensors, got 2"):
        jets.compose([torch.zeros(1)] * 2, torch.zeros(6, 1), space)
    with pytest.raises(PriorGraphError, match=r"x must be a tensor of shape \(\.\.\., 2\), got shape \(3,\)"):
        jets.variables(torch.zeros(3), space)
    with pytest.raises(PriorGraphError, match="order 1 or more, got order 0"):
        jets.gradient(torch.zeros(1), JetSpace(2, 0))
    with pytest.raises(PriorGraphError, match="order 2 or more, got order 1"):
        jets.hessian(torch.zeros(3), JetSpace(2, 1))
