"""A process that tests of distributed training start: ``python distributed_worker.py RANK SIZE FOLDER``.

What is trained stands here too, so that a test can train the same in one process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import nn

from pyg_kpnn import PackedMultiheadAttention, PriorGraph, PriorGraphError, PriorTransformer

EDGES = [("a", "b"), ("c", "b"), ("b", "b"), ("d", "c"), ("e", "a"), ("a", "e"), ("c", "e")]
GRAPH = PriorGraph.from_edges(EDGES, sign=[1, -1, 1, 0, 1, -1, 1], weight=[1.0, 3.0, 2.0, 5.0, 0.5, 1.0, 4.0])
RENAMED = PriorGraph.from_edges([(s.replace("d", "D"), t) for s, t in EDGES], sign=[1, -1, 1, 0, 1, -1, 1])
SAMPLES, STEPS = 12, 4
OPTIONS = {
    "node": {},
    "class, sign": {"readout": "class", "num_classes": 3, "edge_bias": "sign"},
    "graph, log_weight": {"readout": "graph", "edge_bias": "log_weight", "add_self_loops": False},
    "masked, chunked": {"readout": "class", "num_classes": 3, "edge_bias": "sign", "chunk_size": 3},
}


class Packed(nn.Module):
    """The bare attention layer as a model."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = PackedMultiheadAttention.from_adjacency(GRAPH, 6, 2, identity=GRAPH.fingerprint)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return self.attention(x, x, x, mask)[0].square().mean((1, 2))


def build(case: str, graph: PriorGraph = GRAPH) -> nn.Module:
    torch.manual_seed(0)
    if case == "packed":
        return Packed().double()
    return PriorTransformer(graph, embed_dim=6, num_heads=2, **OPTIONS[case]).double()


def batch(case: str, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The joined batch of a step: values, targets, mask."""
    draw = torch.Generator().manual_seed(step)
    shape = (SAMPLES, 5, 6) if case == "packed" else (SAMPLES, 5)
    x = torch.randn(shape, dtype=torch.float64, generator=draw)
    mask = torch.rand(SAMPLES, 5, generator=draw) < 0.3 if case.startswith(("masked", "packed")) else None
    if "class" in OPTIONS.get(case, {}).values():
        return x, torch.arange(SAMPLES) % 3, mask
    outputs = (SAMPLES, 5) if case == "node" else (SAMPLES,)
    return x, torch.randn(outputs, dtype=torch.float64, generator=draw), mask


def train(model: nn.Module, case: str, part: slice, steps: int = STEPS) -> list[float]:
    """Losses of SGD on that part of every batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y, mask = (None if each is None else each[part] for each in batch(case, step))
        out = model(x, mask)
        loss = (
            nn.functional.mse_loss(out, y) if y.is_floating_point() else nn.functional.cross_entropy(out, y)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def ddp(part: slice) -> dict[str, object]:
    from torch.nn.parallel import DistributedDataParallel

    found: dict[str, object] = {}
    for case in (*OPTIONS, "packed"):
        model = build(case)
        losses = train(DistributedDataParallel(model, find_unused_parameters=False), case, part)
        found[case] = {"losses": losses, "state": model.state_dict()}
    return found


def shard(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def outcome(call: object) -> str:
    """The error's class and words, or "loaded"."""
    try:
        call()  # type: ignore[operator]
    except (PriorGraphError, RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def fsdp(part: slice) -> dict[str, object]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.tensor import DTensor

    found: dict[str, object] = {}
    for case in OPTIONS:
        model = shard(build(case))
        sharded = all(isinstance(parameter, DTensor) for parameter in model.parameters())
        losses = train(model, case, part)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        full = get_model_state_dict(model, options=options)
        shares = model.state_dict()
        if dist.get_rank() == 0:
            found[case] = {
                "losses": losses,
                "state": dict(full),
                "sharded": sharded,
                "save": outcome(lambda model=model: model.save_pretrained("never")),
            }
        again = shard(build(case))
        loaded = outcome(lambda again=again, shares=shares: again.load_state_dict(shares))
        if dist.get_rank() == 0:
            found[case]["loads its shares"] = loaded  # type: ignore[index]
    other = shard(build("class, sign", RENAMED))
    found["other graph"] = outcome(lambda: other.load_state_dict(shares))
    # Weights first, shards after: how a file comes into a sharded model.
    model = build("node")
    if dist.get_rank() == 0:
        model.load_state_dict(found["node"]["state"])  # type: ignore[index]
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    out = shard(model)(*batch("node", 9)[::2])
    found["resumed"] = out.detach()
    return found


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=size)
    share = SAMPLES // size
    part = slice(share * rank, share * (rank + 1))
    try:
        found = {"ddp": ddp(part), "fsdp": None}
        if hasattr(torch.distributed.fsdp, "fully_shard"):
            found["fsdp"] = fsdp(part)
        torch.save(found, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
