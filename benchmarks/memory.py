"""Peak memory of one training step, all edges at once and in chunks.

Every case runs in a process of its own: it builds the layer and its input, warms up imports
and thread pools with a small layer, returns free memory to the system, reads the resident
memory, runs one forward and backward pass and prints the peak above that. Linux only, since
resident memory is read from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import (
    environment,
    markdown_table,
    power_law_edges,
    skipped_backends,
    usable_backends,
    version_of,
)
from torch import nn

from pyg_kpnn import PackedMultiheadAttention

MIB = 2**20


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def high_water_mark() -> int:
    """Largest resident memory since the start, or since the mark was reset, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


@contextlib.contextmanager
def watch_peak(found: dict[str, Any]) -> Iterator[None]:
    """Put the peak resident memory of the block into ``found["peak"]``, and how it was read.

    The kernel's own mark misses nothing, but it has to be reset, which some containers do not
    allow; then a thread samples every millisecond and may miss a short peak.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        if high_water_mark() > resident() + 16 * MIB:
            raise OSError("the mark was not reset")
    except OSError:
        found["method"] = "sampling thread"
    else:
        found["method"] = "VmHWM"
        yield
        found["peak"] = high_water_mark()
        return
    done = threading.Event()
    samples = [resident()]

    def sample() -> None:
        while not done.is_set():
            samples.append(resident())
            time.sleep(0.001)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        found["peak"] = max(*samples, resident())


def build(case: dict[str, Any], num_nodes: int, num_edges: int) -> nn.Module:
    source, target = power_law_edges(num_nodes, num_edges)
    sizes = (source, target, num_nodes, num_nodes, case["embed_dim"], case["num_heads"])
    if case["backend"] == "kpnn2":
        import kpnn2

        return kpnn2.PackedMultiheadAttention(*sizes, chunk_size=case["chunk_size"])
    layer = PackedMultiheadAttention(*sizes, chunk_size=case["chunk_size"])
    layer.backend = case["backend"]
    return layer


def step(layer: nn.Module, tokens: torch.Tensor) -> None:
    output, _ = layer(tokens, tokens, tokens)
    output.square().mean().backward()


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    layer = build(case, case["nodes"], case["edges"])
    tokens = torch.randn(1, case["nodes"], case["embed_dim"], requires_grad=True)
    small = build(case, 50, 200)
    step(small, torch.randn(1, 50, case["embed_dim"], requires_grad=True))
    del small
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        # Pages that construction freed and malloc kept would hide part of the step's memory.
        ctypes.CDLL(None).malloc_trim(0)
    found: dict[str, Any] = {}
    base = resident()
    start = time.perf_counter()
    with watch_peak(found):
        step(layer, tokens)
    found["seconds"] = time.perf_counter() - start
    return {**case, **found, "base": base, "extra": found["peak"] - base}


def in_own_process(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The case {case} ended with status {done.returncode}; above is what it wrote.")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--embed-dim", type=int, default=64)
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--chunk-size", type=int, default=65_536)
    parser.add_argument("--backends", nargs="+", help="default: every usable one, and kpnn2 if installed")
    parser.add_argument("--repeat", type=int, default=1, help="processes a case; the largest peak counts")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    parser.add_argument(
        "--check", action="store_true", help="status 1 if a ratio of torch or scatter is above 1/3"
    )
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(run_case(options.case)))
        return
    if not Path("/proc/self/statm").exists():
        raise SystemExit("This script reads resident memory from /proc, which is not there.")
    shrink = 10 if options.quick else 1
    nodes, edges, chunk = options.nodes // shrink, options.edges // shrink, options.chunk_size // shrink
    peer = ["kpnn2"] if version_of("kpnn2") else []
    backends = options.backends or [*usable_backends(), *peer]
    print(environment())
    print(
        f"{nodes:,} nodes, {edges:,} edges, width {options.embed_dim}, {options.num_heads} heads, 1 sample, "
        f"float32, chunk_size={chunk:,}; one E × d tensor has "
        f"{edges * options.embed_dim * 4 / MIB:,.0f} MiB, one n × n tensor {nodes**2 * 4 / MIB:,.0f} MiB\n"
    )
    if options.backends is None:
        for line in [*skipped_backends(), *([] if peer else ["skipped kpnn2: not installed"])]:
            print(line + "\n")

    results: list[dict[str, Any]] = []
    rows, worst = [], 0.0
    for backend in backends:
        peaks = []
        for chunk_size in (None, chunk):
            case = {
                "backend": backend,
                "chunk_size": chunk_size,
                "nodes": nodes,
                "edges": edges,
                "embed_dim": options.embed_dim,
                "num_heads": options.num_heads,
            }
            runs = [in_own_process(case) for _ in range(options.repeat)]
            results += runs
            peaks.append(max(run["extra"] for run in runs))
        ratio = peaks[1] / peaks[0]
        if backend not in ("kpnn2", "native"):  # a peer; and one that gathers nothing that chunks could cut
            worst = max(worst, ratio)
        rows.append([backend, *(f"{peak / MIB:,.0f}" for peak in peaks), f"{ratio:.3f}"])
    header = ["backend", "all edges at once, MiB", "in chunks, MiB", "chunked ÷ unchunked"]
    print(markdown_table(header, rows))
    print(f"\nread by: {', '.join(sorted({result['method'] for result in results}))}")
    if options.json:
        options.json.write_text(json.dumps({"environment": environment(), "results": results}, indent=1))
    if options.check and worst > 1 / 3:
        raise SystemExit(f"A chunked step takes {worst:.3f} of the unchunked one's memory, more than 1/3.")


if __name__ == "__main__":
    main()
