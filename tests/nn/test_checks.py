"""Checks of arguments: what passes comes out as Python's own kind, the rest is refused."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.nn.checks import flag, index_array, positive_int, probability


@pytest.mark.parametrize("value", [1, 7, np.int8(7), np.uint64(7), np.int64(1)])
def test_positive_int(value):
    out = positive_int("size", value)
    assert type(out) is int
    assert out == value


@pytest.mark.parametrize(
    "value",
    [0, -3, True, False, np.bool_(True), 1.0, np.float32(1), "1", None, [1], Fraction(1), np.int8(-1), 1j],
)
def test_positive_int_refuses(value):
    with pytest.raises(PriorGraphError, match=r"^size must be a positive integer, got"):
        positive_int("size", value)


def test_flag():
    assert flag("switch", True) is True
    assert flag("switch", False) is False


@pytest.mark.parametrize("value", [0, 1, None, "True", "", np.bool_(False), 0.0, [], object])
def test_flag_refuses(value):
    with pytest.raises(PriorGraphError, match=r"^switch must be True or False, got"):
        flag("switch", value)


@pytest.mark.parametrize(
    "value", [0, 1, 0.0, 0.25, 1.0, np.float32(0.5), np.int64(1), np.float16(0.5), Fraction(1, 4)]
)
def test_probability(value):
    out = probability("p", value)
    assert type(out) is float
    assert out == value


@pytest.mark.parametrize(
    "value",
    [True, np.bool_(False), -1e-9, 1.0000001, 2, -1, np.nan, float("inf"), -float("inf"), "0.5", None, 0.5j,
     Decimal("0.5"), [0.5]],
)  # fmt: skip
def test_probability_refuses(value):
    with pytest.raises(PriorGraphError, match=r"^p must be a number in \[0, 1\], got"):
        probability("p", value)


def test_index_array_is_a_new_int64_tensor():
    given = torch.tensor([2, 0], dtype=torch.int64)
    out = index_array("index", given, 3)
    assert out.dtype == torch.int64
    assert out.data_ptr() != given.data_ptr()
    array = np.array([2, 0])
    out = index_array("index", array, 3)
    array[0] = 1
    assert out.tolist() == [2, 0]
    with torch.device("meta"):
        assert index_array("index", [1, 2], 3).tolist() == [1, 2]


def test_index_array_refuses_what_is_out_of_range():
    for value, bad, place in (([0, 3], 3, 1), ([-1, 0], -1, 0), (np.array([0, 1, 9]), 9, 2)):
        with pytest.raises(
            PriorGraphError, match=rf"index must be in \[0, 3\), got {bad} at position {place}"
        ):
            index_array("index", value, 3)
    with pytest.raises(PriorGraphError, match="index must hold at least one edge"):
        index_array("index", [], 3)


@pytest.mark.parametrize(("value", "what"), [
    ([0, True], "bool at position 1"), ([0, 1, 2.0], "float at position 2"), ("01", "got str"),
    ({0}, "got set"), (np.zeros((2, 1), int), r"got shape \(2, 1\)"), (np.array([None]), "dtype object"),
    (torch.zeros(2), "dtype torch.float32"), (iter([0]), "iterator"), ([[0]], "list at position 0"),
])  # fmt: skip
def test_index_array_refuses_and_says_what_came(value, what):
    with pytest.raises(PriorGraphError, match=f"^index must be 1-D integers.*{what}"):
        index_array("index", value, 3)


@pytest.mark.parametrize("check", [positive_int, flag, probability])
def test_messages_print_no_tensor(check):
    for value in (
        torch.tensor(271828.0),
        torch.full((3,), 271828.0),
        torch.tensor(271828),
        np.full(3, 271828.0),
    ):
        with pytest.raises(PriorGraphError) as caught:
            check("argument", value)
        assert "271828" not in str(caught.value)


def test_the_error_is_a_value_error():
    assert issubclass(PriorGraphError, ValueError)
