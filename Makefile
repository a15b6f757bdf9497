# Every target works from a fresh clone: .venv is made by the first one that needs it.
SHELL := /bin/bash
VENV ?= .venv
WORKERS ?= 2
export VENV
PYTEST = OMP_NUM_THREADS=1 "$(VENV)/bin/python" -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo "  variables: PYTHON=python3.12 (interpreter for .venv), VENV=path (another environment), WORKERS=n (of tests)"

venv: ## create or refresh .venv with torch, fairseq and this package
	@bash scripts/setup_venv.sh

demo: venv ## train a small Luna on an English-German corpus it writes, translate and score
	@PATH="$$(cd "$(VENV)" && pwd)/bin:$$PATH" bash scripts/demo.sh

test: venv ## tests without the slow ones
	$(PYTEST) -m "not slow"

test-slow: venv ## the slow tests only
	$(PYTEST) -m slow

lint: venv ## ruff and mypy
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/mypy"

clean: ## remove .venv and what builds and tests leave behind
	rm -rf .venv .venv.lock build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
