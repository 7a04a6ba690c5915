# One line a target. The first run of each makes .venv; a second one starts in seconds.
PYTHON ?= python3
BIN := .venv/bin
CODE := nylorun environments manifests vault workers tests
STAMP := .venv/.installed

.PHONY: setup fmt check test test-fast demo up bench docs lock clean

$(STAMP): pyproject.toml requirements-dev.lock
	@echo "Installing into .venv, about a minute ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(STAMP)                ## make the virtual environment with everything

fmt: $(STAMP)                  ## format and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

check: $(STAMP)                ## every static check
	@$(BIN)/python -m tests.house.check

docs: $(STAMP)                 ## write the generated pages
	@$(BIN)/python -m tests.house.check --write

test: $(STAMP)                 ## the whole suite on the real servers
	@$(BIN)/python -m pytest

test-fast: $(STAMP)            ## without the tests that start the whole platform
	@$(BIN)/python -m pytest -m "not live"

demo: $(STAMP)                 ## walk one Environment of each kind through its life
	@$(BIN)/python -m nylorun demo

up: $(STAMP)                   ## run everything on this machine
	@$(BIN)/python -m nylorun up

bench: $(STAMP)                ## figures beside their floors, as ratios of one run
	@$(BIN)/python -m tests.bench

lock: $(STAMP)                 ## write requirements-dev.lock from what is installed
	@$(BIN)/python -m pip freeze --exclude-editable --all | grep -v -E '^(pip|uv|wheel)==' > requirements-dev.lock

clean:                         ## remove what the targets made here
	@rm -rf .venv .nylorun .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
