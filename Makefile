# Everything runs from a fresh clone: each target creates the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test bench docs notebooks screenshots clean
.DELETE_ON_ERROR:

# constraints.txt pins torch. PyPI's build brings gigabytes of CUDA packages on Linux; for the CPU
# build set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,cluster,onnx,skada,tensorboard,docs]'
	touch $@

demo: $(STAMP)
	$(BIN)/osda demo --out osda-demo --overwrite

# loadscope: the tests of a module run in one worker, so that its fixtures are made once.
test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n logical --dist loadscope --cov --cov-report=term

bench: $(STAMP)
	$(BIN)/python benchmarks/suites.py --write
	$(BIN)/python benchmarks/published.py
	$(BIN)/python benchmarks/pgl_graph.py
	$(BIN)/python benchmarks/images.py extraction
	$(BIN)/python benchmarks/images.py finetuning
	$(BIN)/python benchmarks/cluster.py

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# The outputs that are stored in docs/tutorials.
notebooks: $(STAMP)
	$(BIN)/python docs/run_notebooks.py

# Needs Chromium (apt install chromium).
screenshots: $(STAMP)
	$(BIN)/python docs/make_screenshots.py

clean:
	rm -rf $(VENV) site osda-demo
