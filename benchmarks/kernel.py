"""Time of the attention kernel alone, without projections, over the floor of reading its rows.

The floor reads the key and the value row of every edge once, in the order of the kernel, and
does nothing else with them. Our other backends and the peers run beside it, theirs being
layers with projections that return their input. Outputs and gradients are compared before
anything is timed. Contestants take turns, one call each a round; figures are medians over
rounds, ratios are taken within a round.

``--scaling`` adds how time grows with edges at fixed nodes, with nodes at fixed degree and
with threads; other heads and head sizes; and other dtypes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from statistics import median

import numpy as np
import torch
from common import (
    CASES,
    Contestant,
    Report,
    Size,
    add_case_options,
    add_timing_options,
    argument_parser,
    measure,
    parse,
    ratio,
    size_of,
    spread,
)
from kernels import BOTH, FLOOR, FORWARD, NATIVE, compare, floor, ours, peers, problem

from pyg_kpnn.ops import backends

WHATS = (FORWARD, BOTH)

# Heads and head size. The main shape is that of the cases, beside itself it shows the noise. A row
# narrower than 16 numbers leaves part of a cache line unused, which says little about a kernel, so
# the last ones are only reported.
MAIN_SHAPE = (4, 16)
SHAPES = [
    MAIN_SHAPE,
    *((1, 16), (2, 8), (4, 8), (8, 2), (16, 1), (4, 4), (2, 32), (8, 8), (8, 16), (4, 32), (3, 20), (5, 13)),
    *((16, 4), (1, 64), (12, 64)),
]
REPORTED_SHAPES = [(1, 4), (2, 4), (1, 8)]
CACHE_LINE = 64

GROWING_EDGES = [100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]
GROWING_NODES = [10_000, 30_000, 100_000, 300_000]
FIXED_NODES, FIXED_DEGREE = 20_000, 10

OTHER_DTYPES = (torch.bfloat16, torch.float16, torch.float64)


Seconds = dict[str, list[float]]


def floor_cells(floor: Seconds, kernel: Seconds) -> list[str]:
    """Times of floor and kernel, and their ratios."""
    ratios = [f"{ratio(kernel[what], floor[FORWARD]):.2f}" for what in WHATS]
    return [spread(floor[FORWARD]), *(spread(kernel[what]) for what in WHATS), *ratios]


FLOOR_HEADER = ["floor, ms", "forward, ms", "both, ms", "forward ÷ floor", "both ÷ floor"]


def measure_peers(report: Report, options: argparse.Namespace) -> None:
    for case in options.cases:
        size = size_of(case, options.quick)
        given = problem(size)
        native = ours(given, NATIVE)
        others, left_out = peers(given, options.chunk_size)
        report.section(f"({case}) {size}: kernel alone")
        compare(native, others, given.layout)
        measure([native, *others], options.rounds, options.budget)
        report.record_times([native, *others], size)
        table = [
            [
                contestant.name,
                *(spread(contestant.seconds[what]) for what in WHATS),
                f"{len(contestant.seconds[BOTH])}",
                *(f"{ratio(contestant.seconds[what], native.seconds[what]):.2f}" for what in WHATS),
            ]
            for contestant in (native, *others)
        ]
        table += [[name, *"–––––"] for name in left_out]
        report.table(
            ["kernel", "forward, ms", "both, ms", "rounds", "forward ÷ native", "both ÷ native"], table
        )
        report.say_left_out(left_out)


def measure_floor(report: Report, options: argparse.Namespace) -> None:
    """Apart from the peers, which leave caches and memory in no comparable state."""
    report.section("Native kernel over the floor")
    rows = []
    for case in options.cases:
        size = size_of(case, options.quick)
        given = problem(size)
        pair = [floor(given), ours(given, NATIVE)]
        measure(pair, options.rounds, options.budget)
        report.record_times(pair, size)
        rows.append([f"({case}) {size}", *floor_cells(*(contestant.seconds for contestant in pair))])
    report.table(["case", *FLOOR_HEADER], rows)


def fit(sizes: Sequence[Size], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Seconds a node and an edge by least squares of relative errors, and the largest of these."""
    times = np.array(seconds)
    counts = np.array([[size.nodes, size.edges] for size in sizes], dtype=np.float64) / times[:, None]
    costs, *_ = np.linalg.lstsq(counts, np.ones(len(times)), rcond=None)
    return costs[0], costs[1], float(np.abs(counts @ costs - 1.0).max())


def measure_growth(report: Report, options: argparse.Namespace) -> None:
    shrink = 10 if options.quick else 1
    sizes = [Size(1, FIXED_NODES // shrink, edges // shrink) for edges in GROWING_EDGES]
    sizes += [Size(1, nodes // shrink, FIXED_DEGREE * nodes // shrink) for nodes in GROWING_NODES]
    # A tenth of the nodes has room for a hundredth of the edges.
    sizes = [size for size in sizes if size.edges <= size.nodes**2 // 8]
    report.section("Growth with edges and nodes, one sample")
    found = []
    for size in sizes:
        given = problem(size)
        pair = [floor(given), ours(given, NATIVE)]
        measure(pair, options.rounds, options.budget)
        report.record_times(pair, size)
        found.append([contestant.seconds for contestant in pair])
    ratios = {what: [ratio(kernel[what], base[FORWARD]) for base, kernel in found] for what in WHATS}
    rows = []
    for i, (size, (base, kernel)) in enumerate(zip(sizes, found, strict=True)):
        cells = floor_cells(base, kernel)
        off = [f"{100 * (ratios[what][i] / median(ratios[what]) - 1):+.1f}" for what in WHATS]
        rows.append([f"{size.nodes:,} × {size.edges:,}", *cells[:4], off[0], cells[4], off[1]])
    header = ["nodes × edges", *FLOOR_HEADER[:4], "off the median, %", FLOOR_HEADER[4], "off the median, %"]
    report.table(header, rows)
    medians = {
        FLOOR: [median(base[FORWARD]) for base, _ in found],
        **{what: [median(kernel[what]) for _, kernel in found] for what in WHATS},
    }
    rows = []
    for name, seconds in medians.items():
        node, edge, off_by = fit(sizes, seconds)
        rows.append([name, f"{1e9 * node:.1f}", f"{1e9 * edge:.2f}", f"{100 * off_by:.1f}"])
    report.say("Time = a · nodes + b · edges, by least squares of the relative errors over all rows:")
    report.table(["", "a, ns a node", "b, ns an edge", "largest deviation, %"], rows)


def lines(size: Size) -> int:
    """Whole cache lines of a row of all heads."""
    return math.ceil(size.embed_dim * size.dtype.itemsize / CACHE_LINE)


def measure_shapes(report: Report, options: argparse.Namespace) -> None:
    size = size_of("b", options.quick)
    report.section(f"Heads and head sizes, {size}")
    main = ours(problem(size), NATIVE, name="main")
    rows = []
    for heads, width in (*SHAPES, *REPORTED_SHAPES):
        shape = size._replace(heads=heads, width=width)
        given = problem(shape)
        main.seconds = {}
        base, kernel = floor(given), ours(given, NATIVE)
        measure([base, kernel, main], options.rounds, options.budget)
        report.record_times([base, kernel], shape)
        report.record(f"main shape beside {heads} × {width}", size, seconds=main.seconds)
        rates = [
            f"{lines(shape) / lines(size) * ratio(main.seconds[what], kernel.seconds[what]):.2f}"
            for what in WHATS
        ]
        name = f"{heads} × {width}" + (", reported only" if (heads, width) in REPORTED_SHAPES else "")
        rows.append([name, f"{lines(shape)}", *floor_cells(base.seconds, kernel.seconds), *rates])
    header = [
        "heads × head size",
        "lines a row",
        *FLOOR_HEADER,
        "forward rate ÷ main's",
        "both rate ÷ main's",
    ]
    report.table(header, rows)
    report.say(
        f"A rate is edges · lines ÷ time, lines being the whole {CACHE_LINE}-byte lines of a row; the main "
        f"shape is {size.heads} × {size.width}, measured in turns with each."
    )


def measure_dtypes(report: Report, options: argparse.Namespace) -> None:
    report.section("Dtypes")
    rows = []
    for case in options.cases:
        size = size_of(case, options.quick)
        given = problem(size)
        base, single = floor(given), ours(given, NATIVE, name="float32")
        others = [
            ours(problem(size._replace(dtype=dtype)), NATIVE, name=str(dtype).removeprefix("torch."))
            for dtype in OTHER_DTYPES
        ]
        measure([base, single, *others], options.rounds, options.budget)
        report.record_times([base, single], size)
        for contestant, dtype in zip(others, OTHER_DTYPES, strict=True):
            report.record_times([contestant], size._replace(dtype=dtype))
        for contestant in (single, *others):
            times = contestant.seconds
            ratios = [ratio(times[what], single.seconds[what]) for what in WHATS]
            cells = floor_cells(base.seconds, times)[1:]
            rows.append([f"({case}), {contestant.name}", *cells, *(f"{value:.2f}" for value in ratios)])
    header = ["case", *FLOOR_HEADER[1:], "forward ÷ float32", "both ÷ float32"]
    report.table(header, rows)
    report.say("The floor is that of float32 rows throughout.")


def measure_threads(report: Report, options: argparse.Namespace) -> None:
    most = torch.get_num_threads()
    if most == 1:
        return
    counts = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    report.section("Threads")
    rows = []
    for case in options.cases:
        size = size_of(case, options.quick)
        given = problem(size)
        every = {}
        for count in counts:
            base, kernel = floor(given), ours(given, NATIVE)
            calls = {FLOOR: base.calls[FORWARD], **kernel.calls}
            every[count] = Contestant(f"{count} threads", calls, before=partial(use_threads, count))
        measure(list(every.values()), options.rounds, options.budget)
        torch.set_num_threads(most)
        report.record_times(list(every.values()), size)
        for count in counts[1:]:
            one, several = every[1].seconds, every[count].seconds
            gains = [ratio(one[what], several[what]) for what in (FLOOR, *WHATS)]
            rows.append([f"({case}), 1 → {count}", *(f"{gain:.2f}" for gain in gains)])
    report.table(["case, threads", "floor, times faster", "forward", "both"], rows)


def use_threads(count: int) -> None:
    torch.set_num_threads(count)
    torch.zeros(1 << 20).sum()  # the first parallel loop makes or ends threads


def main() -> None:
    parser = argument_parser(__doc__)
    add_case_options(parser, default=list(CASES))
    add_timing_options(parser, rounds=9)
    parser.add_argument("--scaling", action="store_true", help="also growth, threads, shapes and dtypes")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    options = parse(parser)
    if not backends()[NATIVE].available:
        raise SystemExit(f"Nothing to measure: {backends()[NATIVE].reason}.")
    report = Report("kernel", options)
    scaling = [measure_growth, measure_shapes, measure_dtypes, measure_threads] if options.scaling else []
    for part in [*([] if options.no_peers else [measure_peers]), measure_floor, *scaling]:
        part(report, options)
    report.write(options.json)


if __name__ == "__main__":
    main()
