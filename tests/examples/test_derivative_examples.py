"""The examples of exact derivatives run, small, and find what they say they find."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"derivative_example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


@pytest.fixture(autouse=True)
def _torch_as_before():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def test_interactions_puts_the_planted_pair_on_top(capsys: pytest.CaptureFixture[str]) -> None:
    load("interactions").main(["--samples", "1000", "--epochs", "20", "--top", "3", "--seed", "1"])
    printed = capsys.readouterr().out
    first, second = re.search(r"Planted +(\w+) AND (\w+)", printed).groups()  # type: ignore[union-attr]
    rows = re.findall(r"^ *(\w+) +(\w+) +(-?\d\.\d{3}) +(\d+) +(True|False)$", printed, flags=re.MULTILINE)
    assert len(rows) == 3
    assert {rows[0][0], rows[0][1]} == {first, second}
    assert [row[4] for row in rows] == ["True", "False", "False"]
    assert rows[0][3] == "1"


def test_poisson_comes_near_the_known_solution(capsys: pytest.CaptureFixture[str]) -> None:
    load("poisson").main(["--steps", "60", "--points", "200"])
    printed = capsys.readouterr().out
    assert float(re.search(r"Error +(\S+) at most", printed)[1]) < 5e-3  # type: ignore[index]


def test_poisson_residual_is_that_of_torch_func() -> None:
    example = load("poisson")
    net = example.AttentionJetMLP(in_dim=2, hidden=5, dtype=torch.float64)
    x = torch.rand(3, 2, dtype=torch.float64)

    def u(point: torch.Tensor) -> torch.Tensor:
        return example.solution(net, point.unsqueeze(0))[0]

    expected = torch.stack([torch.func.hessian(u)(point).trace() for point in x]) + example.source(x)
    torch.testing.assert_close(example.residual(net, x), expected)
    laplacian = torch.stack([torch.func.hessian(lambda p: example.exact(p[None])[0])(p).trace() for p in x])
    torch.testing.assert_close(example.source(x), -laplacian)


def test_pictures_are_left_out_without_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    load("poisson").main(["--steps", "2", "--points", "20", "--figures", str(tmp_path)])
    load("interactions").main(["--samples", "100", "--epochs", "1", "--figures", str(tmp_path)])
    assert capsys.readouterr().out.count("matplotlib is not installed") == 2


def test_pictures_are_saved_with_matplotlib(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    load("poisson").main(["--steps", "2", "--points", "20", "--figures", str(tmp_path)])
    load("interactions").main(["--samples", "100", "--epochs", "1", "--figures", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"poisson.png", "interactions.png"}
