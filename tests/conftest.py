"""Fixtures every test folder uses."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pyg_kpnn.ops.native_library import native_missing
from pyg_kpnn.ops.scatter_kernel import scatter_missing

# Asked once, before a test pretends that torch_scatter is not there.
MISSING = {"native": native_missing(), "scatter": scatter_missing()}


def _module(name: str) -> ModuleType:
    """A file beside this one; tests are no package and find it through a fixture."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


LAYER_TESTER, STRATEGIES = _module("layer_tester"), _module("strategies")


@pytest.fixture(scope="session")
def tester() -> LAYER_TESTER.LayerTester:
    """The table of layers and how to build, call and differentiate one."""
    return LAYER_TESTER.LayerTester()


@pytest.fixture(params=list(LAYER_TESTER.CASES))
def case(request: pytest.FixtureRequest) -> LAYER_TESTER.Case:
    return LAYER_TESTER.CASES[request.param]


@pytest.fixture(scope="session")
def strategies() -> ModuleType:
    """Random graphs and problems."""
    return STRATEGIES


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real files that are not part of the repository; the test skips without it."""
    place = os.environ.get("PYG_KPNN_DATA")
    if not place or not Path(place).is_dir():
        pytest.skip("PYG_KPNN_DATA does not name a folder of real files")
    return Path(place)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors here are tiny: threads that wait for each other make busy machines fifty times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def usable() -> Callable[[str], str]:
    """Hands a backend's name back, or skips: also where a test names its backends itself."""

    def usable(backend: str) -> str:
        if MISSING.get(backend):
            pytest.skip(MISSING[backend])
        return backend

    return usable


@pytest.fixture(params=["reference", "torch", "scatter", "native"])
def backend(request: pytest.FixtureRequest, usable: Callable[[str], str]) -> str:
    return usable(request.param)


@pytest.fixture(params=[None, 3], ids=["whole", "chunked"])
def chunk(request: pytest.FixtureRequest) -> int | None:
    return request.param


@pytest.fixture
def without_scatter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in an installation without torch_scatter."""
    monkeypatch.setitem(sys.modules, "torch_scatter", None)
    scatter_missing.cache_clear()
    yield
    monkeypatch.undo()
    scatter_missing.cache_clear()
