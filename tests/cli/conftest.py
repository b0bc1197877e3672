"""A small prior and a table of simulated cells on disk, and the command line as a function."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyg_kpnn.cli import main

EDGES = "tf,gene,mor\nA,B,1\nA,C,-1\nB,D,1\nC,D,1\nD,A,-1\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder with net.csv and cells.csv: class up where A is high."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.csv").write_text(EDGES)
    draw = np.random.default_rng(0)
    values = draw.normal(size=(60, 4))
    values[::2, 0] += 4
    frame = pd.DataFrame(values, columns=list("ABCD"), index=[f"cell {i}" for i in range(60)])
    frame["state"] = np.where(np.arange(60) % 2, "down", "up")
    frame[["D", "state", "B", "A", "C"]].to_csv(tmp_path / "cells.csv")
    return tmp_path


@pytest.fixture
def kpnn(capsys):
    """Run a command; returns exit status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run
