"""Time of a whole attention layer, ours beside its peers: inference and a training step.

Inference runs in eval mode without gradients. A training step zeroes the gradients, runs
forward and runs backward to the parameters and the input. All layers hold the same weights,
and their outputs and input gradients are compared before anything is timed. They take turns,
and are compared round by round.
"""

from __future__ import annotations

import argparse
from typing import TypeVar

import torch
from common import (
    CASES,
    INFERENCE,
    TRAINING,
    Contestant,
    Report,
    Size,
    add_case_options,
    add_timing_options,
    argument_parser,
    measure,
    parse,
    ratio,
    require_same,
    size_of,
    spread,
)
from layers import CHUNKED, candidates, our_layer
from torch import Tensor, nn

from pyg_kpnn import backends

T = TypeVar("T")


def contestant(name: str, layer: nn.Module, tokens: Tensor, gradient: Tensor) -> Contestant:
    def infer() -> Tensor:
        layer.eval()
        with torch.no_grad():
            return layer(tokens)

    def train() -> Tensor | None:
        layer.train()
        layer.zero_grad(set_to_none=True)
        tokens.grad = None
        layer(tokens).backward(gradient)
        return tokens.grad

    return Contestant(name, {INFERENCE: infer, TRAINING: train})


def chosen(found: dict[str, T], only: list[str] | None) -> dict[str, T]:
    """Our defaults, and the layers whose names start with one of ``only``; all without it."""
    starts = ("",) if only is None else tuple(only)
    return {name: value for name, value in found.items() if name == "ours" or name.startswith(starts)}


def compare(every: list[Contestant], fed: Tensor) -> None:
    """Raise unless all compute the same where a node has a source, and pass back the same gradient."""
    expected = every[0].warm_up()
    for other in every[1:]:
        found = other.warm_up()
        require_same(other.name, "output", found[INFERENCE][:, fed], expected[INFERENCE][:, fed])
        require_same(other.name, "gradient of the input", found[TRAINING], expected[TRAINING])


def show(report: Report, every: list[Contestant], left_out: dict[str, str]) -> None:
    """A table of inference and one of training steps."""
    by_name = {contestant.name: contestant.seconds for contestant in every}
    for what in (INFERENCE, TRAINING):
        rows = []
        for name, seconds in by_name.items():
            peer = by_name.get("kpnn2" + (CHUNKED if name.endswith(CHUNKED) else ""))
            rows.append(
                [
                    name,
                    spread(seconds[what]),
                    f"{len(seconds[what])}",
                    f"{ratio(seconds[what], by_name['ours'][what]):.2f}",
                    f"{ratio(peer[what], seconds[what]):.2f}" if peer else "–",
                ]
            )
        rows += [[name, *"––––"] for name in left_out]
        header = [what, "median (min–max), ms", "rounds", "its time ÷ ours", "kpnn2's time ÷ its"]
        report.table(header, rows)
    report.say_left_out(left_out)


def run_case(case: str, size: Size, report: Report, options: argparse.Namespace) -> None:
    report.section(f"({case}) {size}: whole layer")
    found, left_out = candidates(size, options.chunk_size)
    found, left_out = chosen(found, options.only), chosen(left_out, options.only)
    ours = our_layer(size)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(size.samples, size.nodes, size.embed_dim, generator=generator, requires_grad=True)
    # What a dense mask makes of a node without a source is its own; its gradient is left out.
    fed = ours.target_index.unique()
    gradient = torch.zeros_like(tokens, requires_grad=False)
    gradient[:, fed] = torch.randn(size.samples, len(fed), size.embed_dim, generator=generator)
    every = [contestant(name, build(ours), tokens, gradient) for name, build in found.items()]
    compare(every, fed)
    measure(every, options.rounds, options.budget)
    show(report, every, left_out)
    report.record_times(every, size)


def main() -> None:
    parser = argument_parser(__doc__)
    add_case_options(parser, default=list(CASES))
    add_timing_options(parser, rounds=7)
    parser.add_argument("--only", nargs="+", help="layers beside our defaults, by how their names start")
    options = parse(parser)
    report = Report("speed", options)
    for case in options.cases:
        run_case(case, size_of(case, options.quick), report, options)
    default = "native" if backends()["native"].available else "torch"
    report.section("Notes on whole layers")
    report.say(
        f"'ours' is our layer with its defaults, which take the {default} kernel here. Ratios are medians of "
        "ratios within rounds. Chunked layers are set against chunked kpnn2, others against kpnn2 at once."
    )
    report.write(options.json)


if __name__ == "__main__":
    main()
