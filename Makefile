# Every target works from a fresh clone: .venv is made by the first one that needs it.
SHELL := /bin/bash
VENV ?= .venv
VENV_0_12 ?= .venv-fairseq-0.12
WORKERS ?= 2
export VENV
# In the order of their names, where pytest-xdist can: otherwise files of a few long tests come last, one worker idle.
ORDER = $(if $(filter fairseq,$(ENGINE)),,--no-loadscope-reorder)
PYTEST = OMP_NUM_THREADS=1 "$(VENV)/bin/python" -m pytest -n $(WORKERS) --dist loadfile $(ORDER)

.DEFAULT_GOAL := help
.PHONY: help venv demo test coverage test-fairseq-0.12 test-guard test-slow faults lint docs wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile
	@echo "  variables: PYTHON=python3.12 (interpreter to build on), VENV=path (another environment), WORKERS=n (of tests),"
	@echo "             ENGINE=fairseq (fairseq 0.12.2 in the environment; CPython 3.8 to 3.10)"

venv: ## create or refresh .venv with torch, fairseq and this package
	@bash scripts/setup_venv.sh

demo: venv ## train a small Luna on an English-German corpus it writes, translate and score
	@PATH="$$(cd "$(VENV)" && pwd)/bin:$$PATH" bash scripts/demo.sh

test: venv ## tests without the slow ones
	$(PYTEST) -m "not slow"

coverage: venv ## the tests of make test, with a report of covered lines in coverage/
	$(PYTEST) -m "not slow" --cov luna_fairseq --cov-report term --cov-report html:coverage

test-fairseq-0.12: ## the same on fairseq 0.12.2 and CPython 3.8 to 3.10, in VENV_0_12=.venv-fairseq-0.12
	@$(MAKE) --no-print-directory test ENGINE=fairseq VENV="$(VENV_0_12)"

test-guard: venv ## slow tests of several processes, interruption, ONNX and Triton, which .ci/run runs too
	$(PYTEST) -m guard

test-slow: venv ## the slow tests only
	$(PYTEST) -m slow

faults: venv ## kills, damaged files, bad input, full disks: a campaign whose counts go to docs/results/faults.md
	"$(VENV)/bin/python" tests/faults/campaign.py --seed 1 --write docs/results/faults.md

lint: venv docs ## ruff, mypy, spelling, prose and the documentation's links
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/ruff" format --check --quiet .
	"$(VENV)/bin/mypy"
	"$(VENV)/bin/codespell" luna_fairseq docs scripts configs examples tests *.md
	"$(VENV)/bin/proselint" --config .proselintrc.json check README.md CONTRIBUTING.md docs

docs: venv ## README's pages with the API's reference, into site/
	NO_MKDOCS_2_WARNING=1 "$(VENV)/bin/mkdocs" build --strict

wheel: venv ## the wheel, into dist/
	"$(VENV)/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## remove .venv, .venv-fairseq-0.12 and what builds and tests leave behind
	rm -rf .venv .venv.lock .venv-fairseq-0.12 .venv-fairseq-0.12.lock
	rm -rf build dist site coverage .coverage *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
