"""Fixtures every test folder uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real files that are not part of the repository; the test skips without it."""
    place = os.environ.get("PYG_KPNN_DATA")
    if not place or not Path(place).is_dir():
        pytest.skip("PYG_KPNN_DATA does not name a folder of real files")
    return Path(place)
