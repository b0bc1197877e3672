"""Peak memory of a training step and of inference, of a whole layer.

Every layer runs in a process of its own: it builds the layer and its input, warms up imports
and thread pools with a small layer, returns free memory to the system, reads the resident
memory, runs one forward and backward pass and prints the peak above that, then the same for
one forward pass without gradients. Linux only, since
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
from common import CASES, INFERENCE, TRAINING, Report, Size, add_case_options, argument_parser, parse, size_of
from layers import CHUNKED, candidates, our_layer
from torch import Tensor, nn

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


def build(name: str, size: Size, chunk_size: int) -> nn.Module:
    return candidates(size, chunk_size)[0][name](our_layer(size))


def train(layer: nn.Module, tokens: Tensor) -> None:
    layer(tokens).square().mean().backward()


def infer(layer: nn.Module, tokens: Tensor) -> None:
    layer.eval()
    with torch.no_grad():
        layer(tokens)


# The training step first: what it leaves behind is freed before inference, not the other way round.
CALLS = {TRAINING: train, INFERENCE: infer}


def random_tokens(size: Size) -> Tensor:
    return torch.randn(size.samples, size.nodes, size.embed_dim, requires_grad=True)


def settle() -> None:
    """Return free memory to the system; pages that malloc keeps would hide part of what is measured."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def run_alone(name: str, samples: int, nodes: int, edges: int, chunk_size: int) -> dict[str, dict[str, Any]]:
    """Measure one layer in this process, where nothing else has run."""
    size = Size(samples, nodes, edges)
    layer = build(name, size, chunk_size)
    # Small enough to leave no trace, and with edges for more than one chunk.
    small = Size(size.samples, 50, 200)
    warm = build(name, small, 100)
    for call in CALLS.values():
        call(warm, random_tokens(small))
    del warm
    tokens = random_tokens(size)
    results = {}
    for what, call in CALLS.items():
        layer.zero_grad(set_to_none=True)
        tokens.grad = None
        settle()
        found: dict[str, Any] = {"base": resident()}
        begun = time.perf_counter()
        with watch_peak(found):
            call(layer, tokens)
        found["call_seconds"] = time.perf_counter() - begun
        found["extra"] = found["peak"] - found["base"]
        results[what] = found
    return results


def in_own_process(name: str, size: Size, options: argparse.Namespace) -> dict[str, Any]:
    alone = json.dumps([name, size.samples, size.nodes, size.edges, options.chunk_size])
    command = [sys.executable, __file__, "--alone", alone]
    if options.threads:
        command += ["--threads", str(options.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} ended with status {done.returncode}; above is what it wrote.")
    return json.loads(done.stdout.splitlines()[-1])


def run_case(case: str, size: Size, report: Report, options: argparse.Namespace) -> float:
    """Measure every layer and print the table; the largest share that chunks leave of our memory."""
    report.section(f"({case}) {size}: peak memory")
    edge_rows, dense = (4 * size.samples * n / MIB for n in (size.edges * size.embed_dim, size.nodes**2))
    found, left_out = candidates(size, options.chunk_size)
    peaks: dict[str, dict[str, float]] = {}
    methods = set()
    for name in found:
        runs = [in_own_process(name, size, options) for _ in range(options.repeat)]
        report.record(name, size, runs=runs)
        peaks[name] = {what: max(run[what]["extra"] for run in runs) / MIB for what in CALLS}
        methods |= {run[what]["method"] for run in runs for what in CALLS}
    shares = {
        name: peak[TRAINING] / at_once[TRAINING]
        for name, peak in peaks.items()
        if name.endswith(CHUNKED) and (at_once := peaks.get(name.removesuffix(CHUNKED)))
    }
    rows = []
    for name, peak in peaks.items():
        cells = [f"{peak[what]:,.0f}" for what in CALLS]
        factors = [f"{peak[what] / peaks['ours'][what]:.2f}" for what in CALLS]
        share = f"{shares[name]:.3f}" if name in shares else "–"
        rows.append([name, cells[0], factors[0], share, cells[1], factors[1]])
    rows += [[name, *"–––––"] for name in left_out]
    report.table(
        ["layer", "training step, MiB", "÷ ours", "chunked ÷ at once", "inference, MiB", "÷ ours"], rows
    )
    report.say(
        f"Read by {', '.join(sorted(methods))}; chunk_size={options.chunk_size:,}. A tensor of one row an "
        f"edge has {edge_rows:,.0f} MiB, one of a number for every two nodes {dense:,.0f} MiB."
    )
    report.say_left_out(left_out)
    return max((share for name, share in shares.items() if name.startswith("ours")), default=0.0)


def main() -> None:
    parser = argument_parser(__doc__)
    add_case_options(parser, default=list(CASES))
    parser.add_argument("--repeat", type=int, default=1, help="processes a layer; the largest peak counts")
    parser.add_argument(
        "--check", action="store_true", help="status 1 if chunks leave more than 1/3 of the memory of ours"
    )
    parser.add_argument("--alone", type=json.loads, help=argparse.SUPPRESS)
    options = parse(parser)
    if options.alone is not None:
        print(json.dumps(run_alone(*options.alone)))
        return
    if not Path("/proc/self/statm").exists():
        raise SystemExit("This script reads resident memory from /proc, which is not there.")
    report = Report("memory", options)
    worst = max(run_case(case, size_of(case, options.quick), report, options) for case in options.cases)
    report.write(options.json)
    if options.check and worst > 1 / 3:
        raise SystemExit(f"A chunked step takes {worst:.3f} of the unchunked one's memory, more than 1/3.")


if __name__ == "__main__":
    main()
