"""Activations: derivatives of any order, values far out, what is refused."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacfwd, vmap

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.jets import ACTIVATIONS, Activation, activation

D = torch.float64
ABLE = [name for name in ACTIVATIONS if name != "relu"]

# Derivatives 0 to 6 at -1.25 and at 0.75 to 17 digits: mpmath 1.3, k! times taylor(f, z, 6), 60 digits.
AT = {
    "tanh": ([-0.8482836399575129, 0.28041486618043263, 0.47574268676347254, 0.64986448167179088,
              0.30210688491270661, -2.3032952613809045, -10.938213484345794],
             [0.63514895238728732, 0.59658580828133143, -0.75784170227802139, 0.25085547326918849,
              2.3940444449219167, -7.6843484388481735, -0.7189429031635126]),
    "sigmoid": ([0.22270013882530885, 0.17310478699249702, 0.09600386680338781, -0.0066868166858095702,
                 -0.10342088015809022, -0.10339748624358182, 0.13452148230997579],
                [0.67917869917539297, 0.21789499376181403, -0.078084283078144409, -0.066974376076951819,
                 0.12608580941235155, 0.034980335846980351, -0.39186305151263293]),
    "sin": ([-0.94898461935558621, 0.31532236239526867, 0.94898461935558621, -0.31532236239526867,
             -0.94898461935558621, 0.31532236239526867, 0.94898461935558621],
            [0.68163876002333417, 0.73168886887382089, -0.68163876002333417, -0.73168886887382089,
             0.68163876002333417, 0.73168886887382089, -0.68163876002333417]),
    "cos": ([0.31532236239526867, 0.94898461935558621, -0.31532236239526867, -0.94898461935558621,
             0.31532236239526867, 0.94898461935558621, -0.31532236239526867],
            [0.73168886887382089, -0.68163876002333417, -0.73168886887382089, 0.68163876002333417,
             0.73168886887382089, -0.68163876002333417, -0.73168886887382089]),
    "exp": ([0.2865047968601901] * 7, [2.1170000166126747] * 7),
    "softplus": ([0.25192908134537289, 0.22270013882530885, 0.17310478699249702, 0.09600386680338781,
                  -0.0066868166858095702, -0.10342088015809022, -0.10339748624358182],
                 [1.1368710061148999, 0.67917869917539297, 0.21789499376181403, -0.078084283078144409,
                  -0.066974376076951819, 0.12608580941235155, 0.034980335846980351]),
    "silu": ([-0.27837517353163607, 0.0063191550846875812, 0.22620474048075927, 0.29637012126742539,
              0.10252883345437449, -0.38785754298597382, -0.78853677034896066],
             [0.50938402438154473, 0.8425999444967535, 0.37722677521501975, -0.28448363129214709,
              -0.17333314724854361, 0.65666429894699302, -0.084015273552592593]),
    "gelu": ([-0.13206221708356907, -0.12266158306942212, 0.079908974857697083, 0.55650893204467612,
              0.82120741126079771, -0.74290375063015257, -4.8291865235290296],
             [0.58002948571734885, 0.9992257217392351, 0.43288505872253133, -0.77636994227410511,
              -0.11410285515240636, 2.7393507622285186, -1.747494049044811]),
    "gaussian": ([0.45783336177161426, 0.57229170221451783, 0.25753126599653302, -0.82266932193336938,
                  -1.8009304504063108, 1.039514224725589, 10.30404503293854],
                 [0.75483960198900734, -0.5661297014917555, -0.33024232587019071, 1.379941147386154,
                  -0.044228882929043399, -5.4865929273478336, 4.3360891101560922]),
    "identity": ([-1.25, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.75, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("grad", [True, False], ids=["traced", "plain"])
@pytest.mark.parametrize("name", ABLE)
def test_derivatives(name, grad):
    z = torch.tensor([-1.25, 0.75], dtype=D, requires_grad=grad)
    got = torch.stack(list(activation(name).derivatives(z, 6))).detach().T
    torch.testing.assert_close(got, torch.tensor(AT[name], dtype=D), rtol=5e-14, atol=1e-14)


@pytest.mark.parametrize("name", ABLE)
@pytest.mark.parametrize("order", range(6))
def test_orders_agree_with_each_other(name, order):
    z = torch.linspace(-3, 3, 11, dtype=D)
    tower = activation(name).derivatives(z, order)
    assert len(tower) == order + 1
    for level, longer in zip(tower, activation(name).derivatives(z, 6), strict=False):
        assert level.shape == z.shape
        torch.testing.assert_close(level, longer, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(tower[0], activation(name)(z), rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize("name", ABLE)
def test_each_level_is_the_derivative_of_the_one_before(name):
    z = torch.linspace(-3, 3, 7, dtype=D)
    for k in range(4):
        slope = vmap(jacfwd(lambda p, k=k: activation(name).derivatives(p, k)[k]))(z)
        torch.testing.assert_close(
            slope, activation(name).derivatives(z, k + 1)[k + 1], rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("name", ABLE)
def test_differentiable_twice(name):
    z = torch.tensor([-1.5, 0.0, 0.8], dtype=D, requires_grad=True)
    assert gradcheck(lambda p: tuple(activation(name).derivatives(p, 3)), z)
    assert gradgradcheck(lambda p: tuple(activation(name).derivatives(p, 3)), z)


@pytest.mark.parametrize("dtype", [torch.float32, D], ids=["single", "double"])
@pytest.mark.parametrize("name", [name for name in ABLE if name != "exp"])
def test_far_out(name, dtype):
    far = {  # values and slopes at -400 and 400; all else is below the smallest number
        "tanh": ([-1.0, 1.0], [0.0, 0.0]),
        "sigmoid": ([0.0, 1.0], [0.0, 0.0]),
        "softplus": ([0.0, 400.0], [0.0, 1.0]),
        "silu": ([0.0, 400.0], [0.0, 1.0]),
        "gelu": ([0.0, 400.0], [0.0, 1.0]),
        "gaussian": ([0.0, 0.0], [0.0, 0.0]),
        "identity": ([-400.0, 400.0], [1.0, 1.0]),
    }
    z = torch.tensor([-400.0, 400.0], dtype=dtype)
    tower = activation(name).derivatives(z, 6)
    assert all(level.isfinite().all() for level in tower)
    if name in far:
        for level, expected in zip(tower, far[name], strict=False):
            torch.testing.assert_close(level, torch.tensor(expected, dtype=dtype), rtol=0, atol=1e-30)
        assert all((level.abs() < 1e-30).all() for level in tower[2:])


def relative(got, expected):
    return abs(got.item() - expected) / abs(expected)


def test_lower_tails_keep_their_digits():
    # 1 / (1 + e^30), e^30 / (1 + e^30)^2, log(1 + e^-30), Phi(-30) from mpmath 1.3 with 40 digits
    z = torch.tensor([-30.0], dtype=D)
    value, slope = activation("sigmoid").derivatives(z, 1)
    assert relative(value, 9.3576229688392989538e-14) < 1e-15
    assert relative(slope, 9.3576229688384233028e-14) < 1e-15
    assert relative(activation("softplus")(z), 9.3576229688397367794e-14) < 1e-15
    assert relative(activation("gelu")(z), -30 * 4.9067139271481870595e-198) < 1e-12


@pytest.mark.parametrize("tiny", [1e-300, 1e-12, -1e-5, 0.01, -0.3])
def test_the_quick_tanh_keeps_its_digits(tiny):
    assert (
        relative(activation("tanh").derivatives(torch.tensor([tiny], dtype=D), 1)[0], math.tanh(tiny)) < 5e-16
    )


def test_softplus_has_no_seam():
    # torch's own is z from 20 on
    z = torch.tensor([20.0 + 1e-9], dtype=D)
    assert relative(activation("softplus")(z) - z, math.exp(-20.0)) < 1e-5


def cube(z, order):
    return [z**3, 3 * z**2, 6 * z, torch.full_like(z, 6.0), torch.zeros_like(z)][: order + 1]


def test_a_tower_of_your_own():
    own = activation(cube)
    assert own.name == "cube"
    z = torch.tensor([2.0])
    assert own(z).item() == 8.0
    assert [level.item() for level in own.derivatives(z, 4)] == [8.0, 12.0, 12.0, 6.0, 0.0]
    assert activation(own) is own


def test_pickles():
    for kept in (*ACTIVATIONS.values(), activation(cube)):
        again = pickle.loads(pickle.dumps(kept))
        assert again == kept
    assert pickle.loads(pickle.dumps(ACTIVATIONS["gelu"])) is ACTIVATIONS["gelu"]
    # of a name that is taken, but another function
    mine = Activation("tanh", cube)
    assert pickle.loads(pickle.dumps(mine)).tower is cube


def test_refuses_what_has_no_tower():
    relu = activation("relu")
    assert relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    with pytest.raises(
        PriorGraphError, match=r"closed-form tower .*tanh, sigmoid, sin.*got 'relu', which"
    ) as caught:
        relu.derivatives(torch.zeros(1), 1)
    assert all(name in str(caught.value) for name in ABLE)
    assert "(relu" not in str(caught.value)


def test_refuses_a_tower_that_does_not_fit():
    with pytest.raises(
        PriorGraphError, match=r"'cube' must give derivatives 0 to 5, 6 tensors of shape \(2,\), got 5"
    ):
        activation(cube).derivatives(torch.zeros(2), 5)
    flat = Activation("flat", lambda z, order: [z.sum()] * (order + 1))
    with pytest.raises(PriorGraphError, match=r"'flat' must give .* of shape \(2,\), got 2: \(\), \(\)"):
        flat.derivatives(torch.zeros(2), 1)


@pytest.mark.parametrize(
    ("base", "shown"), [("mish", "'mish'"), (None, "None"), (3, "3"), (torch.ones(1), "a Tensor")]
)
def test_refuses_what_is_no_activation(base, shown):
    with pytest.raises(PriorGraphError, match=f"must be one of tanh, .*, or a function .*got {shown}"):
        activation(base)
