# Every target makes what it needs in .venv, and again only when pyproject.toml has changed.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp

.DEFAULT_GOAL := help
.PHONY: help env models demo test check docs bench soak clean

help:
	@echo "make demo    serve small models of every kind from one address, in too little memory"
	@echo "make test    run every test"
	@echo "make check   format, lint, types, import contracts, documentation, example registry"
	@echo "make docs    write the generated tables of docs/"
	@echo "make bench   measure what is promised; let nothing else run meanwhile"
	@echo "make soak    the long versions of the chaos, cycle and stream tests (about an hour)"
	@echo "make env     only set up .venv"
	@echo "make models  only make the small models in .models"
	@echo "make clean   remove .venv, .models and caches"

env: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

models: env
	@$(BIN)/python -m demo.models

demo: models
	@$(BIN)/python -m demo.run

test: models
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not timed"
	$(BIN)/python -m pytest -m timed

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check
	$(BIN)/mlx-gateway check registry.example.yaml

docs: env
	@$(BIN)/python -m docs.generate

bench: models
	$(BIN)/python -m tests.bench

soak: models
	$(BIN)/python -m pytest -s tests/soak

clean:
	rm -rf .venv .models .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
