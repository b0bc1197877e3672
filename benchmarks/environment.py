"""The machine and the software that a measurement ran on."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import pyg_kpnn
from pyg_kpnn.ops.native_library import library

GIB = 2**30


def version_of(package: str) -> str | None:
    """Installed version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def memory_info() -> dict[str, int]:
    """Sizes in bytes from /proc/meminfo; empty where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    sizes = (line.split() for line in lines if line.endswith("kB"))
    return {name.rstrip(":"): 1024 * int(number) for name, number, _ in sizes}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    """Sizes of the caches that the first core sees, such as {"L1 Data": "48K"}; empty where unknown."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level}" if kind == "Unified" else f"L{level} {kind}"] = size
    return found


def environment() -> dict[str, Any]:
    """The machine and the software that a measurement ran on."""
    packages = ("numpy", "torch", "torch_geometric", "torch_scatter", "kpnn2", "pyg_kpnn")
    total = memory_info().get("MemTotal")
    native = pyg_kpnn.backends()["native"].available
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": _caches(),
        "memory_gib": round(total / GIB, 1) if total else None,
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "os": platform.platform(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "torch_simd": torch.backends.cpu.get_cpu_capability(),
        "native_simd": library().pk_level().decode() if native else None,
        "versions": {name: found for name in packages if (found := version_of(name))},
    }


def describe(found: dict[str, Any]) -> str:
    """The environment as a paragraph."""
    caches = [f"{name} {size}" for name, size in found["caches"].items()]
    versions = [f"{name} {number}" for name, number in found["versions"].items()]
    memory = [f"{found['memory_gib']} GiB of memory"] if found["memory_gib"] else []
    load = [f"load average {found['load_average'][0]:.1f}"] if found["load_average"] else []
    parts = [
        f"{found['date']}: {found['processor']}",
        f"{found['cores']} cores",
        *caches,
        *memory,
        *load,
        f"{found['threads']} threads",
        f"torch with {found['torch_simd']}",
        f"native kernel with {found['native_simd'] or 'nothing: it is not there'}",
        found["os"],
        f"Python {found['python']}",
        *versions,
    ]
    return ", ".join(parts)
