"""Tables of measurements from files that are not what their suffix says."""

from __future__ import annotations

import pytest

from pyg_kpnn.datasets import read_measurements
from pyg_kpnn.errors import PriorGraphError


def test_a_table_with_another_separator(tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("id;A;B\ns1;1;2\n")
    with pytest.raises(
        PriorGraphError, match=r"have ',' between them. Got one column, 'id;A;B'. Pass sep=';'"
    ):
        read_measurements(path)
    assert read_measurements(path, sep=";").columns.tolist() == ["id", "A", "B"]
    path.write_text("A\n1\n2\n")
    assert read_measurements(path).columns.tolist() == ["A"]


def test_decimal_commas_are_not_cut_off(tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("id,A,B\ns1,1,5,2\n")
    with pytest.raises(
        PriorGraphError, match=r"cells.csv must have 3 cells, as its first line. Got a longer one"
    ):
        read_measurements(path)
