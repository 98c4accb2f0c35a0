# Set-up included in every target: `make demo`, `make test`. `make help` lists.
PYTHON ?= python3.11
VENV ?= .venv
PY := $(VENV)/bin/python
DEMO ?= demo
# Another builder can stand in for docker, e.g. buildah: see CONTRIBUTING.md.
LOCAL_BUILDER := $(wildcard ../shared/tools/build-image)
IMAGE_BUILD ?= $(or $(LOCAL_BUILDER),docker build -t lamb-tf)
IMAGE_RUN ?= $(if $(LOCAL_BUILDER),$(LOCAL_BUILDER) --run,docker run --rm lamb-tf)

LOCKS := $(addprefix requirements/,build.lock lock.txt data.lock)
# The locks are complete, so pip resolves nothing and builds with what is there.
INSTALL := $(PY) -m pip install -qq --require-hashes --no-deps \
	--no-build-isolation
STAMP := $(VENV)/.complete

.DEFAULT_GOAL := help
.PHONY: help env demo smoke test test-slow lint bench image lock clean distclean

help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n",$$1,$$2}' \
		$(MAKEFILE_LIST)

env: $(STAMP) ## Makes the environment in .venv from the lock files.

# The stamp comes last, so an install that was cut short starts over.
$(STAMP): $(LOCKS) setup.py
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not on \
	the PATH. Install Python 3.11, or name it: make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	{ echo "error: $(PYTHON) is not Python 3.11."; exit 1; }
	@echo "Installing into $(VENV) (about 3 GB, a minute or two) ..."
	$(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install -qq --require-hashes -r requirements/build.lock
	$(INSTALL) -r requirements/lock.txt -r requirements/data.lock
	$(PY) -m pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Real text -> phase 1 -> phase 2 -> held-out table; resumes.
	@$(PY) -m bert_pretrain.prepare --output_dir=$(DEMO)/data
	@$(PY) -m bert_pretrain.pretrain --config_file=configs/demo_cpu.yaml \
		--params_override=task.data.input_path=$(DEMO)/data \
		--model_dir=$(DEMO)/model || [ $$? -eq 3 ] # 3: already complete.

smoke: $(STAMP) ## Both phases on the demo's data, in under a minute.
	@$(PY) -m bert_pretrain.prepare --output_dir=$(DEMO)/data
	@$(PY) -m bert_pretrain.pretrain --config_file=configs/smoke_cpu.yaml \
		--params_override=task.data.input_path=$(DEMO)/data \
		--model_dir=$(DEMO)/smoke || [ $$? -eq 3 ]

test: $(STAMP) ## The fast tests.
	$(PY) -m ruff check .
	$(PY) -m pytest

test-slow: $(STAMP) ## The tests that take minutes.
	$(PY) -m pytest -m slow

bench: $(STAMP) ## Times the optimizer beside its peers.
	$(PY) -m benchmarks.optimizer

image: ## Builds the container; runs its smoke recipe and fast tests.
	$(IMAGE_BUILD) .
	$(IMAGE_RUN) make smoke test VENV=/opt/venv DEMO=/tmp/demo

COMPILE := uv pip compile -q --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"
lock: ## Resolves the lock files anew (needs uv).
	$(COMPILE) requirements/build.in --allow-unsafe -o requirements/build.lock
	$(COMPILE) setup.py --extra bert --extra test \
		-c requirements/constraints.txt -o requirements/lock.txt
	$(COMPILE) requirements/data.in --no-deps -o requirements/data.lock

clean: ## Removes what was made, except the environment.
	rm -rf $(DEMO) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## Removes the environment too.
	rm -rf $(VENV)
