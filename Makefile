# Two commands do all the set-up: `make train` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
ENV ?= CartPole-v1
FLAGS ?=
# Processes that run tests side by side, file by file.
TEST_PROCESSES ?= 2

APT := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	libqt5gui5 chromium chromium-driver xvfb xdotool libosmesa6 libegl1

.PHONY: train extras test test-all system lint bench clean

train: $(VENV)/.core
	$(BIN)/proxrl train $(ENV) $(FLAGS)

extras: $(VENV)/.extras

test: $(VENV)/.dev system
	$(BIN)/pytest -m "not slow" -n $(TEST_PROCESSES) --dist loadfile

test-all: $(VENV)/.dev system
	$(BIN)/pytest

# What tests want from the system: Qt 5 for EnvPool's Procgen, a browser for pages, a virtual screen for windows, OpenGL in
# software for MuJoCo's pictures, and ONNX Runtime's headers for the example in C++. Where it can't be installed, those tests are
# skipped and say so.
system:
	@{ ldconfig -p 2>/dev/null | grep -q libQt5Gui.so.5 && ldconfig -p | grep -q libOSMesa.so && command -v chromedriver && command -v Xvfb; } \
		>/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
		&& { $(APT) || { apt-get update -qq && $(APT); }; } >/dev/null 2>&1; } || true
	@# Debian 12 does not have this one, so it is installed by itself.
	@[ -d /usr/include/onnxruntime ] || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
		&& apt-get install -y -qq --no-install-recommends g++ libonnxruntime-dev >/dev/null 2>&1; } || true

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

$(VENV)/.extras: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[all]'
	touch $@ $(VENV)/.core

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.core $(VENV)/.extras

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable '.[bench]'
	touch $@
