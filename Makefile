# `make demo` and `make test` are all a newcomer needs; both install what is missing and can be run again.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := check
PREFIX ?= /usr/local
PYTHON ?= python3
BIN := .venv/bin
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)
export PYTHONDONTWRITEBYTECODE :=

# what others on the machine may have spoiled is asked up to twice more, by itself; every answer is shown
AGAIN := $(BIN)/pytest tests/integration --last-failed --last-failed-no-failures none
or-again = || $(AGAIN) -m "$(1)" || $(AGAIN) -m "$(1)"

# five: with four, the cores of a machine that has two idle a third of the time; tests/conftest.py says what begins first
SIDE_BY_SIDE := -n 5 --dist loadfile --no-loadscope-reorder

define run-integration
$(BIN)/pytest tests/integration -m "not alone and not further" $(SIDE_BY_SIDE) $(call or-again,not alone and not further)
$(BIN)/pytest tests/integration -m "alone and not further" $(call or-again,alone and not further)
endef

.PHONY: help setup build chart release wheels generate format lint types imports generated unit checked-unit integration check test demo test-incidents test-further test-torch test-kernels test-stacks fuzz bench bench-incidents soak docs install clean pictures

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## install what is missing: system packages when root, the rest into .venv
	@PYTHON=$(PYTHON) tools/setup.sh

build: ## compile the BPF programs, build the dashboard's page; then ./bin/ingero runs; installs no test tools
	@PYTHON=$(PYTHON) tools/setup.sh build
	@$(BIN)/python tools/build_bpf.py
	@$(BIN)/python tools/build_page.py

generate: setup ## write the generated files anew
	$(BIN)/python tools/generated.py
	$(BIN)/python tools/gen_doc_outputs.py

format: setup ## format the Python sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	tools/lint_workflows.sh

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

generated: setup
	$(BIN)/python tools/generated.py --check

unit: setup build ## the tests that need no root
	$(BIN)/pytest tests/unit -n $$(($$(nproc) + 1)) # one more than cores: some wait for a server or a device

integration: setup build ## the tests that need root: real probes, real scheduler, simulated GPU
	$(run-integration)

check: lint types imports generated unit ## everything that needs no root

test: setup ## all tests; of the labeled runs five
	@$(MAKE) --no-print-directory -j2 types checked-unit
	$(run-integration)

checked-unit: # beside the types, which take one core longer than what the unit tests need
	@$(MAKE) --no-print-directory build lint imports generated
	@$(MAKE) --no-print-directory unit

demo: ## record a training loop while CPU hogs disturb it, and explain the recording; needs no page and no test tools
	@PYTHON=$(PYTHON) tools/setup.sh demo
	@$(BIN)/python tools/build_bpf.py
	@$(AS_ROOT) $(BIN)/python -m ingero.cli.main demo incident --breakdown

test-incidents: setup build ## labeled runs of every kind of cause, of which make test has five
	$(BIN)/pytest tests/integration/test_incidents.py

test-further: setup build ## every case of what make test has one of
	$(BIN)/pytest tests/integration -m further

test-torch: setup build ## the real PyTorch wheel on the simulated GPU, trained and recorded (downloads 1 GB into build/torch)
	@$(AS_ROOT) $(BIN)/python -m tests.torch

test-kernels: setup build ## boot other kernels under qemu and run the capture tests in them (docs/kernels.md)
	$(BIN)/python -m tests.kernels

test-stacks: setup build ## stacks against every CPython that can be had; fetches them into build/stacks (docs/stacks.md)
	@$(AS_ROOT) $(BIN)/python -m tests.stacks

fuzz: setup build ## damaged and made-up input for every parser (INPUTS=20000 for each)
	INGERO_FUZZ=$(or $(INPUTS),20000) $(BIN)/pytest -q --timeout=0 tests/unit/test_fuzz_parsers.py \
		tests/unit/decode/test_native_damaged.py tests/unit/decode/test_python_damaged.py tests/unit/decode/test_python_lines.py \
		tests/unit/profiles/test_hostile.py

bench: setup build ## overhead, sync and export rates, interleaved; prints ratios
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.drain
	$(BIN)/python -m bench.records
	$(BIN)/python -m bench.live_view
	$(BIN)/python -m bench.start_up
	$(BIN)/python -m bench.verifier
	$(BIN)/python -m bench.mcp
	$(BIN)/python -m bench.stacks
	$(BIN)/python -m bench.export
	$(BIN)/python -m bench.dashboard
	$(BIN)/python -m bench.metrics
	$(BIN)/python -m bench.import_profiles
	$(BIN)/python -m bench.reader_memory
	$(BIN)/python -m bench.hostile
	$(BIN)/python -m bench.damaged_recordings

bench-incidents: setup build ## hours of labeled runs: causes, culprits, lines, silence; cut it and call it again to go on
	@$(AS_ROOT) $(BIN)/python -m bench.incidents

soak: setup build ## leave an agent running beside a full-rate program and processes that come and go (DURATION=20m)
	$(BIN)/python -m bench.soak --duration $(or $(DURATION),20m)

pictures: setup build ## the README's pictures of the dashboard, from a recording of examples/recordings
	$(BIN)/python -m bench.page_pictures --readme docs/pictures

chart: ## render the Helm chart into tests/data/chart and deploy/kubernetes (helm, or Go to build it: minutes)
	$(PYTHON) tools/render_chart.py --build

wheels: build ## both machines' wheels of ingero and ingero-gpusim into dist/ (cargo and llvm-strip are needed; zig comes from PyPI)
	for machine in x86_64 aarch64; do INGERO_WHEEL=$$machine $(BIN)/pip wheel --quiet --no-deps --wheel-dir dist . ./gpusim || exit; done
	@ls -l dist

release: build ## all that a release has, into dist/ (root, mmdebstrap, cargo, llvm-strip, helm, nfpm; KEY=FILE signs)
	@$(BIN)/python -m pip install --quiet build
	PYTHONPATH=tools $(BIN)/python tools/release.py $(if $(KEY),--key $(KEY))

docs: ## build the site of docs/ into build/site, strictly; its own tools go into build/docs-venv
	@tools/docs/build.sh $(PYTHON)

install: ## put `ingero` on root's PATH, in a virtual environment of its own (PREFIX=/usr/local)
	@PYTHON=$(PYTHON) tools/setup.sh system
	$(PYTHON) -m venv $(PREFIX)/lib/ingero
	$(PREFIX)/lib/ingero/bin/pip install --quiet --upgrade --force-reinstall '.[dashboard,fleet,mcp,metrics]'
	@[ ! -d web/node_modules ] || chown -R --reference=Makefile web/node_modules src/ingero/serve/dashboard/page
	@chown -R --reference=Makefile src/ingero/bpf/objects # sudo leaves nothing behind that `make` cannot write
	mkdir -p $(PREFIX)/bin
	ln -sf $(PREFIX)/lib/ingero/bin/ingero $(PREFIX)/bin/ingero
	@$(PREFIX)/bin/ingero version

clean: ## remove what was built
	rm -rf build dist src/ingero/bpf/objects src/ingero/serve/dashboard/page web/node_modules .pytest_cache .mypy_cache .ruff_cache
	find src tests tools bench -name __pycache__ -prune -exec rm -rf {} +
