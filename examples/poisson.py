"""A Poisson equation solved by minimising its residual, with an exact Laplacian of the network.

    python examples/poisson.py
    python examples/poisson.py --steps 100 --figures pictures

On the unit square, -Δu = 2π² sin(πx) sin(πy) with u = 0 on the boundary has the solution
u = sin(πx) sin(πy). The network is multiplied by x(1 - x)y(1 - y), so that the boundary values hold
whatever its weights are, and the product rule gives the Laplacian of the product.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from pyg_kpnn.nn.attention_jet_mlp import AttentionJetMLP


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Solve a two-dimensional Poisson equation.")
    parser.add_argument("--steps", type=int, default=300, help="of L-BFGS")
    parser.add_argument("--points", type=int, default=400, help="where the equation is asked to hold")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--figures", type=Path, help="folder for a picture, where matplotlib is installed")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)

    net = AttentionJetMLP(in_dim=2, hidden=24, memory=16, seed=args.seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(args.seed)
    points = torch.rand(args.points, 2, dtype=torch.float64, generator=generator)
    print(f"-Δu = 2π² sin(πx) sin(πy), u = 0 on the boundary of the unit square; {args.points} points")
    print(f"Untrained     residual {residual(net, points).square().mean().sqrt():.1e}")
    seconds = fit(net, points, args.steps)
    print(f"Training      {args.steps} steps in {seconds:.0f} s")
    print(f"Residual      {residual(net, points).square().mean().sqrt():.1e} root mean square")

    axis = torch.linspace(0, 1, 101, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        error = solution(net, grid) - exact(grid)
    print(f"Error         {error.abs().max():.1e} at most on a grid of 101 × 101, of a solution up to 1")
    if args.figures is not None:
        draw(args.figures, exact(grid).reshape(101, 101), error.reshape(101, 101))


def exact(x: Tensor) -> Tensor:
    return (math.pi * x).sin().prod(1)


def source(x: Tensor) -> Tensor:
    """-Δu of the exact solution."""
    return 2.0 * math.pi**2 * exact(x)


def solution(net: AttentionJetMLP, x: Tensor) -> Tensor:
    """b·net with b = x(1 - x)y(1 - y), which is 0 on the boundary."""
    return (x * (1.0 - x)).prod(1) * net(x).squeeze(1)


def residual(net: AttentionJetMLP, x: Tensor) -> Tensor:
    """Δ(b·net) + source, from Δ(bv) = bΔv + 2∇b·∇v + vΔb."""
    bump = x * (1.0 - x)
    others = bump.flip(1)  # y(1 - y) beside x, x(1 - x) beside y
    slope = (1.0 - 2.0 * x) * others
    mixed = (slope * net.gradient(x).squeeze(2)).sum(1)
    laplacian = bump.prod(1) * net.laplacian(x).squeeze(1) + 2.0 * mixed
    return laplacian - 2.0 * others.sum(1) * net(x).squeeze(1) + source(x)


def fit(net: AttentionJetMLP, points: Tensor, steps: int) -> float:
    """L-BFGS on the mean square residual; returns the seconds it took."""
    optimizer = torch.optim.LBFGS(
        net.parameters(), max_iter=steps, history_size=50, line_search_fn="strong_wolfe", tolerance_change=0.0
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = residual(net, points).square().mean()
        loss.backward()
        return loss

    start = time.perf_counter()
    optimizer.step(closure)
    return time.perf_counter() - start


def draw(folder: Path, truth: Tensor, error: Tensor) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture    matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, title, values in zip(figure.subplots(1, 2), ("solution", "error"), (truth, error), strict=True):
        image = axes.imshow(values.T.numpy(), origin="lower", extent=(0, 1, 0, 1))
        axes.set(title=title, xlabel="x", ylabel="y")
        figure.colorbar(image, ax=axes)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "poisson.png"
    figure.savefig(path, bbox_inches="tight")
    print(f"Picture       {path}")


if __name__ == "__main__":
    main()
