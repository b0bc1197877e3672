"""What accuracy.py is made of: a fit to be run, a task, and the file of rows that a run can go on from."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

TUNE, TEST = "tune", "test"
MADE_UP = "made-up"
FIRST_TUNING_SEED = 1000  # none of them is a seed of the tables

Row = dict[str, Any]


class Job(NamedTuple):
    """One fit: what is trained on what, how, from which seed, and whether it chooses or counts."""

    task: str
    dataset: str
    model: str
    config: dict[str, Any]
    seed: int
    role: str = TEST

    @property
    def key(self) -> str:
        """The same text for the same fit, in every run."""
        return json.dumps(self._asdict(), sort_keys=True)


class Folders(NamedTuple):
    """Where raw files are read, or None, and where anything may be written."""

    data: Path | None
    work: Path


class Found(NamedTuple):
    """What a fit found: its score on the validation part, its scores on the test part, its size."""

    validation: float
    test: dict[str, float]
    parameters: int


class Best:
    """The epoch that counts: the best score on the validation part, among equals the lowest loss there."""

    def __init__(self) -> None:
        self.score, self.loss = float("-inf"), float("inf")

    def improved(self, score: float, loss: float) -> bool:
        """Whether this epoch is better than all before; it is then the one to beat."""
        if (score, -loss) <= (self.score, -self.loss):
            return False
        self.score, self.loss = score, loss
        return True


def from_raw(kind: str, load: Callable[[str, Folders], Any]) -> Callable[[str, Folders], str | None]:
    """``prepare`` of a :class:`Task` on a kind of PyG dataset: copies raw files, beside which PyG writes."""

    def prepare(dataset: str, folders: Folders) -> str | None:
        if dataset == MADE_UP:
            return None
        if folders.data is None or not (raw := folders.data / "pyg" / kind / dataset / "raw").is_dir():
            return "no raw files of it; name their folder with --data"
        if not (target := folders.work / kind / dataset / "raw").exists():
            shutil.copytree(raw, target)
        load(dataset, folders)
        return None

    return prepare


@dataclass(frozen=True)
class Task:
    """A table: the same datasets, models and budget for everybody.

    Attributes
    ----------
    title : str
        Heading of its table.
    datasets : sequence of str
        In the order of the table.
    models : sequence of str
        Names of the rows.
    grid : callable
        ``grid(model, quick)``: the configurations to try, the same for every model that has such settings.
    prepare : callable
        ``prepare(dataset, folders)``: make the files ready, or tell why the dataset has to be left out.
    run : callable
        ``run(job, folders)``: a :class:`Found`.
    headline : str
        The score that the verdicts look at.
    percent : bool
        Whether scores are shown as percentages.
    seeds : int
        Fits of each model that count, unless the command asks for another number.
    seeds_of : mapping
        The same for datasets in which more fits are wanted.
    """

    title: str
    datasets: Sequence[str]
    models: Sequence[str]
    grid: Callable[[str, bool], list[dict[str, Any]]]
    prepare: Callable[[str, Folders], str | None]
    run: Callable[[Job, Folders], Found]
    headline: str
    percent: bool = True
    quick_datasets: Sequence[str] = (MADE_UP,)
    reference: str = "ours"
    tuning_seeds: int = 2
    seeds: int = 10
    seeds_of: Mapping[str, int] = field(default_factory=dict)


def tuning_jobs(name: str, task: Task, dataset: str, quick: bool) -> list[Job]:
    """Fits that choose a configuration; none where there is nothing to choose."""
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + (1 if quick else task.tuning_seeds))
    return [
        Job(name, dataset, model, config, seed, TUNE)
        for model in task.models
        if len(configs := task.grid(model, quick)) > 1
        for config in configs
        for seed in seeds
    ]


def counting_jobs(
    name: str, task: Task, dataset: str, seeds: int, quick: bool, rows: Mapping[str, Row]
) -> list[Job]:
    """Fits that count, each model in the configuration with the best mean validation score."""
    tuning = tuning_jobs(name, task, dataset, quick)
    found = []
    for model in task.models:
        mine = [job for job in tuning if job.model == model]
        if any(job.key not in rows for job in mine):
            continue  # a fit failed, which has been said
        config = choose(mine, rows) if mine else task.grid(model, quick)[0]
        found += [Job(name, dataset, model, config, seed) for seed in range(seeds)]
    return found


def choose(jobs: Iterable[Job], rows: Mapping[str, Row]) -> dict[str, Any]:
    """The configuration with the best mean validation score, the first of equals."""
    scores: dict[str, list[float]] = {}
    configs = {}
    for job in jobs:
        text = json.dumps(job.config, sort_keys=True)
        configs[text] = job.config
        scores.setdefault(text, []).append(rows[job.key]["validation"])
    return configs[max(scores, key=lambda text: mean(scores[text]))]


def run_job(task: Task, job: Job, folders: Folders) -> Row:
    """Run one fit from its seed, on one thread, and leave the random state as it was."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        wall, cpu = time.perf_counter(), time.process_time()
        found = task.run(job, folders)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    times = {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3)}
    return {**job._asdict(), **found._asdict(), **times}


class Log:
    """Rows of fits in a file, one JSON object a line, only ever added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {key_of(row): row for row in read_rows(path)}

    def add(self, row: Row) -> None:
        """Write a row at once, so that a run that ends early loses only what was under way."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(row, ensure_ascii=False) + "\n"
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            line = "\n" + line  # a line that was cut off stays alone
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)
        self.rows[key_of(row)] = row


def key_of(row: Row) -> str:
    """The key of the fit that a row is of."""
    return Job(*(row[name] for name in Job._fields)).key


def read_rows(path: Path) -> list[Row]:
    """Rows of a file; lines that are not whole are left out, and a file that is not there has none."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and set(Job._fields) <= set(row):
            rows.append(row)
    return rows
