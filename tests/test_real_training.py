"""A whole training run on a real prior with real measurements."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from pyg_kpnn import PriorTransformer, align_inputs, load_checkpoint, read_edgelist


@pytest.mark.slow
def test_prior_transformer_learns_time_from_real_single_cells(data_dir: Path, tmp_path: Path) -> None:
    # THP-1 human myeloid cells, 8 time points of 120 cells each: chance is 0.125.
    folder = data_dir / "beeline" / "THP1"
    graph = read_edgelist(folder / "refNetwork.csv", source="Gene1", target="Gene2")
    assert (graph.num_nodes, graph.num_edges) == (45, 335)
    expression = pd.read_csv(folder / "ExpressionData.csv", index_col=0, dtype={0: str}).T
    time = pd.read_csv(folder / "PseudoTime.csv", index_col=0)["Time"]
    time.index = time.index.astype(str)
    values = torch.tensor(align_inputs(expression, graph).to_numpy(), dtype=torch.float32)
    labels = torch.tensor(time.loc[expression.index].astype("category").cat.codes.to_numpy()).long()

    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, train = order[:240], order[240:]
    values = (values - values[train].mean(0)) / values[train].std(0)
    torch.manual_seed(0)
    model = PriorTransformer(graph, embed_dim=32, num_heads=4, readout="class", num_classes=8, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    for _ in range(60):
        for batch in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(values[batch]), labels[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        predicted = model(values[held_out]).argmax(-1)
    recalls = [(predicted[labels[held_out] == c] == c).float().mean() for c in range(8)]
    balanced = float(torch.stack(recalls).mean())
    print(f"held-out balanced accuracy {balanced:.3f}")
    assert balanced > 0.6  # a graph-free logistic regression reaches 0.73 in cross-validation

    torch.save(model.state_dict(), tmp_path / "thp1.pt")
    again = PriorTransformer(graph, embed_dim=32, num_heads=4, readout="class", num_classes=8, dropout=0.2)
    load_checkpoint(again, torch.load(tmp_path / "thp1.pt", weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(values[held_out]), model(values[held_out]))
