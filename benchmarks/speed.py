"""Time of one training step of a whole attention layer, ours beside its peers.

A step zeroes the gradients, runs forward and runs backward to the parameters and the input.
Contestants hold the same weights, and their outputs are compared before anything is timed.
They take turns, one step each a round, so that a busy moment of the machine meets all of
them, and are compared round by round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from common import (
    environment,
    markdown_table,
    power_law_edges,
    skipped_backends,
    usable_backends,
    version_of,
)
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from pyg_kpnn import PackedMultiheadAttention

WIDTH, HEADS = 64, 4


class Size(NamedTuple):
    samples: int
    nodes: int
    edges: int


CASES = {"a": Size(32, 2_000, 19_000), "b": Size(8, 10_000, 195_000), "c": Size(1, 100_000, 1_000_000)}
QUICK = {"a": Size(4, 500, 4_000), "b": Size(2, 2_000, 30_000), "c": Size(1, 5_000, 50_000)}


@dataclass
class Contestant:
    """A layer and the call that runs it on tokens (B, n, WIDTH)."""

    name: str
    layer: nn.Module
    call: Callable[[Tensor], Tensor]
    seconds: list[float] = field(default_factory=list)

    def step(self, tokens: Tensor, gradient: Tensor) -> None:
        self.layer.zero_grad(set_to_none=True)
        tokens.grad = None
        self.call(tokens).backward(gradient)


class Looped(nn.Module):
    """PyG's TransformerConv as the same layer, one sample after the other.

    It takes no static batch (B, n, F). Running it on B copies of the graph as one large graph
    would be the other way; a loop needs less memory and is what its users write.
    """

    def __init__(self, ours: PackedMultiheadAttention) -> None:
        super().__init__()
        self.conv = TransformerConv(WIDTH, WIDTH // HEADS, heads=HEADS, root_weight=False)
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        for name, linear in (("query", ours.q_proj), ("key", ours.k_proj), ("value", ours.v_proj)):
            getattr(self.conv, f"lin_{name}").load_state_dict(linear.state_dict())
        self.out_proj.load_state_dict(ours.out_proj.state_dict())
        self.edge_index = torch.stack([ours.source_index, ours.target_index])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out_proj(torch.stack([self.conv(sample, self.edge_index) for sample in tokens]))


def dense_attention(ours: PackedMultiheadAttention) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """nn.MultiheadAttention masked by the graph; rows without a source are left open, or they are NaN."""
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        layer.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
    layer.out_proj.load_state_dict(ours.out_proj.state_dict())
    hidden = torch.ones(ours.query_features, ours.key_features, dtype=torch.bool)
    hidden[ours.target_index, ours.source_index] = False
    hidden[hidden.all(1)] = False
    return layer, lambda tokens: layer(tokens, tokens, tokens, attn_mask=hidden, need_weights=False)[0]


def attend(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda tokens: layer(tokens, tokens, tokens)[0]


def contestants(size: Size, chunk_size: int, dense_limit: int, chosen: set[str] | None) -> list[Contestant]:
    """Ours first, its defaults leading, then the peers; prints a line for each that is left out."""
    source, target = power_law_edges(size.nodes, size.edges)
    sizes = (source, target, size.nodes, size.nodes, WIDTH, HEADS)
    first = PackedMultiheadAttention(*sizes, generator=torch.Generator().manual_seed(0))
    weights = first.state_dict()
    found = [Contestant("ours, defaults", first, attend(first))]

    def add(name: str, make: Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor]]]) -> None:
        if chosen is None or any(name.startswith(start) for start in chosen):
            found.append(Contestant(name, *make()))

    def ours(backend: str, chunk: int | None) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        layer = PackedMultiheadAttention(*sizes, chunk_size=chunk)
        layer.backend = backend
        layer.load_state_dict(weights)
        return layer, attend(layer)

    def kpnn2(chunk: int | None) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        import kpnn2

        layer = kpnn2.PackedMultiheadAttention(*sizes, chunk_size=chunk)
        layer.load_state_dict(weights)
        return layer, attend(layer)

    def looped() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        layer = Looped(first)
        return layer, layer

    chunks = [None, chunk_size] if size.edges > chunk_size else [None]
    if len(chunks) == 1:
        print(f"skipped chunked layers: {size.edges:,} edges fit into one chunk of {chunk_size:,}")
    there = version_of("kpnn2") is not None
    for line in [*skipped_backends(), *([] if there else ["skipped kpnn2: not installed"])]:
        print(line)
    for chunk in chunks:
        label = ", chunked" if chunk else ""
        for backend in usable_backends():
            add(f"ours, {backend}{label}", lambda backend=backend, chunk=chunk: ours(backend, chunk))
        if there:
            add(f"kpnn2{label}", lambda chunk=chunk: kpnn2(chunk))
    add("PyG TransformerConv, looped", looped)
    if size.nodes <= dense_limit:
        add("nn.MultiheadAttention, dense mask", lambda: dense_attention(first))
    else:
        print(f"skipped nn.MultiheadAttention: {size.nodes:,}² scores a head and sample")
    return found


def compare_outputs(every: list[Contestant], tokens: Tensor) -> None:
    """Raise unless all compute the same on the first sample, where a token has a source."""
    fed = every[0].layer.target_index.unique()
    with torch.no_grad():
        expected = every[0].call(tokens[:1])[:, fed]
        for contestant in every[1:]:
            got = contestant.call(tokens[:1])[:, fed]
            error = (got - expected).abs().max().item()
            if not error <= 1e-4:
                raise SystemExit(f"{contestant.name} computes something else: outputs differ by {error:.1e}.")


def measure(every: list[Contestant], tokens: Tensor, rounds: int) -> None:
    gradient = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(2))
    for contestant in every:  # warm-up
        contestant.step(tokens, gradient)
    for _ in range(rounds):
        for contestant in every:
            start = time.perf_counter()
            contestant.step(tokens, gradient)
            contestant.seconds.append(time.perf_counter() - start)


def ratio(over: Contestant | None, under: Contestant) -> float | None:
    """Median over the rounds of the time of ``over`` divided by that of ``under``."""
    if over is None:
        return None
    return median(a / b for a, b in zip(over.seconds, under.seconds, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="small sizes, three rounds")
    parser.add_argument("--rounds", type=int, help="default 7, with --quick 3")
    parser.add_argument("--chunk-size", type=int, help="default 65,536, with --quick 8,192")
    parser.add_argument("--dense-limit", type=int, default=2_500, help="largest n for the dense mask")
    parser.add_argument("--only", nargs="+", help="contestants beside our defaults, by how names start")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rounds = options.rounds or (3 if options.quick else 7)
    chunk_size = options.chunk_size or (8_192 if options.quick else 65_536)
    report: dict[str, Any] = {"environment": environment(), "rounds": rounds, "cases": []}
    print(environment())
    for case in options.cases:
        size = (QUICK if options.quick else CASES)[case]
        print(f"\n### ({case}) {size.samples} samples × {size.nodes:,} nodes × {size.edges:,} edges\n")
        every = contestants(
            size, chunk_size, options.dense_limit, set(options.only) if options.only else None
        )
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randn(size.samples, size.nodes, WIDTH, generator=generator, requires_grad=True)
        compare_outputs(every, tokens)
        measure(every, tokens, rounds)
        by_name = {contestant.name: contestant for contestant in every}
        rows = []
        for contestant in every:
            times = [1000 * second for second in contestant.seconds]
            chunked = ", chunked" if contestant.name.endswith(", chunked") else ""
            ratios = {
                "over_ours": ratio(contestant, every[0]),
                "kpnn2_over": ratio(by_name.get(f"kpnn2{chunked}"), contestant),
            }
            rows.append(
                [
                    contestant.name,
                    f"{median(times):,.1f}",
                    f"{min(times):,.1f}–{max(times):,.1f}",
                    *("–" if value is None else f"{value:.2f}" for value in ratios.values()),
                ]
            )
            entry = {"case": case, **size._asdict(), "name": contestant.name, "ms": times, **ratios}
            report["cases"].append(entry)
        header = ["layer", "median, ms", "min–max, ms", "its time ÷ ours", "kpnn2's time ÷ its"]
        print("\n" + markdown_table(header, rows))
    print(
        f"\n{rounds} rounds. Ratios are medians over the rounds. 'ours' is our layer with its defaults; "
        "chunked layers are set against chunked kpnn2."
    )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
