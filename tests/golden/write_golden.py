"""Write the golden files of a version: checkpoints and graphs that every later version has to read.

Run once for a release, with that release installed, and commit what it wrote::

    python tests/golden/write_golden.py

The folder is named after the version, and files that are there are never written again. Weights and
inputs come from a formula, so no random generator has to stay what it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyg_kpnn
from pyg_kpnn import (
    AttentionJetMLP,
    PackedMultiheadAttention,
    PriorAttentionConv,
    PriorGraph,
    PriorTransformer,
)

HERE = Path(__file__).parent
MODELS = {
    "PriorTransformer": PriorTransformer,
    "PackedMultiheadAttention": PackedMultiheadAttention.from_adjacency,
    "PriorAttentionConv": PriorAttentionConv,
    "AttentionJetMLP": AttentionJetMLP,
}


def wave(*shape: int, phase: float = 0.0) -> Tensor:
    """Numbers between -1 and 1 that any version makes alike."""
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * 0.7 + phase).reshape(shape)


def graphs() -> dict[str, PriorGraph]:
    """One graph of every kind."""
    edges = [("Gata1", "Fog1"), ("Pu1", "Gata1"), ("Gata1", "Pu1"), ("Gata1", "Gata1"), ("naïve", "Pu1")]
    return {
        "plain": PriorGraph.from_edges(edges),
        "full": PriorGraph.from_edges(
            edges, sign=[1, -1, -1, 1, 0], weight=[1, 0.5, 2, 0.1, 1], nodes=["alone"], widths={"Pu1": 2}
        ),
        "two sides": PriorGraph.bipartite(
            [("TP53", "apoptosis"), ("MYC", "growth"), ("TP53", "growth")], sources=["TP53", "MYC", "EGFR"]
        ),
    }


def build(record: dict[str, Any]) -> nn.Module:
    """The model of a record, from its class, graph and configuration alone."""
    config = dict(record["config"])
    if record["class"] == "PriorTransformer":
        config.setdefault("shared_head", True)  # files without the word are older than heads of nodes
    if record["graph"] is not None:
        graph = PriorGraph.from_dict(record["graph"])
        if config.pop("name_the_graph", False):
            config["identity"] = graph.fingerprint
        return MODELS[record["class"]](graph, **config).double()
    return MODELS[record["class"]](**config).double()


def predict(record: dict[str, Any], model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Output of the model on the inputs of a record."""
    with torch.no_grad():
        output = model.eval()(*inputs.values())
    return output[0] if isinstance(output, tuple) else output


def records() -> dict[str, tuple[dict[str, Any], dict[str, Tensor]]]:
    """What is saved: class, graph and configuration of every model, and inputs for it."""
    every = {name: graph.to_dict() for name, graph in graphs().items()}
    sizes = {"embed_dim": 4, "num_heads": 2}
    keys = wave(2, 3, 4, phase=2)
    return {
        "prior_transformer": (
            {
                "class": "PriorTransformer",
                "graph": every["full"],
                "config": {**sizes, "readout": "class", "num_classes": 3, "edge_bias": "sign"}
                | {"shared_head": True},
            },
            {"x": wave(3, 6)},
        ),
        "prior_transformer_nodes": (
            {
                "class": "PriorTransformer",
                "graph": every["full"],
                "config": {**sizes, "readout": "node", "shared_head": False},
            },
            {"x": wave(3, 6)},
        ),
        "packed_attention": (
            {
                "class": "PackedMultiheadAttention",
                "graph": every["two sides"],
                "config": {**sizes, "name_the_graph": True},
            },
            {"query": wave(2, 2, 4), "key": keys, "value": keys},
        ),
        "conv": (
            {
                "class": "PriorAttentionConv",
                "graph": None,
                "config": {"in_channels": 3, "out_channels": 2, "heads": 2},
            },
            {"x": wave(4, 3), "edge_index": torch.tensor([[0, 1, 2, 3, 0], [1, 2, 0, 0, 3]])},
        ),
        "attention_jet_mlp": (
            {
                "class": "AttentionJetMLP",
                "graph": None,
                "config": {"in_dim": 2, "hidden": 3, "out_dim": 2, "depth": 2, "memory": 4},
            },
            {"x": wave(5, 2)},
        ),
    }


def main() -> None:
    from safetensors.torch import save_file

    folder = HERE / pyg_kpnn.__version__
    folder.mkdir()  # an error if it is there: golden files stay as they are
    named = {name: {"fingerprint": g.fingerprint, "payload": g.to_dict()} for name, g in graphs().items()}
    (folder / "graphs.json").write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
    for name, (record, inputs) in records().items():
        model = build(record)
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(wave(*parameter.shape, phase=number))
        state = dict(model.state_dict())
        output = predict(record, model, inputs)
        everything = {**record, "model": state, "inputs": inputs, "output": output}
        torch.save(everything, folder / f"{name}.ckpt")
        path = folder / f"{name}.safetensors"
        save_file(state, path, metadata={"record": json.dumps(record)})
        path.chmod(0o644)


if __name__ == "__main__":
    main()
