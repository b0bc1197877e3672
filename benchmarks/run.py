"""All measurements: memory.py, speed.py and kernel.py --scaling, each in a process of its own, into one file.

The file is written again after every script, so that an interrupted run keeps what it found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import argument_parser, parse, write_json
from environment import environment

HERE = Path(__file__).resolve().parent
SCRIPTS: dict[str, list[str]] = {"memory": [], "speed": [], "kernel": ["--scaling"]}
TIMED = ("speed", "kernel")


def command(script: str, options: argparse.Namespace, path: Path) -> list[str]:
    words = [sys.executable, str(HERE / f"{script}.py"), "--json", str(path), *SCRIPTS[script]]
    if options.quick:
        words.append("--quick")
    if options.threads:
        words += ["--threads", str(options.threads)]
    if options.rounds and script in TIMED:
        words += ["--rounds", str(options.rounds)]
    return words


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, help="of the timed scripts; default their own")
    options = parse(parser)
    results: dict[str, Any] = {"environment": environment(), "seconds": {}, "scripts": {}}
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for script in SCRIPTS:
            path = Path(folder, f"{script}.json")
            print(f"\n## {script}.py\n", flush=True)
            begun = time.perf_counter()
            if subprocess.run(command(script, options, path), check=False).returncode:
                failed.append(script)
            else:
                results["scripts"][script] = json.loads(path.read_text())
            results["seconds"][script] = round(time.perf_counter() - begun, 1)
            if options.json:
                write_json(options.json, results)
    times = ", ".join(f"{script} {seconds:.0f} s" for script, seconds in results["seconds"].items())
    print(f"\nTook: {times}." + (f" Written to {options.json}." if options.json else ""))
    if failed:
        raise SystemExit(f"Without a result, for the reason above: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
