"""Two processes train to the losses and parameters of one with the joined batch: DDP and FSDP2 over gloo."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pyg_kpnn import PriorTransformer

WORKER = Path(__file__).with_name("distributed_worker.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"
NEAR = {"rtol": 0.0, "atol": 1e-12}

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo"
)


@pytest.fixture(scope="module")
def worker():
    spec = importlib.util.spec_from_file_location("distributed_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both processes have to tell, of all kinds of training: starting them is what takes time."""
    folder = tmp_path_factory.mktemp("two")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(folder)],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(printed)
    assert not any("unused" in text for text in printed), printed
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def ddp(found):
    return [each["ddp"] for each in found]


@pytest.fixture(scope="module")
def fsdp(found):
    if found[0]["fsdp"] is None:
        pytest.skip("torch has no fully_shard")
    return [each["fsdp"] for each in found]


def alone(worker, case: str) -> tuple[torch.nn.Module, list[float]]:
    model = worker.build(case)
    return model, worker.train(model, case, slice(None))


CASES = ["node", "class, sign", "graph, log_weight", "masked, chunked"]


@pytest.mark.parametrize("case", [*CASES, "packed"])
def test_ddp_is_one_process_with_the_joined_batch(worker, ddp, case):
    before = {name: tensor.clone() for name, tensor in worker.build(case).named_parameters()}
    model, losses = alone(worker, case)
    first, second = (each[case] for each in ddp)
    halves = torch.tensor([first["losses"], second["losses"]], dtype=torch.float64)
    torch.testing.assert_close(halves.mean(0), torch.tensor(losses, dtype=torch.float64), **NEAR)
    assert (halves[0] - halves[1]).abs().min() > 1e-3  # the two had different samples
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(first["state"][name], parameter.detach(), **NEAR)
        assert torch.equal(first["state"][name], second["state"][name]), name
        # Adding the same to every score of a target changes nothing.
        assert name.endswith("k_proj.bias") or not torch.equal(parameter, before[name]), name
    model.load_state_dict(first["state"])  # of the same graph


@pytest.mark.parametrize("case", CASES)
def test_fsdp_is_one_process_with_the_joined_batch(worker, fsdp, case):
    model, losses = alone(worker, case)
    found = fsdp[0][case]
    assert found["sharded"]
    assert found["losses"] != pytest.approx(losses, abs=1e-3)  # it saw half of each batch
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found["state"][name], parameter.detach(), **NEAR)
    again = worker.build(case)
    again.load_state_dict(found["state"])
    x, _, mask = worker.batch(case, 9)
    torch.testing.assert_close(again(x, mask), model(x, mask), **NEAR)


def test_weights_loaded_before_sharding(worker, fsdp):
    model, _ = alone(worker, "node")
    for found in fsdp:
        torch.testing.assert_close(found["resumed"], model(*worker.batch("node", 9)[::2]).detach(), **NEAR)


def test_a_sharded_model_is_not_saved_in_parts(fsdp):
    for case in CASES:
        assert re.match("PriorGraphError: A sharded model must be gathered", fsdp[0][case]["save"])


def test_shares_into_a_sharded_model(fsdp):
    assert {fsdp[0][case]["loads its shares"] for case in CASES} == {"loaded"}
    assert re.match("PriorGraphError: The checkpoint must have the edges and sizes", fsdp[0]["other graph"])


def test_example_under_torchrun(tmp_path, capsys):
    options = ["--epochs", "2", "--samples", "64"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = run([*command, str(EXAMPLE), *options, "--out", "model"], tmp_path)
    lines = epochs(out)
    assert [number for number, _ in lines] == ["1", "2"]  # one process prints
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert "2 processes" in out
    assert out.count("saved") == 1
    assert PriorTransformer.from_pretrained(tmp_path / "model").config["readout"] == "class"

    # Alone, with batches twice as large, the same steps are made.
    spec = importlib.util.spec_from_file_location("example_train_ddp", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    state = torch.get_rng_state()
    example.main(options)
    torch.set_rng_state(state)
    alone = capsys.readouterr().out
    assert "1 process," in alone
    assert "saved" not in alone
    for (_, one), (_, other) in zip(lines, epochs(alone), strict=True):
        assert float(one) == pytest.approx(float(other), abs=2e-4)


def epochs(printed: str) -> list[tuple[str, str]]:
    return re.findall(r"^epoch +(\d+) +loss +(\d+\.\d+)$", printed, flags=re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    """What a command prints; what it started ends with it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(timeout=120)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, out + err
    return out
