"""Make the project's virtual environment; `make setup` runs this.

In order: pinned pip, torch (a CPU build when one can be had), the project in editable mode with its
``dev`` extra and its native kernel, torch-scatter. Versions come from ``constraints.txt``.

The native kernel is compiled as part of the project. Without it the library works on its ``torch``
backend, so its lack is said aloud and does not stop the set-up.

torch-scatter is published as source only and a build fits one torch, so it gets its own steps: a wheel
kept from an earlier run, then PyG's wheel index, then a build here, whose wheel is kept. It is as optional.

``.ready`` in the environment says that it is complete, ``.unfinished`` that a set-up was cut short: the
next one then starts from an empty folder. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = str(ROOT / "constraints.txt")

# An index that does not answer must cost seconds, not minutes: pip's own limit on a connection, and a
# limit on the whole command for what pip's does not cover (a name that never resolves).
IMPATIENT = ["--timeout", "5", "--retries", "0"]
PROBE_SECONDS = 20
DOWNLOAD_SECONDS = 120

NATIVE_CHECK = "import pyg_kpnn; print(pyg_kpnn.backends()['native'].reason)"
SCATTER_CHECK = (
    "import torch, torch_scatter as s; assert s.segment_csr(torch.ones(3), torch.tensor([0, 3])).item() == 3"
)


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


class Environment:
    """A virtual environment, and the commands run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self.ready = folder / ".ready"
        self.unfinished = folder / ".unfinished"

    def call(self, *arguments: str, limit: float | None = None, quiet: bool = False, **options: str) -> bool:
        """Run the environment's Python; True when it succeeds within `limit` seconds."""
        sink = subprocess.DEVNULL if quiet else None
        try:
            done = subprocess.run(
                [self.python, *arguments],
                cwd=ROOT,
                env={**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **options},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                timeout=limit,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def pip(self, *arguments: str, limit: float | None = None, quiet: bool = False, **options: str) -> bool:
        return self.call("-m", "pip", *arguments, limit=limit, quiet=quiet, **options)

    def must(self, what: str, *arguments: str) -> None:
        if not self.pip(*arguments):
            sys.exit(f"setup: {what} could not be installed; pip says why above")

    def open(self) -> None:
        """Take the environment over for a set-up, from scratch unless it is whole and of this Python."""
        right = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        if self.unfinished.exists() or not self.call("-c", right, quiet=True):
            say(f"making {self.folder} with Python {platform.python_version()}")
            made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)])
            if made.returncode != 0:
                sys.exit(
                    f"setup: {sys.executable} cannot make virtual environments; install its venv module "
                    "(Debian and Ubuntu: apt-get install python3-venv) or name another: make PYTHON=..."
                )
        self.ready.unlink(missing_ok=True)
        self.unfinished.touch()

    def close(self, record: str) -> None:
        self.unfinished.write_text(record)
        self.unfinished.replace(self.ready)

    def printed(self, code: str) -> str:
        """What a line of Python prints in the environment."""
        show = [self.python, "-W", "ignore", "-c", code]
        return subprocess.run(show, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def torch_version(self) -> str:
        """Version with the build it is, such as ``2.13.0+cpu``."""
        return self.printed("import torch; print(torch.__version__)")


def install_torch(env: Environment, index: str) -> None:
    """Prefer `index`: plain ``pip install torch`` brings gigabytes of CUDA libraries on Linux."""
    if index:
        probe = ("index", "versions", "torch", "--index-url", index, *IMPATIENT)
        install = ("install", "--no-deps", "-c", CONSTRAINTS, "--index-url", index, *IMPATIENT, "torch")
        if env.pip(*probe, limit=PROBE_SECONDS, quiet=True) and env.pip(*install):
            return
        say(f"no torch from {index}; taking it from the default index, on Linux perhaps a large CUDA build")
    env.must("torch", "install", "-c", CONSTRAINTS, "torch")


def native_kernel(env: Environment) -> str:
    """Whether the native kernel was built, in words; what its lack means is said aloud."""
    lack = env.printed(NATIVE_CHECK)
    if not lack:
        return "built"
    say(f"going on WITHOUT the native kernel: {lack}")
    say("pyg_kpnn works on its `torch` backend, tests of the `native` backend are skipped. To see the build:")
    say(f"{env.python} -m pip install -v --no-deps -e .   To try again: rm {env.ready} && make setup")
    return "none"


class TorchScatter:
    """The steps that get torch-scatter for the torch that is installed."""

    def __init__(self, env: Environment, index: str, wheelhouse: Path) -> None:
        self.env = env
        self.index = index
        self.torch = env.torch_version()
        tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        self.kept = wheelhouse / f"torch-{self.torch}-{tag}-{sysconfig.get_platform()}"

    def provide(self) -> str:
        """Leave a working torch-scatter installed, or none; return what became of it in words."""
        self.env.pip("uninstall", "-y", "torch-scatter", quiet=True)
        for wheel in sorted(self.kept.glob("torch_scatter-*.whl"), reverse=True):
            if self.install(wheel):
                return f"kept wheel {wheel}"
            say(f"{wheel} does not work with torch {self.torch}, ignored")
        with tempfile.TemporaryDirectory(prefix="pyg_kpnn-") as scratch:
            for how, get in (("wheel index", self.download), ("built here", self.build)):
                if not get(scratch):
                    continue
                for wheel in Path(scratch).glob("torch_scatter-*.whl"):
                    if self.install(wheel):
                        self.keep(wheel)
                        return how
                    say(f"{wheel.name} ({how}) does not work with torch {self.torch}")
                    wheel.unlink()
        say("going on WITHOUT torch-scatter: pyg_kpnn works on its `torch` backend, tests of the `scatter`")
        say(f"backend are skipped. To try again: rm {self.env.ready} && make setup")
        return "none"

    def install(self, wheel: Path) -> bool:
        if self.env.pip("install", "-q", "--no-deps", "--no-index", "-c", CONSTRAINTS, str(wheel)):
            if self.env.call("-W", "ignore", "-c", SCATTER_CHECK):
                return True
            self.env.pip("uninstall", "-y", "torch-scatter", quiet=True)
        return False

    def keep(self, wheel: Path) -> None:
        try:
            self.kept.mkdir(parents=True, exist_ok=True)
            unnamed = self.kept / f".{os.getpid()}.part"
            shutil.copyfile(wheel, unnamed)
            unnamed.replace(self.kept / wheel.name)
            say(f"kept for next time: {self.kept / wheel.name}")
        except OSError as error:
            say(f"the wheel could not be kept for next time: {error}")

    def download(self, folder: str) -> bool:
        if not self.index:
            return False
        # PyG has one page for each torch and build, such as torch-2.13.0+cpu.html.
        page = f"{self.index}/torch-{self.torch if '+' in self.torch else self.torch + '+cpu'}.html"
        ask = ["download", "--no-deps", "--no-index", "--only-binary", ":all:", "-d", folder, "-f", page]
        ask += ["-c", CONSTRAINTS, *IMPATIENT, "torch-scatter"]
        if self.env.pip(*ask, limit=DOWNLOAD_SECONDS, quiet=True):
            return True
        say(f"no torch-scatter wheel from {page}")
        return False

    def build(self, folder: str) -> bool:
        lack = compiler_lack()
        if lack:
            say(f"torch-scatter cannot be built: {lack}")
            return False
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        say(f"building torch-scatter once: 4 to 11 minutes of CPU time, shared by {cpus} processor(s)")
        config = Path(folder) / "build.cfg"
        config.write_text(f"[build_ext]\nparallel = {cpus}\n")
        begun = time.monotonic()
        # The build imports the installed torch, hence no isolation; pip's own cache would hand a wheel
        # built for one torch to another, hence no cache.
        done = self.env.pip(
            *("wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-binary", "torch-scatter"),
            *("-q", "-w", folder, "-c", CONSTRAINTS, "torch-scatter"),
            DIST_EXTRA_CONFIG=str(config),
        )
        say(f"torch-scatter: build {'done' if done else 'FAILED'} after {time.monotonic() - begun:.0f} s")
        return done


def compiler_lack() -> str:
    """Why C++ extensions of this Python cannot be built, or an empty string."""
    words = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    try_out = [*words, "-fsyntax-only", "-x", "c++", "-I", sysconfig.get_path("include"), "-"]
    try:
        done = subprocess.run(try_out, input="#include <Python.h>\n", capture_output=True, text=True)
    except OSError:
        return f"no C++ compiler `{words[0]}` (Debian and Ubuntu: apt-get install g++; or set CXX)"
    if done.returncode == 0:
        return ""
    if "Python.h" in done.stderr:
        return "no Python headers (Debian and Ubuntu: apt-get install python3-dev)"
    return f"the C++ compiler `{shlex.join(words)}` does not compile an empty program"


def main() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 - the reader may have started an older one
        sys.exit(
            f"setup: Python 3.10 or newer is needed, {sys.executable} is {platform.python_version()}; "
            "name another: make PYTHON=/path/to/python3"
        )
    parser = argparse.ArgumentParser(description="Make the virtual environment of the project.")
    parser.add_argument("--venv", default=".venv", help="folder to make it in")
    parser.add_argument("--torch-index", default="", help="package index with CPU builds of torch")
    parser.add_argument("--scatter-index", default="", help="where PyG's pages of wheels lie")
    parser.add_argument("--wheelhouse", type=Path, required=True, help="folder that keeps built wheels")
    options = parser.parse_args()

    begun = time.monotonic()
    env = Environment(ROOT / options.venv)
    env.open()
    env.must("pip", "install", "-q", "--upgrade", "-c", CONSTRAINTS, "pip", "setuptools", "wheel")
    install_torch(env, options.torch_index)
    env.must("the project", "install", "-c", CONSTRAINTS, "--build-constraint", CONSTRAINTS, "-e", ".[dev]")
    native = native_kernel(env)
    scatter = TorchScatter(env, options.scatter_index, options.wheelhouse)
    how = scatter.provide()
    env.close(
        f"python {platform.python_version()}\ntorch {scatter.torch}\n"
        f"native kernel {native}\ntorch-scatter {how}\n"
    )
    took = time.monotonic() - begun
    say(f"{options.venv} is ready after {took:.0f} s (native kernel: {native}; torch-scatter: {how})")


if __name__ == "__main__":
    main()
