# `make demo` and `make test` need only python3 (3.10 or newer, with venv), make and a C++ compiler.
# Everything else goes into $(VENV), which is made when it is missing or older than its inputs.

PYTHON ?= python3
VENV ?= .venv

# Where to look first for a CPU build of torch and for a ready torch-scatter wheel. Each is tried for a
# few seconds, then left. An empty value skips it: `make test TORCH_INDEX=` takes torch from the default
# package index, on Linux its CUDA build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
SCATTER_INDEX ?= https://data.pyg.org/whl

# torch-scatter wheels built here are kept in this folder, one subfolder for each torch and Python.
WHEELHOUSE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pyg_kpnn/wheels

# Where `make bench` writes every measurement. Options for the scripts: `make bench BENCH_OPTIONS=--quick`.
BENCH_JSON ?= build/benchmarks.json
BENCH_OPTIONS ?=

RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-full lint style types format bench bench-memory bench-speed bench-kernel bench-accuracy clean distclean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Run the main example, examples/quickstart.py
	$(RUN) examples/quickstart.py

test: $(READY) ## Run the fast tests and every documentation example
	$(RUN) -m pytest

test-full: $(READY) ## Run all tests, the slow sweeps too
	$(RUN) -m pytest -m ''

lint: style types ## Check style and types

style: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(READY)
	$(RUN) -m mypy

docs: $(READY) ## Build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

format: $(READY) ## Rewrite the code in the project's style
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: $(READY) ## Run all measurements, some 15 minutes, into one JSON file
	$(RUN) benchmarks/run.py --json '$(BENCH_JSON)' $(BENCH_OPTIONS)

bench-memory: $(READY) ## Measure peak memory, ours beside the peers
	$(RUN) benchmarks/memory.py $(BENCH_OPTIONS)

bench-speed: $(READY) ## Measure the time of whole layers, ours beside the peers
	$(RUN) benchmarks/speed.py $(BENCH_OPTIONS)

bench-kernel: $(READY) ## Measure kernels alone, over the floor of reading their rows, and scaling
	$(RUN) benchmarks/kernel.py --scaling $(BENCH_OPTIONS)

bench-accuracy: $(READY) ## Measure accuracy, hours on two cores; goes on where it was stopped
	$(RUN) benchmarks/accuracy.py --json build/accuracy.json $(BENCH_OPTIONS)

setup: $(READY) ## Only make the virtual environment

$(READY): constraints.txt pyproject.toml tools/setup_env.py $(wildcard csrc/*)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found; name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) tools/setup_env.py --venv '$(VENV)' --torch-index '$(TORCH_INDEX)' \
		--scatter-index '$(SCATTER_INDEX)' --wheelhouse '$(WHEELHOUSE)'

clean: ## Remove caches and build products
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## Remove the virtual environment too; kept wheels stay
	rm -rf '$(VENV)'
