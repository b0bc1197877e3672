"""What the benchmark scripts share: sizes, graphs, timing in turns, tables and JSON."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from environment import GIB, describe, environment, memory_info
from torch import Tensor

import pyg_kpnn

INFERENCE, TRAINING = "inference", "training step"
CHUNK_SIZE, QUICK_CHUNK_SIZE = 65_536, 8_192
FEWEST_ROUNDS = 3  # of a slow contestant: a median needs as many
# Tensors of a number an edge and channel that the gathering peers hold in a training step.
GATHERED_TENSORS = 7
DENSE_LIMIT = 6 * GIB
TOLERANCE = 1e-4  # of outputs and gradients, relative to the largest


class Size(NamedTuple):
    """A batch of samples on one graph; every layer has ``heads`` heads of ``width`` channels."""

    samples: int
    nodes: int
    edges: int
    heads: int = 4
    width: int = 16
    dtype: torch.dtype = torch.float32

    @property
    def embed_dim(self) -> int:
        return self.heads * self.width

    def __str__(self) -> str:
        samples = "1 sample" if self.samples == 1 else f"{self.samples} samples"
        return f"{samples} × {self.nodes:,} nodes × {self.edges:,} edges"


CASES = {
    "a": Size(32, 2_000, 19_000),
    "b": Size(8, 10_000, 195_000),
    "c": Size(1, 100_000, 1_000_000),
    "d": Size(4, 20_000, 1_000_000),
}
QUICK_CASES = {
    "a": Size(4, 500, 4_000),
    "b": Size(2, 2_000, 30_000),
    "c": Size(1, 5_000, 50_000),
    "d": Size(2, 2_000, 50_000),
}


# Graphs


def power_law_edges(num_nodes: int, num_edges: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Distinct (source, target) pairs of a graph with hubs, ordered by source, then target.

    End points are drawn with probability proportional to rank ** -0.8 (sources) and
    rank ** -0.4 (targets), ranks shuffled separately: few nodes regulate many, as in gene
    regulatory networks, and in-degrees vary less than out-degrees.
    """
    if num_edges > num_nodes**2 // 4:
        raise SystemExit(f"{num_edges} distinct edges are too many to draw among {num_nodes} nodes.")
    random = np.random.default_rng(seed)
    rank = np.arange(1, num_nodes + 1, dtype=np.float64)
    chance = [power / power.sum() for power in (rank**-0.8, rank**-0.4)]
    names = [random.permutation(num_nodes) for _ in range(2)]
    pairs = np.empty(0, dtype=np.int64)
    while pairs.size < num_edges:
        ends = [name[random.choice(num_nodes, num_edges, p=p)] for name, p in zip(names, chance, strict=True)]
        # np.unique does the same, in numpy 2.3 and later through a hash table that takes ten times as long.
        pairs = np.sort(np.concatenate([pairs, ends[0] * num_nodes + ends[1]]))
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    pairs = np.sort(random.choice(pairs, num_edges, replace=False))
    return torch.from_numpy(pairs // num_nodes), torch.from_numpy(pairs % num_nodes)


def block_diagonal(edge_index: Tensor, num_nodes: int, samples: int) -> Tensor:
    """``(2, samples * E)`` edges of as many copies of a graph, as PyG batches them."""
    offset = num_nodes * torch.arange(samples).view(1, -1, 1)
    return (edge_index.unsqueeze(1) + offset).flatten(1)


# What can be measured here


def usable_backends() -> list[str]:
    """Backends of ours that are installed here, without the dense oracle."""
    return [name for name, (there, _) in pyg_kpnn.backends().items() if there and name != "reference"]


def missing_backends() -> dict[str, str]:
    """Backends of ours that are not installed here, and why."""
    return {name: why for name, (there, why) in pyg_kpnn.backends().items() if not there}


def available_memory() -> float:
    """Bytes that the system can still give; infinite where it does not say."""
    return memory_info().get("MemAvailable", float("inf"))


def too_large_to_gather(size: Size) -> str | None:
    """Why a peer that gathers a row of every edge is left out, or None."""
    needed = GATHERED_TENSORS * 4.0 * size.samples * size.edges * size.embed_dim
    if needed <= available_memory():
        return None
    return f"it gathers about {needed / GIB:,.1f} GiB, more than there is"


def too_large_for_dense(size: Size) -> str | None:
    """Why attention with a dense mask is left out, or None; it may hold scores and their softmax."""
    needed = 2 * 4.0 * size.samples * size.heads * size.nodes**2
    if needed <= min(DENSE_LIMIT, available_memory()):
        return None
    return f"{size.nodes:,}² scores a head and sample and their softmax are {needed / GIB:,.0f} GiB"


# Timing

Call = Callable[[], Any]


@dataclass
class Contestant:
    """Calls to be timed, by what the tables call them, and the seconds of every round."""

    name: str
    calls: dict[str, Call]
    before: Call | None = None  # run before each call, untimed
    seconds: dict[str, list[float]] = field(default_factory=dict)
    warm_up_seconds: float = 0.0

    def warm_up(self) -> dict[str, Any]:
        """Run every call once and return what they return."""
        begun = time.perf_counter()
        results = {}
        for what, call in self.calls.items():
            if self.before:
                self.before()
            results[what] = call()
        self.warm_up_seconds = time.perf_counter() - begun
        return results

    def take_turn(self) -> None:
        for what, call in self.calls.items():
            if self.before:
                self.before()
            begun = time.perf_counter()
            call()
            self.seconds.setdefault(what, []).append(time.perf_counter() - begun)


def measure(every: Sequence[Contestant], rounds: int, budget: float) -> None:
    """Let contestants take turns, each call once a round, so that a busy moment meets all of them.

    One that would take more than ``budget`` seconds in all sits out the later rounds, but never
    the first ``FEWEST_ROUNDS``.
    """
    shares = []
    for contestant in every:
        if not contestant.warm_up_seconds:
            contestant.warm_up()
        affordable = int(budget / contestant.warm_up_seconds)
        shares.append(min(rounds, max(FEWEST_ROUNDS, affordable)))
    gc.collect()
    for number in range(rounds):
        for contestant, share in zip(every, shares, strict=True):
            if number < share:
                contestant.take_turn()


def require_same(name: str, what: str, got: Tensor, expected: Tensor) -> None:
    """Stop unless a contestant computes what ours does."""
    error = (got - expected).abs().max() / expected.abs().max()
    if not error <= TOLERANCE:
        raise SystemExit(f"{name} computes something else: its {what} is off by {error:.1e} of the largest.")


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median of the ratios of times, each within a round that both took part in."""
    return median(a / b for a, b in zip(over, under, strict=False))


def spread(seconds: Sequence[float]) -> str:
    """Median, smallest and largest time in milliseconds."""
    middle, low, high = (1000 * value for value in (median(seconds), min(seconds), max(seconds)))
    return f"{middle:,.1f} ({low:,.1f}–{high:,.1f})"


# Output


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


class Report:
    """Prints what a script finds, and keeps it for the JSON file."""

    def __init__(self, script: str, options: argparse.Namespace) -> None:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        self.content: dict[str, Any] = {
            "script": script,
            "options": settings,
            "environment": environment(),
            "sections": [],
            "measurements": [],
        }
        print(describe(self.content["environment"]), flush=True)

    def section(self, title: str) -> None:
        self.content["sections"].append({"title": title, "markdown": ""})
        print(f"\n### {title}", flush=True)

    def say(self, text: str) -> None:
        """Print a paragraph, or a table, of the current section."""
        section = self.content["sections"][-1]
        section["markdown"] += ("\n\n" if section["markdown"] else "") + text
        print("\n" + text, flush=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.say(markdown_table(header, rows))

    def say_left_out(self, left_out: dict[str, str]) -> None:
        if left_out:
            self.say("\n".join(f"* Left out: {name}: {why}." for name, why in left_out.items()))

    def record(self, name: str, size: Size, **found: Any) -> None:
        """Keep one measurement, under the current section."""
        sizes = {**size._asdict(), "dtype": str(size.dtype).removeprefix("torch.")}
        where = self.content["sections"][-1]["title"]
        self.content["measurements"].append({"section": where, "name": name, **sizes, **found})

    def record_times(self, every: Sequence[Contestant], size: Size) -> None:
        for contestant in every:
            self.record(contestant.name, size, seconds=contestant.seconds)

    def write(self, path: Path | None) -> None:
        if path:
            write_json(path, self.content)


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every script has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    return parser


def add_timing_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    parser.add_argument(
        "--budget",
        type=float,
        default=4.0,
        help=f"seconds after which a contestant sits out, but not before round {FEWEST_ROUNDS}; default 4",
    )


def add_case_options(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(default))
    parser.add_argument("--chunk-size", type=int, help=f"default {CHUNK_SIZE:,}")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line and set what it says about torch."""
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if "chunk_size" in options and options.chunk_size is None:
        options.chunk_size = QUICK_CHUNK_SIZE if options.quick else CHUNK_SIZE
    return options


def size_of(case: str, quick: bool) -> Size:
    return (QUICK_CASES if quick else CASES)[case]
