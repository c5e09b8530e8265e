# Every target sets up what it needs: a virtual environment in .venv, kept current with pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint soak bench test-gpu clean

demo: $(VENV)/.installed
	$(BIN)/megascope capture demo:steps=400 -o demo.mscope --force
	@echo
	$(BIN)/megascope sql demo.mscope "SELECT h.name AS hook, count(*) AS events, count(DISTINCT worker) AS workers FROM events JOIN hooks h USING (hook) GROUP BY ALL ORDER BY events DESC"
	$(BIN)/megascope report classes demo.mscope --limit 8
	@echo
	@echo "try next:  $(BIN)/megascope schema            what can be asked"
	@echo "           $(BIN)/megascope check demo.mscope is the trace whole?"
	@echo "           $(BIN)/megascope tui demo.mscope   browse it"
	@echo "           $(BIN)/megascope report overview sample_traces/h200.mscope   a recording of a real GPU"

# Tests stand in the order of their files and are taken from the end of who has most left: what a file's tests share is
# made once, and neither core waits for the other.
test: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p megascope
	$(BIN)/lint-imports

soak: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "slow and not gpu" --timeout 3000

bench: $(VENV)/.installed-test
	$(BIN)/python benchmarks/host_engine.py
	$(BIN)/python benchmarks/ring_spool.py
	$(BIN)/python benchmarks/spool_seal.py
	$(BIN)/python benchmarks/pairing.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/native.py

test-gpu: $(VENV)/.installed-test
	PYTHON=$(BIN)/python benchmarks/gpu_session.sh

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q --no-compile --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q --no-compile --disable-pip-version-check -e '.[test]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo.mscope
