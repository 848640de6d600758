# Everything is set up in .venv, from pyproject.toml and the tested versions in constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONSTRAINTS ?= constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test quick pytest scripts lint bench docs gpu clean

help:  ## show these targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	# Python compiles modules when they are first imported; most are never imported.
	$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) -e '.[dev]'
	# Only the tests compare with torchvision and timm. torchvision has no build for torch without CUDA, and without its
	# dependencies it does not pull another torch.
	$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) --no-deps torchvision timm
	@touch $@

demo: $(READY)  ## train through DALI and the reference, compare, resume, time (needs no data and no GPU)
	$(BIN)/gpupipe demo

# Three processes for two cores, because tests often wait for files, signals and other processes. The tests of a file
# stay together, because they share expensive fixtures. Imports are compiled once, even if PYTHONDONTWRITEBYTECODE is
# set: the tests start hundreds of processes.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# A part of everything: numbers, plans, pixels of both engines, and the promises of every engine about its batches.
QUICK := tests/unit $(patsubst %,tests/contract/test_%.py,bad_samples clips output resume)

test: $(READY)  ## lint, types and all tests but the thorough ones; tests that need a GPU are skipped
	@$(MAKE) --no-print-directory -j 2 lint pytest ONLY='-m "not thorough"'

quick: $(READY)  ## lint, types and the most informative tests in less than two minutes; run make test before a commit
	@$(MAKE) --no-print-directory -j 2 lint pytest ONLY='-q -m "not slow and not thorough" $(QUICK)'

pytest: $(READY)
	$(PYTEST) $(ONLY)

scripts: $(READY)  ## a table of scripts in the style of public code: the same as with torch, and who makes the images
	$(BIN)/python -m tests.scripts

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## run the benchmarks for a CPU; results in benchmarks/results/
	$(BIN)/python benchmarks/plan_cost.py
	$(BIN)/python benchmarks/index_scale.py
	$(BIN)/python benchmarks/memory_epochs.py
	$(BIN)/python benchmarks/compare_loaders.py
	$(BIN)/python benchmarks/compare_loaders.py --draw
	$(BIN)/python benchmarks/small_loaders.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/recipes.py
	$(BIN)/python benchmarks/seam.py
	$(BIN)/python benchmarks/decoded_cache.py
	$(BIN)/python benchmarks/sources.py
	$(BIN)/python benchmarks/remote.py
	$(BIN)/python benchmarks/op_costs.py
	$(BIN)/python benchmarks/transforms_table.py
	$(BIN)/python benchmarks/transforms_table.py --write
	$(BIN)/python benchmarks/training_equal.py
	$(BIN)/python benchmarks/video_clips.py
	$(BIN)/python benchmarks/fuzz_videos.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/fuzz_decoders.py --files 2000 --minutes 30
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/interrupts.py
	$(BIN)/python benchmarks/figures.py

docs: $(VENV)/.docs  ## build the site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/site/mkdocs.yml

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) -e '.[docs]'
	@touch $@

# A torch for CUDA 12 may need DALI for CUDA 12.
CUDA ?= 13

gpu:  ## test a machine with a GPU in 12 minutes: PASS or FAIL, and speed; ALL=1 runs everything, STEP=2 one step
	@$(PYTHON) benchmarks/gpu_ready.py --cuda $(CUDA)
	@$(MAKE) --no-print-directory $(VENV)/.dali-cuda$(CUDA)
	$(BIN)/python benchmarks/gpu_all.py $(if $(ALL),--all) $(if $(STEP),--step $(STEP))

# Both builds of DALI share a folder, so the other build is removed first.
$(VENV)/.dali-cuda13: $(READY)
	$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) -e '.[cuda13]'
	$(BIN)/python -m pip uninstall -q -y nvidia-dali-cuda120
	$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) --force-reinstall --no-deps nvidia-dali-cuda130
	@rm -f $(VENV)/.dali-cuda12 && touch $@

$(VENV)/.dali-cuda12: $(READY)
	$(BIN)/python -m pip uninstall -q -y nvidia-dali-cuda130
	$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) --force-reinstall --no-deps nvidia-dali-cuda120
	@rm -f $(VENV)/.dali-cuda13 && touch $@

clean:  ## remove everything that make created
	rm -rf $(VENV) build dist gpupipe.egg-info
