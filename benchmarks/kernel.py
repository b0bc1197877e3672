"""Time of the attention kernel alone, without projections, over the floor of reading its rows.

The floor reads the key and the value row of every edge once, in the order of the kernel, and
does nothing else with them. kpnn2 and our other backends run beside it: kpnn2's layer with its
projections replaced by the identity. Contestants take turns, one call each a round; figures
are medians over rounds, ratios are taken within a round.

``--scaling`` adds how time grows with edges at fixed nodes, with nodes at fixed degree, and
with threads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from common import environment, markdown_table, power_law_edges, version_of
from torch import Tensor, nn

from pyg_kpnn.ops import EdgeLayout, backends, edge_attention
from pyg_kpnn.ops.native_library import library, read_rows


class Size(NamedTuple):
    samples: int
    nodes: int
    edges: int
    heads: int = 4
    width: int = 16
    dtype: torch.dtype = torch.float32


CASES = {
    "a": Size(32, 2_000, 19_000),
    "b": Size(8, 10_000, 195_000),
    "c": Size(1, 100_000, 1_000_000),
    "d": Size(4, 20_000, 1_000_000),
}
QUICK = {name: Size(size.samples, size.nodes // 10, size.edges // 20) for name, size in CASES.items()}
SHAPES = [(1, 16), (2, 8), (4, 8), (2, 32), (8, 16), (4, 32), (3, 20), (16, 4)]

Calls = dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]]


class Identity(nn.Linear):
    """A projection that does nothing, so that a layer is its kernel."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens


def problem(size: Size) -> tuple[EdgeLayout, tuple[Tensor, ...], Tensor]:
    source, target = power_law_edges(size.nodes, size.edges)
    layout = EdgeLayout(torch.stack([source, target]), size.nodes, size.nodes)
    shape = (size.samples, size.nodes, size.heads, size.width)
    tensors = tuple(torch.randn(shape).to(size.dtype).requires_grad_() for _ in range(3))
    return layout, tensors, torch.randn(shape).to(size.dtype)


def calls(size: Size, peers: bool) -> Calls:
    """Name to (forward without gradients, forward and backward)."""
    layout, tensors, gradient = problem(size)
    plain = tuple(tensor.detach() for tensor in tensors)
    found: Calls = {}
    if size.dtype == torch.float32:
        found["floor"] = (
            lambda: read_rows(plain[1], plain[2], layout.target_ptr, layout.source_int32),
            None,
        )

    def ours(backend: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        def forward() -> Any:
            with torch.no_grad():
                return edge_attention(*plain, layout, backend=backend)[0]

        def both() -> Any:
            mixed = edge_attention(*tensors, layout, backend=backend)[0]
            return torch.autograd.grad(mixed, tensors, gradient)

        return forward, both

    found["native"] = ours("native")
    if not peers:
        return found
    found["torch"] = ours("torch")
    if version_of("kpnn2"):
        import kpnn2

        embed = size.heads * size.width
        edges = layout.edge_index
        layer = kpnn2.PackedMultiheadAttention(
            edges[0], edges[1], size.nodes, size.nodes, embed, size.heads, bias=False
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(layer, name, Identity(embed, embed, bias=False))
        flat = tuple(tensor.detach().flatten(2).requires_grad_() for tensor in tensors)
        expected, found_by_kpnn2 = found["native"][0](), layer(*flat)[0].unflatten(-1, (size.heads, -1))
        torch.testing.assert_close(found_by_kpnn2, expected, rtol=1e-3, atol=1e-4)

        def forward() -> Any:
            with torch.no_grad():
                return layer(*flat)[0]

        found["kpnn2"] = (
            forward,
            lambda: torch.autograd.grad(layer(*flat)[0], flat, gradient.flatten(2)),
        )
    return found


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure(found: Calls, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds of every round by name: forward, forward and backward."""
    for forward, both in found.values():
        forward()
        if both:
            both()
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in found}
    for _ in range(rounds):
        for name, (forward, both) in found.items():
            times[name][0].append(seconds(forward))
            if both:
                times[name][1].append(seconds(both))
    return times


def over(numerator: list[float], denominator: list[float]) -> float:
    return median(a / b for a, b in zip(numerator, denominator, strict=True))


def one_row(name: str, size: Size, times: dict[str, tuple[list[float], list[float]]]) -> list[str]:
    floor, (forward, both) = times["floor"][0], times["native"]
    return [
        name,
        f"{size.samples} × {size.nodes:,} × {size.edges:,}",
        f"{median(floor) * 1e3:.1f}",
        f"{median(forward) * 1e3:.1f}",
        f"{median(both) * 1e3:.1f}",
        f"{over(forward, floor):.2f}",
        f"{over(both, floor):.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--scaling", action="store_true", help="growth with edges, nodes and threads; shapes")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    options = parser.parse_args()
    if not backends()["native"].available:
        raise SystemExit(f"Nothing to measure: {backends()['native'].reason}.")
    print(f"{environment()}, kernel level {library().pk_level().decode()}\n")
    record: dict[str, Any] = {"environment": environment()}

    header = ["case", "samples × nodes × edges", "floor, ms", "forward, ms", "both, ms", "forward ÷ floor",
              "both ÷ floor"]  # fmt: skip
    rows, peers = [], []
    for name in options.cases:
        size = (QUICK if options.quick else CASES)[name]
        times = measure(calls(size, peers=True), options.rounds)
        record[name] = times
        rows.append(one_row(name, size, times))
        for peer in ("torch", "kpnn2"):
            if peer in times:
                forward, both = times[peer]
                peers.append(
                    [f"{name}, {peer}", f"{median(forward) * 1e3:.0f}", f"{median(both) * 1e3:.0f}",
                     f"{over(forward, times['native'][0]):.0f}", f"{over(both, times['native'][1]):.0f}"]
                )  # fmt: skip
    print(markdown_table(header, rows), "\n")
    print(markdown_table(["peer", "forward, ms", "both, ms", "forward ÷ native", "both ÷ native"], peers))

    if options.scaling:
        rows, scale = [], 10 if options.quick else 1
        grid = [
            Size(1, 20_000 // scale, edges // scale) for edges in (100_000, 300_000, 1_000_000, 3_000_000)
        ]
        grid += [Size(1, nodes // scale, 10 * nodes // scale) for nodes in (30_000, 100_000, 300_000)]
        for size in grid:
            rows.append(one_row("growth", size, measure(calls(size, peers=False), options.rounds)))
        for heads, width in SHAPES:
            size = Size(8, 10_000 // scale, 195_000 // scale, heads, width)
            rows.append(
                one_row(f"{heads} × {width}", size, measure(calls(size, peers=False), options.rounds))
            )
        print("\n" + markdown_table(header, rows))
        size, threads = (QUICK if options.quick else CASES)["b"], torch.get_num_threads()
        single, several = calls(size, peers=False)["native"], {}
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            several[count] = measure({"native": single}, options.rounds)["native"]
        gains = [over(several[1][i], several[threads][i]) for i in (0, 1)]
        print(f"\n1 → {threads} threads on (b): forward {gains[0]:.2f}×, both {gains[1]:.2f}×")
        halves = [measure(calls(size._replace(dtype=t), False), options.rounds)["native"] for t in
                  (torch.bfloat16, torch.float32)]  # fmt: skip
        ratios = [median(halves[0][i]) / median(halves[1][i]) for i in (0, 1)]
        print(f"bfloat16 ÷ float32 on (b): forward {ratios[0]:.2f}, both {ratios[1]:.2f}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
