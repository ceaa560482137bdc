# Two commands are enough: `make run` and `make test`. Both make their environment first and can be repeated.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := rlexp tests benchmarks
EXPERIMENT ?= experiments/cartpole-apex.yaml
BENCHMARKS ?= replay_buffers replay_processes rollout learner apex_throughput time_to_reward trial_start ppo

# Containers often set it. Without compiled modules each of the hundreds of processes of the tests compiles rlexp again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install run test docs docs-test pictures versions test-lowest test-newest test-processors test-learning test-properties cluster drills drills-long format lint type corpus bench bench-peers clean

install: $(VENV)/.installed

# torch first and exactly, so that no other requirement pulls a build of its own choice.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

run: install
	$(BIN)/rlexp run $(EXPERIMENT)

test: install
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/zizmor --offline --quiet .github/workflows
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 3 --dist worksteal

# Everything that can go wrong on purpose, half an hour; some: .venv/bin/python -m tests.drills run NAME...
drills: install
	$(BIN)/python -m tests.drills run --all

# The same things broken again and again for 25 minutes: fifty kills, thirty-six workers, ten minutes of soak.
drills-long: install
	$(BIN)/python -m tests.drills run --all --long

# The built wheel in new environments: the lowest versions, and the newest on Python 3.11, 3.12 and 3.13. Not in CI: twenty
# minutes and, where torch comes with CUDA, 7 GB on the disk at a time. Some: make versions VERSIONS="3.11-lowest 3.12"
versions:
	$(PYTHON) -m tests.versions $(VERSIONS)

# The lowest versions that pyproject.toml allows, with torch as in constraints.txt: torch 2.10 has no CPU wheel on PyPI,
# and its CUDA wheel brings gigabytes.
LOWEST := .venv-lowest

$(LOWEST)/.installed: pyproject.toml constraints.txt tests/lowest_versions.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tests/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt torch
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
		--editable '.[dev]'
	touch $@

# The newest versions that pyproject.toml allows, with torch as in constraints.txt for the same reason.
NEWEST := .venv-newest

$(NEWEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(NEWEST)
	grep '^torch==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(NEWEST)/constraints.txt torch
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(NEWEST)/constraints.txt \
		--editable '.[dev]'
	touch $@

test-lowest: VERSIONS_VENV := $(LOWEST)
test-lowest: $(LOWEST)/.installed
	$(test_versions)

test-newest: VERSIONS_VENV := $(NEWEST)
test-newest: $(NEWEST)/.installed
	$(test_versions)

# Old libraries use what newer ones deprecate, and the newest deprecate what is still used, so here a warning is no error;
# tests/cli makes errors of them by itself.
define test_versions
	$(VERSIONS_VENV)/bin/rlexp --version
	$(VERSIONS_VENV)/bin/rlexp --help
	$(VERSIONS_VENV)/bin/rlexp check experiments/cartpole-apex.yaml
	$(VERSIONS_VENV)/bin/rlexp run experiments/cartpole-dqn.yaml -o stop.timesteps_total=2000 \
		--out $(VERSIONS_VENV)/results --overwrite
	$(VERSIONS_VENV)/bin/rlexp evaluate $(VERSIONS_VENV)/results/cartpole-dqn --episodes 2
	$(VERSIONS_VENV)/bin/tensorboard --version
	$(VERSIONS_VENV)/bin/pytest -m 'not slow and not ray' -o filterwarnings=default \
		-o cache_dir=$(VERSIONS_VENV)/.pytest_cache tests/unit tests/cli/test_help.py
endef

# Every command of the pages, as a reader types it, ten minutes; some pages: make docs-test PAGES="sweep replay"
docs-test: install
	$(BIN)/python -m tests.pages $(PAGES)

# The site of the pages, site/index.html; it loads nothing from other servers.
DOCS := .venv-docs

$(DOCS)/.installed: docs/requirements.txt
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	touch $@

docs: install $(DOCS)/.installed
	$(BIN)/python -m tests.pages.reference docs/reference
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

# docs/images, three minutes; the report needs chromium. One of them: make pictures PICTURES=run
pictures: install
	$(BIN)/python -m tests.pages.pictures $(PICTURES)

# The tests of numbers, as an x86 processor without AVX-512 computes them; three minutes.
NO_AVX512 := OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL" ATEN_CPU_CAPABILITY=avx2 \
	MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2

test-processors: install
	$(NO_AVX512) $(BIN)/pytest --numprocesses 3 tests/unit tests/contracts tests/behaviour/ppo \
		-m 'not slow and not cluster_slow and not ray'

test-learning: install
	$(BIN)/pytest -m slow --timeout 900

# A thousand examples of each property whose test does not say how many it needs; `make test` takes 40.
test-properties: install
	$(BIN)/pytest -m hypothesis --hypothesis-profile thorough --timeout 900

# An S3 server for tests. It needs older versions than rlexp's requirements bring, so it has an environment of its own.
S3 := .venv-s3

$(S3)/.installed:
	$(PYTHON) -m venv --clear $(S3)
	$(S3)/bin/python -m pip install --quiet --disable-pip-version-check 'moto[server,s3]>=5'
	touch $@

# Ray clusters of several nodes on this machine, made of namespaces as root with iproute2 and util-linux, else of
# processes; and storage on that S3 server.
cluster: install $(S3)/.installed
	$(BIN)/pytest -m cluster_slow --timeout 900

format: install
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: install
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/zizmor --offline --quiet .github/workflows

type: install
	$(BIN)/mypy

# What becomes of a folder of experiment files: make corpus DIR=folder
corpus: install
	$(BIN)/python -m benchmarks.corpus $(DIR)

# What docs/performance.md reports, an hour in all; a few of them: make bench BENCHMARKS="rollout learner"
bench: install
	@for name in $(BENCHMARKS); do echo "$$name"; $(BIN)/python benchmarks/$$name.py || exit; done

# The libraries that replay, PPO and DQN are compared with. None may change a version that the tests ran with: tianshou
# wants an older pandas, but does without, so it comes without its requirements and they are named here.
PEERS := cpprb torchrl "deepdiff h5py matplotlib numba overrides pettingzoo sensai-utils tqdm" "--no-deps tianshou>=2" stable-baselines3

# Those that need older versions, or many packages, have an environment each, .venv-NAME. It sees the packages of .venv
# behind its own, so torch is there once; pip complains of those that want newer versions, and none of them is used there.
PEERS_WITH_OWN := sbx sample-factory cleanrl rllib-new
PACKAGES_sbx := sbx-rl
PACKAGES_sample-factory := sample-factory==2.1.1
PACKAGES_cleanrl := gymnasium==0.29.1 numpy<2 tyro
PACKAGES_rllib-new := ray[rllib]==$(shell sed -n 's/^ray==//p' constraints.txt)

bench-peers: install $(PEERS_WITH_OWN:%=.venv-%/.installed)
	@for peer in $(PEERS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $$peer \
			|| echo "could not be installed, so it is left out: $$peer"; \
	done

.venv-%/.installed: $(VENV)/.installed
	$(PYTHON) -m venv --clear $(@D)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> $$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz_shared.pth
	grep '^torch==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(@D)/constraints.txt \
		$(foreach package,$(PACKAGES_$*),'$(package)') && touch $@ \
		|| echo "could not be installed, so it is left out: $*"

clean:
	rm -rf $(VENV) $(LOWEST) $(NEWEST) $(S3) $(DOCS) $(PEERS_WITH_OWN:%=.venv-%) docs/reference site dist .mypy_cache .pytest_cache .ruff_cache
