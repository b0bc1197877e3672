"""How accurate the layers are: every table of docs/accuracy.md by one command.

Every fit is one line of build/accuracy.jsonl. A fit that is there is not run again, so a run that was
stopped goes on where it was. Configurations are chosen by validation scores over seeds of their own,
then the tables are made from fresh seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import accuracy_fits
import accuracy_graphs
import accuracy_nodes
import accuracy_recovery
from accuracy_jobs import MADE_UP, Folders, Job, Log, Row, Task, counting_jobs, run_job, tuning_jobs
from accuracy_tables import tables, write_between_markers
from common import write_json
from environment import describe, environment
from tqdm import tqdm

HOME = Path(__file__).resolve().parents[1]
TASKS: dict[str, Task] = {
    "nodes": accuracy_nodes.TASK,
    "graphs": accuracy_graphs.TASK,
    "states": accuracy_fits.STATES,
    "masked": accuracy_fits.MASKED,
    "recovery": accuracy_recovery.TASK,
}


def work(job: Job, folders: Folders) -> Row:
    """One fit, in whichever process."""
    return run_job(TASKS[job.task], job, folders)


def run(jobs: Sequence[Job], log: Log, folders: Folders, pool: Executor | None, words: str) -> list[str]:
    """Run what the log does not have, and tell which fits failed."""
    todo = [job for job in jobs if job.key not in log.rows]
    failed = []
    with tqdm(total=len(jobs), initial=len(jobs) - len(todo), desc=words, unit="fit") as bar:
        for job, done in _each(todo, folders, pool):
            try:
                log.add(done())
            except Exception:
                failed.append(job.key)
                tqdm.write(f"Failed: {job.key}\n{traceback.format_exc()}")
            bar.update()
    return failed


def _each(
    jobs: Sequence[Job], folders: Folders, pool: Executor | None
) -> Iterator[tuple[Job, Callable[[], Row]]]:
    """Jobs, and calls that hand their rows over, as they get done; without a pool in this process."""
    if pool is None:
        for job in jobs:
            yield job, partial(work, job, folders)
        return
    waiting = {pool.submit(work, job, folders): job for job in jobs}
    for future in as_completed(waiting):
        yield waiting[future], future.result


def pool_of(processes: int) -> AbstractContextManager[Executor | None]:
    """Processes for the whole run: each takes seconds to load its libraries."""
    if processes == 1:
        return nullcontext()
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    return ProcessPoolExecutor(processes, mp_context=context)


def measure(
    options: argparse.Namespace, log: Log, folders: Folders, pool: Executor | None
) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows of every table, and what went wrong or was left out."""
    found: dict[str, list[Row]] = {}
    notes = []
    for name in options.tasks:
        task = TASKS[name]
        found[name] = []
        for dataset in chosen(task, options):
            why = None if options.only_tables else task.prepare(dataset, folders)
            if why is not None:
                notes.append(f"Left out: {name} on {dataset}: {why}.")
                continue
            many = (seeds_of(task, dataset, options), options.quick, log.rows)
            if not options.only_tables:
                choosing = wanted(tuning_jobs(name, task, dataset, options.quick), options)
                failed = run(choosing, log, folders, pool, f"{name} {dataset}, choosing")
                counting = wanted(counting_jobs(name, task, dataset, *many), options)
                failed += run(counting, log, folders, pool, f"{name} {dataset}")
                notes += [f"Failed: {key}" for key in failed]
            jobs = counting_jobs(name, task, dataset, *many)
            found[name] += [log.rows[job.key] for job in jobs if job.key in log.rows]
    return found, notes


def seeds_of(task: Task, dataset: str, options: argparse.Namespace) -> int:
    """Fits of each model that count: as many as were asked for, or as the task's table is made of."""
    return options.seeds or (2 if options.quick else task.seeds_of.get(dataset, task.seeds))


def chosen(task: Task, options: argparse.Namespace) -> list[str]:
    """Datasets of a task: all of them, the small ones of a quick run, or those that were asked for."""
    if options.datasets:
        return [name for name in (*task.datasets, MADE_UP) if name in options.datasets]
    return [*task.quick_datasets] if options.quick else [*task.datasets]


def wanted(jobs: list[Job], options: argparse.Namespace) -> list[Job]:
    """Jobs of the models that were asked for."""
    return [job for job in jobs if options.models is None or job.model in options.models]


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=_tasks, default=list(TASKS), help=f"default {','.join(TASKS)}")
    parser.add_argument("--datasets", type=_datasets, help="only these, by name")
    parser.add_argument("--models", type=_models, help="run only these, separated by ; tables show all")
    parser.add_argument(
        "--seeds", type=_positive, help="fits of each model that count; default 10, MUTAG and THP1 30"
    )
    parser.add_argument("--jobs", type=_positive, default=2, help="processes of one thread each; default 2")
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("PYG_KPNN_DATA"),
        help="folder of raw files, only read; default the variable PYG_KPNN_DATA",
    )
    parser.add_argument("--quick", action="store_true", help="made-up data and short fits: does it all run?")
    parser.add_argument("--log", type=Path, help="file of rows; default build/accuracy.jsonl")
    parser.add_argument("--json", type=Path, help="also write the tables and all rows to this file")
    parser.add_argument("--only-tables", action="store_true", help="run nothing, show what the log has")
    parser.add_argument(
        "--tables", type=Path, nargs="?", const=HOME / "docs/accuracy.md", help="write them into this page"
    )
    options = parser.parse_args(words)
    options.data = Path(options.data) if options.data else None
    options.log = options.log or HOME / "build" / (
        "accuracy_quick.jsonl" if options.quick else "accuracy.jsonl"
    )
    return options


def _models(text: str) -> list[str]:
    known = [name for task in TASKS.values() for name in task.models]
    return _several(text, list(dict.fromkeys(known)), ";")


def _tasks(text: str) -> list[str]:
    return _several(text, list(TASKS))


def _datasets(text: str) -> list[str]:
    known = [name for task in TASKS.values() for name in task.datasets]
    return _several(text, list(dict.fromkeys([*known, MADE_UP])))


def _several(text: str, known: list[str], between: str = ",") -> list[str]:
    names = text.split(between)
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return names


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def main(words: Sequence[str] | None = None) -> None:
    options = options_of(words)
    print(describe(environment()), flush=True)
    log = Log(options.log)
    folders = Folders(options.data, options.log.parent / "accuracy_data")
    with pool_of(options.jobs) as pool:
        found, notes = measure(options, log, folders, pool)
    written = {name: tables(TASKS[name], rows) for name, rows in found.items() if rows}
    for name, text in written.items():
        print(f"\n### {TASKS[name].title}\n\n{text}")
    if options.tables:
        write_between_markers(options.tables, written)
    if options.json:
        write_json(options.json, {"environment": environment(), "tables": written, "rows": found})
    print("\n".join(["", *notes]))
    if any(note.startswith("Failed") for note in notes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
