# Every target makes what it needs: a virtual environment in .venv and, once, what is to be installed in it.
# A second call finds the stamp files in .venv and starts at once.

PYTHON ?= python3
VENV   ?= .venv
# The version that the tests ran with. Another build, say one for your GPU: make demo TORCH=torch==2.12.0
TORCH  ?= torch==2.13.0
# Processes of pytest; `auto` takes one per core.
JOBS   ?= 2
# More arguments for pytest: make test ARGS="-k contracts"
ARGS   ?=

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BENCH   ?= benchmarks/bench_analyze.py

.DEFAULT_GOAL := help
.PHONY: help demo test slow explore check lint types floors docs bench eval eval-gate screenshots gallery browser postgres cross clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.torch ## Train a tiny language model, profile it and print the path of the report
	$(BIN)/ascend-perf run llm-pretrain --preset tiny -o runs/demo --force

test: $(VENV)/.test browser postgres cross ## Run the tests, all but the slow ones
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

slow: $(VENV)/.test browser postgres cross ## Run the slow tests: jobs of four processes, long soaks, planted faults
	$(BIN)/python -m pytest -n $(JOBS) -m slow $(ARGS)

explore: $(VENV)/.test ## Look for counterexamples: the property-based tests with examples that were never drawn before
	$(BIN)/python -m pytest -n $(JOBS) -m hypothesis --hypothesis-profile=explore $(ARGS)

check: lint types floors test ## Lint, check types and floors, run the tests (what to run before a commit)

lint: $(VENV)/.dev ## Check style (ruff)
	$(BIN)/ruff check .

types: $(VENV)/.dev ## Check types (mypy, strict)
	$(BIN)/mypy

floors: $(VENV)/.dev ## Check that modules import from lower floors only (import-linter)
	$(BIN)/lint-imports

docs: $(VENV)/.docs ## Write the CLI reference and build the documentation into site/
	$(BIN)/python docs/make_cli_reference.py
	$(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo site/index.html

bench: $(VENV)/.test ## Measure speed and memory of the analysis
	$(BIN)/python $(BENCH)

eval: $(VENV)/.test ## Plant faults of all kinds and print what the analysis finds of them (ARGS="--verbose")
	$(BIN)/python -m tests.faults.evaluate $(ARGS)

eval-gate: $(VENV)/.test ## Simulate launches with known slowdowns and print how often the gate is wrong (ARGS="--trials 200")
	$(BIN)/python -m tests.gate.evaluate $(ARGS)
	$(BIN)/python -m benchmarks.bench_history --only rates

screenshots: $(VENV)/.torch browser ## Take the pictures of the documentation from a report of our own workload
	$(BIN)/python docs/make_screenshots.py

gallery: $(VENV)/.torch browser ## Take the pictures of the gallery from real profiles (ASCEND_PERF_TRACES) and jobs of ours
	$(BIN)/python docs/make_gallery.py

clean: ## Remove .venv, caches and build output (not your runs)
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Chromium is for the browser tests only; without it they are skipped and say so.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  echo "installing Chromium for the browser tests"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	    || echo "Chromium could not be installed: browser tests are skipped"; \
	else \
	  echo "no Chromium here: browser tests are skipped (as root: apt-get install chromium)"; \
	fi

# PostgreSQL is for the tests of `history` only; they start a server of their own. Without it they are skipped.
postgres:
	@if command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  echo "installing PostgreSQL for the tests of histories"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends postgresql >/dev/null; } \
	    || echo "PostgreSQL could not be installed: its tests are skipped"; \
	else \
	  echo "no PostgreSQL here: its tests are skipped (as root: apt-get install postgresql)"; \
	fi

# A C compiler for aarch64 and an emulator are for the tests of the virtual NPU only; without them those are skipped.
cross:
	@if command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 && command -v qemu-aarch64 >/dev/null 2>&1 \
	  && command -v g++ >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(uname -m)" != x86_64 ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  echo "installing a compiler for aarch64 and an emulator for the tests of the virtual NPU"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    gcc g++ g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null; } \
	    || echo "they could not be installed: tests for aarch64 are skipped"; \
	else \
	  echo "no compiler for aarch64 here: its tests are skipped" \
	    "(as root: apt-get install g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"; \
	fi

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "hint: install the venv module (Debian: python3-venv)"; exit 1; }
	@touch $@

$(VENV)/.torch: $(VENV)/.made pyproject.toml
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[torch]"
	@touch $@

$(VENV)/.test: $(VENV)/.torch
	$(PIP) --editable ".[torch,test]"
	@touch $@

$(VENV)/.dev: $(VENV)/.torch
	$(PIP) --editable ".[torch,dev]"
	@touch $@

$(VENV)/.docs: $(VENV)/.made pyproject.toml
	$(PIP) --editable ".[docs]"
	@touch $@
