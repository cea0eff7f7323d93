# Two commands are all a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE ?= 1

.PHONY: help setup run test test-unit check format generate bench soak cluster cluster-down clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## make .venv (torch included); quick the second time
	@$(PYTHON) tools/setup.py

run: setup ## train a small model on this machine, live
	@$(BIN)/orchestra run -f examples/cpu.yaml

test: setup check ## everything: checks, unit, integration, end to end
	@$(BIN)/pytest $(PYTEST_ARGS)

test-unit: setup ## the tests that need nothing but Python (under a minute)
	@$(BIN)/pytest tests/unit $(PYTEST_ARGS)

check: setup ## format, lint, types, import contracts, generated files
	@$(BIN)/ruff format --check --quiet || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .import-lint.log 2>&1 || { cat .import-lint.log; exit 1; }; rm -f .import-lint.log
	@$(BIN)/python tools/generate.py --check
	@echo "checks passed"

format: setup ## write the code the way `make check` wants it
	@$(BIN)/ruff check --quiet --fix || true
	@$(BIN)/ruff format --quiet

generate: setup ## write the files that are made from code (CRDs)
	@$(BIN)/python tools/generate.py

bench: setup ## run the benchmarks; each prints a ratio against a baseline in the same run
	@for one in benchmarks/*.py; do echo "== $$one"; PYTHONPATH=tests $(BIN)/python $$one || exit 1; done

soak: setup ## the full counts of random faults
	@$(BIN)/pytest -m soak $(PYTEST_ARGS)

cluster: setup ## two real Kubernetes nodes on this machine; prints the export line
	@PYTHONPATH=tests $(BIN)/python -m testbed up

cluster-down: setup ## take them down and leave nothing behind
	@PYTHONPATH=tests $(BIN)/python -m testbed down

clean: ## remove what was made here (the caches outside stay)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
