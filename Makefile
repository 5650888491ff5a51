# Two commands do all the set-up: `make train` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
ENV ?= CartPole-v1
FLAGS ?=

APT := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libqt5gui5

.PHONY: train test test-all qt lint bench clean

train: $(VENV)/.core
	$(BIN)/proxrl train $(ENV) $(FLAGS)

test: $(VENV)/.dev qt
	$(BIN)/pytest -m "not slow"

test-all: $(VENV)/.dev qt
	$(BIN)/pytest

# EnvPool draws Procgen with Qt 5; where it can't be installed, those tests are skipped and say so.
qt:
	@ldconfig -p 2>/dev/null | grep -q libQt5Gui.so.5 || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
		&& { $(APT) || { apt-get update -qq && $(APT); }; } >/dev/null 2>&1; } || true

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/pixels.py
	$(BIN)/python benchmarks/ranks.py

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.core

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable '.[bench]'
	touch $@
