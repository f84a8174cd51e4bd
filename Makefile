# Every target does the set-up it needs, once, in .venv, and needs only Python >= 3.10, make and git.
# Versions are those of constraints.txt. A stamp file shows that a set-up is complete; after that nothing
# is installed again and no network is needed.
#
#   make PYTHON=/path/to/python3.12   another Python      make test TESTS=tests/cli   some tests
#   make test WORKERS=4               more processes      make test ARGS='-k rank -x' pytest's options

WORKERS ?= 2
TESTS ?= tests
SCALE ?= mini
ARGS ?=
PREFIX ?= /usr/local
VENV := .venv
BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --constraint constraints.txt

# One thread a process: the processes share the cores, and results must not depend on their number.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# A user's Python settings must not leak into .venv.
unexport PYTHONPATH PYTHONHOME
export PIP_USER := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-portable lint constraints check-constraints check-wheel bench bench-gpu docs site install uninstall clean
.DELETE_ON_ERROR:

help:  ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/  make \1	\2/p' Makefile

setup: $(VENV)/run.stamp  ## install everything the tools need in .venv; then .venv/bin/rb-* work
	@echo "Ready: $(BIN)/rb-arch, $(BIN)/rb-attack, ..."

demo: $(VENV)/run.stamp  ## six networks on real digits: enumerated, trained, attacked, sampled, scored, ranked
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh demo.sh

PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup
test: $(VENV)/test.stamp  ## run the quick tests, and name those it leaves to test-all: three minutes on two cores
	$(PYTEST) -m 'smoke or not (slow or processes or extra)' $(ARGS) $(TESTS)

test-all: $(VENV)/test-all.stamp  ## run every test: fifteen minutes on two cores
	$(PYTEST) $(ARGS) $(TESTS)

# As far as this machine can play another one: older instructions, other sums, another training of every network, and
# bfloat16 where it is not native. Only tests of networks that are trained here: a few minutes (tests/README.md).
OTHER_MACHINE := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE RBTOOLS_TEST_SEED=1 RBTOOLS_TEST_BF16=yes
test-portable: $(VENV)/test.stamp  ## run the tests that train networks as on another machine
	env $(OTHER_MACHINE) $(PYTEST) -m 'trains and not (slow or extra)' $(ARGS) $(TESTS)

# Tests run the benches only at their smallest size, so mypy looks for calls of names that are gone.
LOOSE := assignment arg-type dict-item misc no-any-return return-value var-annotated
lint: $(VENV)/lint.stamp  ## check style (ruff) and types (mypy)
	@status=0; $(BIN)/ruff check . || status=1; $(BIN)/mypy || status=1; \
	$(BIN)/mypy --ignore-missing-imports --no-warn-unused-ignores $(addprefix --disable-error-code=,$(LOOSE)) \
	    $(wildcard bench/*.py) || status=1; exit $$status

# constraints.txt has every package of every extra in one version for each Python. Versions that are there stay where
# they can: make constraints ARGS=--upgrade takes the newest, ARGS='--upgrade-package NAME' those of one package.
RESOLVE := $(BIN)/uv pip compile --quiet --all-extras pyproject.toml constraints.in
UNIVERSAL := --universal --python-version 3.10 --no-annotate --no-emit-index-url --custom-compile-command 'make constraints'
constraints: $(VENV)/uv.stamp  ## resolve constraints.txt anew after a change of pyproject.toml (needs the network)
	$(RESOLVE) $(UNIVERSAL) --output-file constraints.txt $(ARGS)

# 3.11.2 is the Python of Debian 12: a release that needs 3.11.5, say, must not be chosen for every 3.11.
PYTHONS := 3.10.0 3.11.2 3.12 3.13 3.14
check-constraints: $(VENV)/uv.stamp  ## resolve every extra for each Python, without installing (needs the network)
	@new=`mktemp` && trap 'rm -f "$$new"' EXIT && cp constraints.txt "$$new" && \
	$(RESOLVE) $(UNIVERSAL) --output-file "$$new" && { diff -u constraints.txt "$$new" || { \
	    echo "make: constraints.txt is not what pyproject.toml and constraints.in ask for. Run make constraints." >&2; exit 1; }; }
	@for python in $(PYTHONS); do \
	    $(RESOLVE) --constraint constraints.txt --python-version $$python >/dev/null || { \
	        echo "make: Python $$python has no versions that agree with constraints.txt. Run make constraints." >&2; exit 1; }; \
	done; echo "constraints.txt can be installed on Python $(PYTHONS)"

# Needs the network, and a torch for each Python: by hand, before a release.
check-wheel: $(VENV)/test.stamp  ## install the wheel with pip in empty environments, and run README and extras
	$(ONE_THREAD) $(BIN)/python bench/check_wheel.py $(ARGS)

bench: $(VENV)/run.stamp  ## measure start-up times; one JSON line a figure (bench/RESULTS.md)
	$(BIN)/python bench/startup.py

bench-gpu: $(VENV)/test.stamp  ## measure a GPU, as a table; without one only launches and waits are counted
	$(BIN)/python bench/gpu_table.py

install:  ## install tools, man pages and completions into PREFIX (/usr/local, or PREFIX=$HOME/.local)
	@PYTHON="$${PYTHON:-$(PYTHON)}" sh install.sh install '$(PREFIX)'

uninstall:  ## remove from PREFIX what install put there
	@sh install.sh uninstall '$(PREFIX)'

docs: $(VENV)/run.stamp  ## write the man pages and completions anew
	$(BIN)/python -m rbtools.cli.docs

site: $(VENV)/site.stamp  ## build docs/ as pages that need no network, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- papers: recipes of pipes, resumable through the store (python -m rbtools.papers --help) ------
#
#   make reproduce-NAME SCALE=mini    some minutes on two cores, on the built-in digits (the default)
#   make reproduce-NAME SCALE=full    the paper's setting; lists missing data
#   make figures-NAME                 runs the reproduction where it is not done, then draws
#
# Records go to $(REPRODUCED)/NAME-SCALE.jsonl, figures and tables to $(REPRODUCED)/NAME. Run it again to resume.
# JOBS trainings run at once (auto, ray: workers of every stage); SHARD=2/8, or auto in a Slurm array,
# is a part of the records. PR_PAIRS, PR_VITS and PR_VIT_S choose parts of PRBench.
REPRODUCED ?= reproduced
JOBS ?= 2
DATA ?= data
if-set = $(if $(filter-out undefined,$(origin $(1))),$(2) '$($(1))')
PAPER = $(BIN)/python -m rbtools.papers $@ --scale $(SCALE) --jobs $(JOBS) --data '$(DATA)' --reproduced '$(REPRODUCED)' \
	$(call if-set,SHARD,--shard) $(call if-set,WEIGHTS,--weights) $(call if-set,DATASET,--dataset) $(call if-set,TABLE,--table) \
	$(call if-set,PR_PAIRS,--pairs) $(call if-set,PR_VITS,--vits) $(call if-set,PR_VIT_S,--vit-s)
PAPERS := reproduce-nas-bench-201-robustness reproduce-nas-robbench-201 reproduce-prbench reproduce-search reproduce-theory \
	reproduce-wci figures-nas-robbench-201 figures-robustness-dataset figures-prbench figures-wci figures-theory
.PHONY: $(PAPERS)
reproduce-nas-bench-201-robustness:  ## Jung et al.: table 1 (SCALE=mini or full)
reproduce-nas-robbench-201:  ## NAS-RobBench-201's tables 1, 4 to 7 (SCALE=mini or full)
reproduce-prbench:  ## PRBench's tables 4, 5, 8 to 12 and composite (SCALE=mini, full or text)
reproduce-search:  ## searches on a published table, beside the papers' (TABLE=FILE of rb-convert)
reproduce-theory:  ## NAS-RobBench-201's theorems 1 and 2, corollary 1 and algorithm 1 (SCALE=mini or full)
reproduce-wci:  ## the Weight-Curvature Index beside robust gaps along trainings (SCALE=mini, full, or small with DATASET=imagefolder:PATH)
figures-nas-robbench-201:  ## every figure and table of NAS-RobBench-201 (SCALE=mini or full)
figures-robustness-dataset:  ## every figure and table of Jung et al. 2023
figures-prbench:  ## every figure and table of PRBench
figures-wci:  ## every figure of the Weight-Curvature Index
figures-theory:  ## the theorems and the algorithm of NAS-RobBench-201
$(PAPERS): $(VENV)/run.stamp
	@$(PAPER)

# --- set-up -------------------------------------------------------------------------------------

# An empty or broken .venv is made anew; the stamp comes last, so that only a whole one counts.
$(VENV)/venv.stamp:
	@python='$(PYTHON)'; \
	if [ -z "$$python" ]; then \
	    for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	        "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break; \
	    done; \
	fi; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	    echo "make: found no Python >= 3.10 (tried: $${python}; its version: `"$$python" --version 2>&1`)." \
	         "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }; \
	"$$python" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $$python cannot make virtual environments: its modules venv and ensurepip are missing." \
	         "On Debian and Ubuntu: apt-get install python3-venv. Or name another: make PYTHON=..." >&2; exit 1; }; \
	echo "Making $(VENV) with `"$$python" --version`"; \
	"$$python" -m venv --clear $(VENV)
	@touch $@

# torch comes first and by its exact version: where a build for the CPU is at hand it is taken, and
# the packages that depend on torch find it there instead of asking for the newest (CUDA) build.
# pip writes INSTALLER after everything else: an installation that was killed half-way lacks it, and
# would be taken for whole.
$(VENV)/run.stamp: $(VENV)/venv.stamp $(PINS) rbtools/__init__.py
	@find $(VENV)/lib -name '*.dist-info' -type d ! -exec test -e '{}/INSTALLER' ';' -prune -exec rm -rf {} +
	@echo "Installing rbtools and what it needs (once; on Linux up to 5 GB, most of it CUDA for torch) ..."
	@$(PIP) "`sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt`" setuptools
	@$(PIP) --quiet --no-build-isolation --editable .
	@# A torchvision for CUDA beside a torch for the CPU: let scripts of the user import it, too.
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || \
	    echo 'import rbtools.torchvision_hook' >"`$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'`/rbtools.pth"
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp
	@echo "Installing what the tests need (once) ..."
	@$(PIP) --quiet --no-build-isolation --editable '.[test]'
	@$(PIP) --quiet --no-deps \
	    adversarial-robustness-toolbox imagecorruptions pyhessian torchattacks
	@touch $@

$(VENV)/test-all.stamp: $(VENV)/test.stamp
	@echo "Installing what test-all needs besides (once) ..."
	@$(PIP) --quiet --no-build-isolation --editable '.[test-all]'
	@touch $@

$(VENV)/site.stamp: $(VENV)/run.stamp
	@echo "Installing mkdocs (once) ..."
	@$(PIP) --quiet --no-build-isolation --editable '.[docs]'
	@touch $@

# Of nothing else that is pinned: it mends versions that cannot be installed.
$(VENV)/uv.stamp: $(VENV)/venv.stamp
	@echo "Installing uv (once) ..."
	@$(PIP) --quiet uv
	@touch $@

$(VENV)/lint.stamp: $(VENV)/run.stamp
	@echo "Installing ruff, mypy and uv (once) ..."
	@$(PIP) --quiet --no-build-isolation --editable '.[dev]'
	@touch $@
