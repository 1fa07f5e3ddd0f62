# make test | check | sanitize | demo | chaos | bench | bench-quick | torture: each makes the virtual
# environment it needs.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
# The CPU build of torch where the index has it as this version; any torch >= 2.4 works.
TORCH  ?= torch==2.13.0
EXTRAS ?= test,check,atari,sb3,tianshou,torchrl,bench

.DEFAULT_GOAL := test
.PHONY: env test check sanitize demo chaos bench bench-quick torture clean

$(VENV)/.installed: pyproject.toml constraints.txt setup.py $(wildcard csrc/core/* csrc/bindings/*)
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint constraints.txt "$(TORCH)"
	$(PY) -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

# The libraries that pyengine is measured against; nothing else needs them.
$(VENV)/.rivals: $(VENV)/.installed
	$(PY) -m pip install --quiet --constraint constraints.txt --editable ".[rivals]"
	touch $@

env: $(VENV)/.installed

# A file goes whole to one of so many processes, in order: those that take long come first.
TESTERS ?= 2
test: env
	$(PY) -m pytest --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder

check: env
	tools/check.sh $(VENV)/bin

# The C core under ThreadSanitizer, AddressSanitizer and UBSan, and the model of the shared words, for
# some minutes; `make test` has a short run of each.
sanitize: env
	PYENGINE_SANITIZE_SECONDS=60 PYENGINE_MODEL=full $(PY) -m pytest -s tests/native tests/model

# The clock starts here: the demo fits itself into what installation leaves of ten minutes.
demo: STARTED := $(shell date +%s)
demo: env
	$(PY) tools/demo.py --started $(STARTED)

# Half an hour on two cores: make torture TORTURE="--states 5000 --kills 100 --errors 100" is shorter.
torture: env
	$(PY) tools/torture.py $(TORTURE)

chaos: env
	$(PY) tools/chaos.py

bench: $(VENV)/.rivals
	$(PY) -m benchmarks

bench-quick: $(VENV)/.rivals
	$(PY) -m benchmarks --quick

clean:
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache
	find pyengine -name '*.so' -delete
