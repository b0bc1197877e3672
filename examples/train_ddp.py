"""Train in several processes that share the work: DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/train_ddp.py
    python examples/train_ddp.py                        # the same in one process

Samples are SIMULATED: the class of a sample is whether products of the values along the edges of the shipped
myeloid network, with the edges' signs, add up to more than zero. Every process takes its share of
each epoch, gradients are averaged over all of them, and the first one prints and saves.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pyg_kpnn import PriorGraph, PriorTransformer, read_edgelist

PRIOR = Path(__file__).parents[1] / "datasets" / "hsc" / "edges.csv"


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    torch.set_num_threads(1)
    under_torchrun = "RANK" in os.environ
    if under_torchrun:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train(args, *((dist.get_rank(), dist.get_world_size()) if under_torchrun else (0, 1)))
    finally:
        if under_torchrun:
            dist.destroy_process_group()


def train(args: argparse.Namespace, rank: int, size: int) -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    graph = read_edgelist(PRIOR, sign="sign")
    data = TensorDataset(*simulate(graph, args.samples, args.seed))
    # Each process gets every size-th sample of one shuffled order; the batches of all make one large batch.
    sampler = DistributedSampler(data, size, rank, seed=args.seed)
    loader = DataLoader(data, max(args.batch_size // size, 1), sampler=sampler)

    torch.manual_seed(args.seed)
    plain = PriorTransformer(
        graph, embed_dim=16, num_heads=2, readout="class", num_classes=2, edge_bias="sign"
    ).to(device)
    model: nn.Module = DistributedDataParallel(plain) if size > 1 else plain
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    if rank == 0:
        print(f"{size} process{'es' if size > 1 else ''}, {len(data)} samples, {graph}")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # or every epoch has the order of the first
        sums = torch.zeros(2, device=device)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.stack([loss.detach() * len(x), torch.tensor(float(len(x)), device=device)])
        if size > 1:
            dist.all_reduce(sums)
        if rank == 0:
            print(f"epoch {epoch + 1:3d}  loss {float(sums[0] / sums[1]):.4f}")
    if rank == 0 and args.out is not None:
        plain.save_pretrained(args.out)  # the model inside, whose names carry no "module."
        print(f"saved {args.out}")


def simulate(graph: PriorGraph, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Values ``(samples, n)`` and classes ``(samples,)``; the same in every process."""
    x = torch.randn(samples, graph.state_dim, generator=torch.Generator().manual_seed(seed))
    sign = graph.sign
    assert sign is not None
    effect = x[:, graph.source_index] * x[:, graph.target_index] * sign[graph.pair_edge]
    return x, (effect.sum(1) > 0).long()


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a PriorTransformer in one or several processes.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder to save the model in")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
