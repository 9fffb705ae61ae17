# One place for every command that people and CI run. `make help` lists them.
# Needs make and Python >= 3.11 with venv; everything else is installed into .venv from requirements/.

# PYTHON= in the call or the environment names another. The script runs once, and only if .venv has to be made.
PYTHON ?= $(eval PYTHON := $(shell scripts/fastest-python))$(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := router policies predictors backends benchmarks tests scripts examples

.DEFAULT_GOAL := help
.PHONY: help serve test check format docs train-defaults bench bench-overhead test-nightly test-browser test-engines test-e2e install dev lock audit sbom digests clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: install ## run the gateway over an emulated fleet (ONCE=1: ask each policy once and end; PORT=, SPEED=)
	@exec $(BIN)/headway demo $(if $(filter-out 0,$(ONCE)),--once) $(if $(PORT),--port $(PORT)) $(if $(SPEED),--speed $(SPEED))

# Each process of pytest begins with its share of the tests, in order, and takes over what another has left.
SIDE_BY_SIDE := $(BIN)/python -m pytest -n auto --dist worksteal
test: dev .tools/helm ## run all tests but those that take long, need a real engine or a browser (ARGS= goes to pytest)
	$(SIDE_BY_SIDE) -m "not engines and not browser and not nightly" $(ARGS)

test-nightly: dev .tools/helm ## run the tests that take long too, and all others with more examples (ARGS= goes to pytest)
	HYPOTHESIS_PROFILE=nightly HEADWAY_ODD_BODIES=0 HEADWAY_STALL_CASES=200 HEADWAY_STALL_FULL=1 \
	  $(SIDE_BY_SIDE) -m "not engines and not browser" --timeout 7200 $(ARGS)

check: dev ## format, lint, types and import rules
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: dev ## bring the code into format and apply safe lint fixes
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: dev ## build the documentation site in build/site; a broken link or anchor fails
	PYTHONPATH=. $(BIN)/python scripts/docs_site.py build/docs
	$(BIN)/zensical build --strict

SCENARIOS := $(sort $(filter-out %.fleet,$(basename $(notdir $(wildcard benchmarks/scenarios/*.yaml)))))
bench: dev ## run the small form of every reference scenario (ARGS= goes to headway compare)
	@for name in $(SCENARIOS); do printf '\n%s\n' "$$name"; \
	  $(BIN)/headway compare --scenario "$$name" --small --out "reports/scenarios/$$name" $(ARGS) || exit; done

bench-overhead: dev ## measure what the gateway itself costs a request (ARGS= goes to the benchmark)
	$(BIN)/python -m benchmarks.overhead $(ARGS)

test-browser: dev ## run the tests of the page at /ui in a headless browser (installs one if none is there)
	scripts/install-browser
	$(BIN)/python -m pytest -m browser tests/browser $(ARGS)

test-engines: dev ## run the engine tests against a real vLLM on CPU (installs it on the first run)
	HEADWAY_TEST_ENGINES=1 $(BIN)/python -m pytest -m engines tests/engines $(ARGS)

train-defaults: dev ## train the predictors that come with Headway (data: HEADWAY_DATA, else downloaded; ARGS= e.g. one of them)
	$(BIN)/python -m benchmarks.training.defaults $(ARGS)

test-e2e: dev ## collect, train, serve and evaluate on emulated engines (also a part of test-nightly; ARGS= goes to pytest)
	$(BIN)/python -m pytest -m e2e tests/e2e $(ARGS)

install: $(VENV)/.runtime ## .venv with what the service needs
dev: $(VENV)/.dev ## .venv with the development tools too

# The chart is rendered by Helm itself in its tests.
.tools/helm: scripts/install-helm | $(BIN)/python
	@PYTHON=$(BIN)/python scripts/install-helm $@

COMPILED := $(subst /native/,/,$(patsubst %.pxd,%.py,$(wildcard backends/native/*.pxd backends/engine/native/*.pxd benchmarks/pipelines/native/*.pxd))) predictors/kernels/reference/calibration.py \
  $(wildcard */native/*.p[xy]* */*/native/*.p[xy]*)
# The stamps make a second run start at once; a changed pin, project file or compiled module installs again. Where there is
# no C compiler, Python and NumPy do the work.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml setup.py $(COMPILED) | $(BIN)/python
	@$(PIP) --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --default-pip >/dev/null  # a start that was killed left none
	$(PIP) install --quiet --require-hashes -r requirements/runtime.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(PIP) install --quiet -r requirements/dev.txt
	@touch $@

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "make: $(PYTHON) is not installed: install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $$("$(PYTHON)" --version) is too old: Headway needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) has no venv: install the package python$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv (or python3-venv)"; exit 1; }
	"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# runtime.txt is what `headway serve` needs with PostgreSQL, Redis and traces, for every platform and Python: each pin with
# the hashes of all files of its release. dev.txt is everything else, from a clean installation, without hashes: torch is
# built differently for machines with and without a GPU. setuptools and Cython are in both, so that nothing unpinned builds the project.
lock: ## pin requirements/ anew from the newest releases that pyproject.toml allows
	rm -rf build && mkdir -p build/lock requirements
	"$(PYTHON)" -m venv build/lock/tools && build/lock/tools/bin/python -m pip install --quiet uv
	printf "cython>=3.3\nsetuptools>=77\n" > build/lock/build.in
	build/lock/tools/bin/uv pip compile --quiet --extra production --universal --fork-strategy fewest --generate-hashes \
	  --no-header --no-annotate pyproject.toml build/lock/build.in > build/lock/runtime.txt
	{ echo "# what the service needs; written by make lock"; cat build/lock/runtime.txt; } > requirements/runtime.txt
	sed -n 's/ *\\$$//; /^[a-z0-9]/p' requirements/runtime.txt > build/lock/constraints.txt
	"$(PYTHON)" -m venv build/lock/dev
	build/lock/dev/bin/python -m pip install --quiet -c build/lock/constraints.txt "cython>=3.3" "setuptools>=77" ".[dev]"
	{ echo "# everything to develop and test; written by make lock"; \
	  build/lock/dev/bin/python -m pip freeze --all --exclude pip --exclude headway --exclude wheel | sed 's/+cpu$$//'; } > requirements/dev.txt
	rm -rf build

audit: dev ## check the pins of the service: hashes, licences, yanked releases, known vulnerabilities
	$(BIN)/python scripts/supply_chain.py audit

sbom: dev ## write the service's bill of materials to build/sbom.json (CycloneDX)
	@mkdir -p build && $(BIN)/python scripts/supply_chain.py sbom > build/sbom.json && echo "build/sbom.json"

digests: ## compare the digests of the container images with those that their tags have now (needs docker)
	@scripts/image-digests

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist .cache predictors/kernels/native/*.c predictors/kernels/native/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
