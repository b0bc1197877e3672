"""Time of exact input derivatives of AttentionJetMLP, beside torch.func and omnibias-torch.

Everybody differentiates the same network, and results are compared before anything is timed.
Contestants take turns, a few calls each a round; times are medians over rounds, ratios are taken within
a round. ``floor`` is the time of the matrix products that a Hessian consists of and of nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from common import markdown_table
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, vmap

from pyg_kpnn.jets import JetSpace
from pyg_kpnn.nn.attention_jet_mlp import AttentionJetMLP, make_attention_jet_mlp

Call = Callable[[], Tensor]


class Size(NamedTuple):
    points: int
    in_dim: int
    hidden: int
    memory: int
    depth: int


class Task(NamedTuple):
    """Several ways to the same tensor, ours first, and a floor that computes nothing."""

    name: str
    ways: dict[str, Call]
    floor: Call | None = None


def products(size: Size) -> Call:
    """The matrix products of one Hessian, each on what the one before has left, and nothing else."""
    b, d, h, m, depth = size.points, size.in_dim, size.hidden, size.memory, size.depth
    x, first, square, keys = (torch.rand(*shape) / h for shape in ((b, d), (d, h), (h, h), (m, h)))
    paths, pairs = torch.rand(h, d * h) / h, torch.rand(h, d * d) / h
    hidden, other, scores = torch.empty(b, h), torch.empty(b, h), torch.empty(b, m)
    jacobian, twin = torch.empty(b, d, h), torch.empty(b, d, h)
    of_scores, result = torch.empty(m, b * d), torch.empty(b, d, d)
    centred = torch.rand(b, d, m)

    def run() -> Tensor:
        torch.mm(x, first, out=hidden)
        for _ in range(2 * (depth - 1)):  # forward, and backward
            torch.mm(hidden, square, out=other)
        torch.mm(hidden, keys.mT, out=scores)
        torch.mm(scores, keys, out=other)
        torch.mm(hidden, paths, out=jacobian.view(b, d * h))
        for _ in range(depth - 2):
            torch.mm(jacobian.view(b * d, h), square, out=twin.view(b * d, h))
        torch.mm(keys, jacobian.view(b * d, h).mT, out=of_scores)
        torch.mm(hidden, pairs, out=result.view(b, d * d))
        for _ in range(depth - 1):
            torch.bmm(jacobian, jacobian.mT, out=result)
        return torch.bmm(centred, centred.mT, out=result)

    return run


def omnibias_twin(net: AttentionJetMLP) -> Any:
    """omnibias-torch's network with the parameters of ``net``, or None where it is not installed."""
    try:
        from omnibias.torch.architectures.attention import AttentionJetMLP as Theirs
    except ImportError:
        return None
    twin = Theirs(
        net.in_dim, net.hidden, net.out_dim, net.depth, net.spec.name, memory=net.memory, dtype=net.keys.dtype
    )
    with torch.no_grad():
        for layer, weight, bias in zip(twin.encoder, net.weights, net.biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        twin.keys.copy_(net.keys)
        twin.values.copy_(net.values)
        twin.readout.weight.copy_(net.readout_weight)
        twin.readout.bias.copy_(net.readout_bias)
    return twin


def tasks(size: Size) -> list[Task]:
    net = make_attention_jet_mlp(size.in_dim, size.hidden, depth=size.depth, memory=size.memory)
    x = torch.rand(size.points, size.in_dim, generator=torch.Generator().manual_seed(0)) * 2 - 1
    twin = omnibias_twin(net)
    twice = vmap(jacfwd(jacrev(net.value)))
    second = vmap(hessian(net.value))
    hessians: dict[str, Call] = {
        "ours": lambda: net.hessian(x),
        "jacfwd(jacrev)": lambda: twice(x).permute(0, 2, 3, 1),
    }
    jets: dict[str, Call] = {"ours": lambda: net.jet(x, 3), "3 jacfwd": lambda: third_order_rows(net, x)}
    if twin is not None:
        theirs = vmap(jacfwd(jacrev(twin.value)))  # their value runs the encoder twice
        hessians["jacfwd(jacrev) of omnibias"] = lambda: theirs(x).permute(0, 2, 3, 1)
        hessians["omnibias"] = lambda: twin.hessian(x)
        jets["omnibias"] = lambda: twin.jet(x, 3)
    found = [
        Task("value", {"ours": lambda: net.value(x)}),
        Task("gradient", {"ours": lambda: net.gradient(x), "jacrev": lambda: vmap(jacrev(net.value))(x).mT}),
        Task("hessian", hessians, products(size)),
        Task(
            "laplacian",
            {
                "ours": lambda: net.laplacian(x),
                "trace of hessian": lambda: second(x).diagonal(dim1=2, dim2=3).sum(-1),
            },
        ),
    ]
    return [*found, Task("jet(order=3)", jets)] if size.in_dim <= 3 else found


def third_order_rows(net: AttentionJetMLP, x: Tensor) -> Tensor:
    """Rows of order 3 of a jet (B, rows, out_dim), out of all third derivatives."""
    raw = vmap(jacfwd(jacfwd(jacfwd(net.value))))(x)
    space = JetSpace(net.in_dim, 3)
    indices = [alpha for alpha in space.indices if sum(alpha) == 3]
    variables = [[v for v, times in enumerate(alpha) for _ in range(times)] for alpha in indices]
    rows = torch.stack([raw[(slice(None), slice(None), *pick)] for pick in variables], dim=1)
    return rows / space.factorials(raw)[-len(indices) :].unsqueeze(-1)


def check(task: Task) -> None:
    """Stop unless all ways lead to the same tensor; a way that has only the last rows of a jet may."""
    results = {name: call() for name, call in task.ways.items()}
    ours = results.pop("ours")
    for name, other in results.items():
        mine = ours if other.shape == ours.shape else ours[:, -other.shape[1] :]
        error = ((mine - other).abs().max() / mine.abs().max()).item()
        if error > 1e-10:
            raise SystemExit(f"{task.name}: ours and {name} differ by {error:.1e} of the largest entry.")


def measure(task: Task, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Milliseconds a call of every way and of the floor, round by round."""
    calls = dict(task.ways)
    if task.floor is not None:
        calls["floor"] = task.floor
    repeats = {}
    for name, call in calls.items():
        call()
        start = clock()
        call()
        repeats[name] = max(1, min(20, round(0.01 / (clock() - start))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()  # what ran before has emptied the caches
            start = clock()
            for _ in range(repeats[name]):
                call()
            times[name].append((clock() - start) / repeats[name] * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--in-dims", type=int, nargs="+", default=[3, 10, 30], help="numbers of inputs")
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--memory", type=int, default=16)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--threads", type=int, nargs="+", help="numbers of threads, torch's own when not given"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="of the process, for one thread on a machine that is busy"
    )
    parser.add_argument("--quick", action="store_true", help="few points and rounds")
    parser.add_argument("--json", type=Path, help="also write all times to this file")
    options = parser.parse_args()
    if options.quick:
        options.points, options.rounds = 32, 3

    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_default_dtype(torch.float64)
    print(environment())
    print(
        f"{options.points} points, hidden {options.hidden}, memory {options.memory}, depth {options.depth}, "
        f"float64, no_grad, {'CPU' if options.cpu_time else 'wall'} time; medians, and how many times ours\n"
    )
    rows, record = [], []
    for threads in options.threads or [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        for in_dim in options.in_dims:
            size = Size(options.points, in_dim, options.hidden, options.memory, options.depth)
            with torch.no_grad():
                for task in tasks(size):
                    check(task)
                    times = measure(task, options.rounds, clock)
                    rows.append([task.name, str(threads), str(in_dim), *cells(times)])
                    record.append(dict(task=task.name, threads=threads, in_dim=in_dim, milliseconds=times))
    print(markdown_table(["task", "threads", "in_dim", "ours, ms", "others"], rows))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def cells(times: dict[str, list[float]]) -> list[str]:
    """Our median, and that of each other with the median of its ratios to ours."""
    ours = times["ours"]
    others = []
    for name, theirs in times.items():
        if name != "ours":
            times_ours = median(a / b for a, b in zip(theirs, ours, strict=True))
            ratio = f"ours ÷ it {1 / times_ours:.2f}" if name == "floor" else f"× {times_ours:.1f}"
            others.append(f"{name} {median(theirs):.2f} ms, {ratio}")
    return [f"{median(ours):.2f}", "; ".join(others)]


def environment() -> str:
    """One line: processor, versions."""
    try:
        theirs = f"omnibias-torch {version('omnibias-torch')}"
    except PackageNotFoundError:
        theirs = "omnibias-torch is not installed"
    cpu = torch.backends.cpu.get_cpu_capability()
    return f"{os.cpu_count()} cores with {cpu}, torch {torch.__version__}, {theirs}"


if __name__ == "__main__":
    main()
