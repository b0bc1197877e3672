"""Affine maps, ridge functions, softmax over an axis and over edges, layer norm."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from pyg_kpnn import jets
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.jets import JetSpace
from pyg_kpnn.ops import EdgeLayout

D = torch.float64
# 5 sources, 4 targets; target 2 has no edge, target 3 one, edge 1 -> 0 comes twice
EDGES = torch.tensor([[1, 4, 1, 0, 3, 2, 2], [0, 1, 0, 1, 0, 3, 1]])

# Softmax over f / 2, x - y^2 and 1/3 + xy / 2 at (0, 0) with f = 2 + x - y/2 + xy + x^2/3 - y^3/4:
# Taylor coefficients from sympy 1.14 as in test_algebra.
SCORES = [
    [1, -1 / 4, 1 / 2, 0, 1 / 2, 1 / 6, -1 / 8, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, 1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [1 / 3, 0, 0, 0, 1 / 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
]
WEIGHTS = [
    [0.53154830618068312, -0.062251176094282468, 0.020560369850507245, 0.10345100254717518,
     0.052295313590644790, 0.011170474268836338, -0.029165638824928901, 0.060514354270495166,
     0.030287874345708453, -0.0017366564065759077, -0.033736176110777031, -0.030277306412490102,
     -0.0028599936913665788, 0.0021943229459779152, 0.0011322001506826571],
    [0.19554569383337643, 0.025985495584514423, 0.10533658428757099, -0.15710262586386057,
     -0.063650794042098569, -0.00025648072597647501, -0.0029637689346113632, -0.071799851785446806,
     -0.031016735338827417, -0.011120947860911015, 0.048646246599290340, 0.051933585016768786,
     0.021552701734883082, 0.0043561020524587567, -0.0013956076436019092],
    [0.27290599998594046, 0.036265680509768045, -0.12589695413807823, 0.053651623316685392,
     0.011355480451453780, -0.010913993542859863, 0.032129407759540265, 0.011285497514951640,
     0.00072886099311896420, 0.012857604267486923, -0.014910070488513309, -0.021656278604278683,
     -0.018692708043516503, -0.0065504249984366720, 0.00026340749291925212],
]  # fmt: skip

# tanh and its derivatives 1 to 4 from mpmath 1.3 with 700 digits
TANH = {
    0.7: [0.6043677771171635, 0.63473958998245859, -0.76723231009191655, 0.1215922773832365,
          2.7749834227807854],
    5.0: [0.99990920426259513, 0.00018158323094380668, -0.00036313348792090557, 0.00072613508895666679,
          -0.0014517426842596154],
    20.0: [1.0, 1.6993417021166356e-17, -3.3986834042332711e-17, 6.7973668084665422e-17,
           -1.3594733616933084e-16],
    300.0: [1.0, 1.0601586212017243e-260, -2.1203172424034487e-260, 4.2406344848068973e-260,
            -8.4812689696137946e-260],
}  # fmt: skip


@pytest.fixture
def layout() -> EdgeLayout:
    return EdgeLayout(EDGES, 5, 4)


def by_target(scores, layout):
    """Softmax over edges, the edges along axis 0, target by target."""
    parts = [scores[layout.target == t].softmax(0) for t in range(layout.num_targets)]
    return torch.cat(parts)  # the layout sorts its edges by target


def test_affine_by_hand():
    jet = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    weight, bias = torch.tensor([[1.0, 10.0]]), torch.tensor([100.0])
    assert jets.affine(jet, weight, bias).tolist() == [[121.0], [43.0]]
    assert jets.affine(jet, weight).tolist() == [[21.0], [43.0]]


@pytest.mark.parametrize("n_vars", [1, 2, 3])
@pytest.mark.parametrize("name", ["tanh", "exp"])
def test_ridge_is_affine_then_compose(n_vars, name, gen):
    space = JetSpace(n_vars, 4)
    weight, bias = torch.randn(5, n_vars, generator=gen, dtype=D), torch.randn(5, generator=gen, dtype=D)
    x = torch.randn(2, 3, n_vars, generator=gen, dtype=D)
    inner = jets.affine(jets.variables(x, space), weight, bias)
    tower = jets.activation(name).derivatives(inner[0], 4)
    expected = jets.compose(tower, inner, space)
    torch.testing.assert_close(jets.ridge(tower, weight, space), expected, rtol=1e-13, atol=1e-15)


def test_softmax_of_polynomials():
    got = jets.softmax(torch.tensor(SCORES, dtype=D).T, JetSpace(2, 4))
    torch.testing.assert_close(got, torch.tensor(WEIGHTS, dtype=D).T, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("n_vars", [1, 2, 3])
def test_softmax_along_any_axis(n_vars, taylor, gen):
    space = JetSpace(n_vars, 4)
    weight = torch.randn(3, 4, n_vars, generator=gen, dtype=D)
    x = torch.randn(n_vars, generator=gen, dtype=D)

    def scores(p):
        return (weight @ p).sin() * 2.0

    jet = taylor(scores, x, space)
    for dim in (0, 1):
        expected = taylor(lambda p, dim=dim: scores(p).softmax(dim), x, space)
        for given in (dim + 1, dim - 2):
            got = jets.softmax(jet, space, given)
            torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)
            sums = got.sum(dim + 1)
            torch.testing.assert_close(sums[0], torch.ones_like(sums[0]))
            for part, total in zip(space.grades(got)[1:], space.grades(sums)[1:], strict=True):
                assert total.abs().max() < 1e-13 * part.abs().max()


@pytest.mark.parametrize("at", TANH)
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_softmax_is_exact_at_any_scale(at, scale):
    # Of scores z, -z the softmax is (1 + tanh z) / 2 and (1 - tanh z) / 2; here z = scale * x.
    space = JetSpace(1, 4)
    jet = torch.tensor([[at, -at], [scale, -scale], [0, 0], [0, 0], [0, 0]], dtype=D)
    for offset in (0.0, 400.0, -1e6):
        moved = jet.clone()
        moved[0] += offset
        got = jets.softmax(moved, space)[1:].T
        fact = torch.tensor([1.0, 2.0, 6.0, 24.0], dtype=D)
        expected = torch.tensor(TANH[at][1:], dtype=D) * scale ** torch.arange(1, 5, dtype=D) / fact / 2.0
        # the offset costs the scores digits, before they get here
        rtol = 1e-12 if abs(offset) < 1e3 else 1e-8
        torch.testing.assert_close(got[0], expected, rtol=rtol, atol=0)
        torch.testing.assert_close(got[1], -expected, rtol=rtol, atol=0)


def test_softmax_shift_leaves_no_trace(gen):
    space = JetSpace(2, 2)
    jet = torch.randn(space.size, 3, generator=gen, dtype=D, requires_grad=True)
    seen, stack = set(), [jets.softmax(jet, space).grad_fn]
    while stack:
        node = stack.pop()
        seen.add(type(node).__name__)
        stack += [above for above, _ in node.next_functions if above is not None]
    assert not any("Gather" in name or "Max" in name for name in seen)


def test_edge_softmax_is_a_softmax_per_target(layout, taylor, gen):
    space = JetSpace(2, 4)
    weight = torch.randn(7, 3, 2, generator=gen, dtype=D)
    x = torch.randn(2, generator=gen, dtype=D)

    def scores(p):
        return (weight @ p).cos() * 3.0

    jet = taylor(scores, x, space)
    expected = taylor(lambda p: by_target(scores(p), layout), x, space)
    got = jets.edge_softmax(jet, layout, space)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)
    sums = torch.zeros(space.size, 4, 3, dtype=D).index_add(1, layout.target, got)
    assert torch.equal(sums[:, 2], torch.zeros(space.size, 3, dtype=D))
    torch.testing.assert_close(sums[0, [0, 1, 3]], torch.ones(3, 3, dtype=D))
    assert sums[1:].abs().max() < 1e-14
    # batch axes before, no head axis, edges elsewhere
    wide = jets.edge_softmax(jet.unsqueeze(1).expand(-1, 2, -1, -1), layout, space)
    torch.testing.assert_close(wide, got.unsqueeze(1).expand(-1, 2, -1, -1))
    torch.testing.assert_close(jets.edge_softmax(jet[..., 0], layout, space, dim=-1), got[..., 0])
    torch.testing.assert_close(jets.edge_softmax(jet.mT, layout, space, dim=2), got.mT)


def test_edge_softmax_does_not_mix_groups(layout):
    """Targets with scores a million apart, ties and a lone edge."""
    space = JetSpace(1, 2)
    value = torch.tensor([1e6, 1e6, 1e6, -300.0, 0.0, 300.0, -1e6], dtype=D)
    slope = torch.arange(7.0, dtype=D)
    jet = torch.stack([value, slope, torch.zeros(7, dtype=D)])
    got = jets.edge_softmax(jet, layout, space, dim=-1)
    thirds = torch.tensor([0.0, 1.0, 2.0], dtype=D)
    expected = jets.softmax(torch.stack([0 * thirds, thirds, 0 * thirds]), space)
    torch.testing.assert_close(got[:, :3], expected)
    assert got[:, 6].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(got[0, 3:6], torch.tensor([0.0, 0.0, 1.0], dtype=D), atol=1e-100, rtol=0)
    assert got.isfinite().all()


def test_edges_at_minus_infinity_have_no_weight(layout, gen):
    space = JetSpace(2, 2)
    jet = torch.randn(space.size, layout.num_edges, generator=gen, dtype=torch.float64)
    target = layout.target.tolist()
    away = [
        edge
        for edge in range(layout.num_edges)
        if target[edge] == target[0] or edge == target.index(target[-1])
    ]
    jet[0, away] = -torch.inf
    jet.requires_grad_()
    got = jets.edge_softmax(jet, layout, space, dim=-1)
    assert (got[:, away] == 0).all()
    kept = [edge for edge in range(layout.num_edges) if edge not in away]
    less = EdgeLayout(
        torch.stack([layout.source[kept], layout.target[kept]]), layout.num_sources, layout.num_targets
    )
    torch.testing.assert_close(got[:, kept], jets.edge_softmax(jet[:, kept], less, space, dim=-1))
    (grad,) = torch.autograd.grad(got.square().sum(), jet)
    assert grad.isfinite().all()
    assert (grad[:, away] == 0).all()


def test_edge_softmax_without_edges():
    empty = EdgeLayout(torch.zeros(2, 0, dtype=torch.int64), 3, 2)
    assert jets.edge_softmax(torch.zeros(3, 0, 2), empty, JetSpace(1, 2)).shape == (3, 0, 2)


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_layer_norm(eps, taylor, gen):
    space = JetSpace(2, 4)
    mix = torch.randn(3, 5, 2, generator=gen, dtype=D)
    weight, bias = torch.randn(2, 5, generator=gen, dtype=D)
    x = torch.randn(2, generator=gen, dtype=D)

    def hidden(p):
        return (mix @ p).sin()

    def normed(p, weight, bias):
        # not torch's layer_norm, whose nested forward-mode derivatives are wrong (torch 2.13)
        centred = hidden(p) - hidden(p).mean(-1, keepdim=True)
        out = centred * (centred.square().mean(-1, keepdim=True) + eps) ** -0.5
        return (out if weight is None else out * weight) + (0.0 if bias is None else bias)

    jet = taylor(hidden, x, space)
    torch.testing.assert_close(
        normed(x, weight, bias), functional.layer_norm(hidden(x), (5,), weight, bias, eps)
    )
    for given in ((None, None), (weight, None), (None, bias), (weight, bias)):
        expected = taylor(lambda p, given=given: normed(p, *given), x, space)
        got = jets.layer_norm(jet, space, *given, eps=eps)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_differentiable_twice(layout, gen):
    space = JetSpace(2, 2)
    scores = torch.randn(space.size, 7, generator=gen, dtype=D, requires_grad=True)
    for layer in (
        lambda s: jets.softmax(s, space),
        lambda s: jets.edge_softmax(s, layout, space, dim=-1),
        lambda s: jets.layer_norm(s, space),
        lambda s: jets.ridge(s.unbind(0)[:3], s[:2].T, space),
    ):
        assert gradcheck(layer, scores)
        assert gradgradcheck(layer, scores)


def test_vmap(layout, gen):
    space = JetSpace(2, 3)
    scores = torch.randn(3, space.size, 7, generator=gen, dtype=D)
    for layer in (
        lambda s: jets.softmax(s, space),
        lambda s: jets.edge_softmax(s, layout, space, dim=-1),
        lambda s: jets.layer_norm(s, space),
    ):
        expected = torch.stack([layer(sample) for sample in scores])
        torch.testing.assert_close(torch.func.vmap(layer)(scores), expected)


def test_compiles_whole(layout, gen):
    space = JetSpace(2, 3)
    scores = torch.randn(space.size, 7, generator=gen, dtype=D)

    def layers(s):
        inner = jets.layer_norm(jets.softmax(s, space), space)
        return jets.edge_softmax(jets.exp(inner, space), layout, space, dim=-1)

    compiled = torch.compile(layers, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), layers(scores))


def test_refuses(layout):
    space = JetSpace(1, 1)
    with pytest.raises(PriorGraphError, match="2 rows"):
        jets.softmax(torch.zeros(3, 4), space)
    for dim in (0, 2, -2, -3):
        with pytest.raises(PriorGraphError, match=rf"dim must be an axis of scores after axis 0.*got {dim} "):
            jets.softmax(torch.zeros(2, 4), space, dim)
    with pytest.raises(
        PriorGraphError, match=r"one entry an edge along axis 1, 7 of them, got shape \(2, 6\)"
    ):
        jets.edge_softmax(torch.zeros(2, 6), layout, space, dim=-1)
    with pytest.raises(PriorGraphError, match="2 rows"):
        jets.layer_norm(torch.zeros(3, 4), space)
