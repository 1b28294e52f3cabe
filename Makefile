# make run     tune sgemm on the GPU, or on the CPU where there is none; results in reports/
# make test    the tests; needs no GPU. test-fast: those without a process; test-full, -study, -trust: what it leaves out
# make docs    the documents as a site in build/docs, links checked
# Each sets up $(VENV) first. `make run VENV=/path` uses that environment as it is.

VENV_GIVEN := $(filter-out undefined file,$(origin VENV))
VENV ?= .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)

comma := ,
GPU := $(shell nvidia-smi -L 2>/dev/null | grep -m1 -o GPU)
RUN_EXTRAS := tune,cpu,$(if $(GPU),cuda13,nvrtc)
TEST_EXTRAS := tune,cpu,nvrtc,explain,triton$(if $(GPU),$(comma)cuda13),postgres,fleet,test
stamp = $(VENV)/.set-up-$(subst $(comma),-,$(1))
RUN_READY := $(if $(VENV_GIVEN),,$(call stamp,$(RUN_EXTRAS)))
TEST_READY := $(if $(VENV_GIVEN),,$(call stamp,$(TEST_EXTRAS)))
DOCS_READY := $(if $(VENV_GIVEN),,$(call stamp,docs))

.PHONY: run test test-fast test-full test-study test-trust test-gpu test-sanitized headers study-notes docs lint format setup clean
.DELETE_ON_ERROR:

run: $(RUN_READY)
	$(PY) -m autotune run sgemm
	@command -v autotune >/dev/null || echo "to have autotune on the PATH: . $(VENV)/bin/activate"

test: $(TEST_READY)
	$(PY) -m pytest -n auto

# While editing: what starts no process and compiles nothing.
test-fast: $(TEST_READY)
	$(PY) -m pytest -n auto --fast -r fE

# What `make test` leaves out: whole records, all architectures, cases of a kind that it has. Among them are what
# lookup answers on GPUs that nobody tuned, compiled for each, AMD's too, and all shipped records in Triton.
test-full: $(TEST_READY)
	$(PY) -m pytest -n auto -m "full and not gpu"

# Kernels and notes of kernels/study, of which `make test` has a sample.
test-study: $(TEST_READY)
	$(PY) -m pytest -n auto -m "not gpu" tests/study

# Which rules of verification a wrong or a right kernel needs, and other long tests of its verdicts.
test-trust: $(TEST_READY)
	$(PY) -m pytest -n auto -m "not gpu" tests/trust

test-gpu: $(TEST_READY)
	$(PY) -m pytest -n 7 -m gpu tests/gpu

# Every bundled kernel under compute-sanitizer, on a machine with an NVIDIA GPU.
test-sanitized: $(TEST_READY)
	$(PY) -m pytest -n 7 -m gpu tests/gpu/sanitized_kernels.py

# What C++ programs include, from the records of all devices; they call no kernel in Triton, and none of kernels/study.
headers: $(TEST_READY)
	for name in $$(basename -as .json reports/NVIDIA_*/*.json | sort -u); do \
	  [ ! -e kernels/$$name.cu ] || $(PY) -m autotune export $$name header --from reports --out cpp/include/autotune || exit 1; done

# What the study notes claim, measured on this machine's GPU; docs/study/notes.md from it.
study-notes: $(TEST_READY)
	$(PY) benchmarks/study/notes.py

# The notice that it silences is of the theme's maker, not of these pages.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

lint: $(TEST_READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(TEST_READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

setup: $(TEST_READY)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis reports/opencl_*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up: one stamp per set of extras, so that a GPU added later or a first `make test` adds its own. Of nvidia-cutlass
# the headers are used, by an example; what it requires replaces modules of cuda-bindings.
$(PY):
	@test -n "$(PYTHON)" || { echo "error: no python3 found; kernel-autotune needs Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1), kernel-autotune needs Python 3.11 or newer;" \
	       "name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.set-up-%: pyproject.toml constraints.txt | $(PY)
	$(PY) -m pip install --quiet --constraint constraints.txt hatchling editables
	$(PY) -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[$(subst -,$(comma),$*)]'
	$(if $(findstring test,$*),$(PY) -m pip install --quiet --constraint constraints.txt --no-deps nvidia-cutlass)
	@touch $@
