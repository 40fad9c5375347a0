"""How the tests are shared out between the processes of pytest-xdist, which run when, and what they counted.

FASTI_LAYER asks for a layer of `support/layers.py`. In the folders of `make quick` the interpreter refuses to
start a process for a test without the mark `process`, in every run.
"""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import settings, strategies
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from xdist.scheduler import LoadScopeScheduling

import server  # noqa: F401 - before anything that may be compiled
from tests.support.layers import QUICKLY, is_asked_for, layer_of, may_have
from tests.support.soak import SOAK

# Images of Python often forbid bytecode. Without it each process that a test starts compiles the server anew:
# 0.8 s of processor time in place of 0.2, some hundreds of times.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def is_roomy(folder: Path) -> bool:
    """Whether 4 GB fit in, and programs may be run there."""
    return (
        folder.is_dir()
        and not os.statvfs(folder).f_flag & os.ST_NOEXEC
        and shutil.disk_usage(folder).free > 4 << 30
    )


# What ends here is processes, never the machine: their files need no disk, where each removal took 1 ms.
if "TMPDIR" not in os.environ and is_roomy(RAM := Path("/dev/shm")):
    os.environ["TMPDIR"] = tempfile.tempdir = str(RAM)
# aiohttp reads the machine's authorities when it is imported: 0.1 s of each process. No test asks them.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)
gc.set_threshold(50_000, 20, 20)  # a tenth less processor time: a server is many objects and stays a moment

# Speed belongs in benchmarks: on a busy machine an example of 2 ms once took 400. One commit, one result:
# only the soak draws at random, or constants of whatever modules a process has loaded.
settings.register_profile("fasti", deadline=None, derandomize=not SOAK)
settings.load_profile("fasti")
if not SOAK:
    providers._get_local_constants = Constants

HERE = Path(__file__).parent
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system"}
"""What the interpreter audits where a process begins."""
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""The number of this process among those of pytest-xdist."""
GROUPS = {
    "tests/cluster/": "cluster",
    "tests/spark/test_cluster.py": "programs",
    "tests/spark/test_large.py": "programs",
    "tests/spark/test_program.py": "programs",
    "tests/spark/": "session",
    "tests/browser/": "browser",
    "tests/log/": "log",
    "tests/server/http/test_schemathesis": "schemathesis",
}
"""By how a path starts: one process has the nodes of a cluster, another the Spark session, another the
programs that start their own, another the browser, another the servers of the log. They take longest and are
begun first, in this order."""
EACH = ("crash", "oracle", "overload", "bench", "docs", "model", "sdk", "fuzz", "mutation")
"""Folders of tests that mostly wait, each test by itself. Of the others, which compute, a file goes to one
process."""


def group_of(nodeid: str) -> str | None:
    return next((group for start, group in GROUPS.items() if nodeid.startswith(start)), None)


class Groups(LoadScopeScheduling):
    """Groups, tests and files, in the order in which they were collected.

    Not by the marks that xdist has for this: with pytest 9.2 they are not heeded (pytest-xdist issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        is_each = nodeid.split("/", 2)[1] in EACH
        return group_of(nodeid) or (nodeid if is_each else nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    config.option.loadscopereorder = False
    return Groups(config, log)


# -- who collects what first


class Beginning:
    """Each process begins to collect with folders of its own.

    In a fresh clone whoever imports a file of tests first compiles it, and the others read what was written.
    Were all to begin with the same file, each would compile every one: 12 s of processor time a process.
    A plugin, because a conftest is not asked for its subfolders.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if isinstance(collector, pytest.Dir):
            at = len(report.result) * WORKER // WORKERS
            report.result = report.result[at:] + report.result[:at]
        return report


def pytest_configure(config: pytest.Config) -> None:
    if WORKERS:
        config.pluginmanager.register(Beginning())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Hypothesis keeps what it computes of Unicode: 3 s once in a fresh clone, else in each process."""
    strategies.text().validate()


# -- what is quick


class Guard:
    """Refuses to start a process while a quick test runs. One for all tests: an audit hook stays."""

    def __init__(self) -> None:
        self.test: str | None = None
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: object) -> None:
        if self.test is not None and event in STARTS:
            raise RuntimeError(f"{self.test} starts a process: mark it with pytest.mark.process")


guard = Guard()


@cache
def folder_of(path: Path) -> str | None:
    """The folder of `tests` that a path is in; None: `tests` itself."""
    parts = path.relative_to(HERE).parts
    return parts[0] if parts else None


def is_wanted(item: pytest.Item) -> bool:
    return is_asked_for(layer_of(folder_of(item.path), {mark.name for mark in item.iter_markers()}))


@cache
def has_wanted(path: Path) -> bool:
    """Whether a file of tests, or one in a folder, may be of the layer that is asked for. A mark may stand in
    the conftest beside it."""
    if path.is_dir():
        return any(has_wanted(file) for file in path.rglob("test_*.py"))
    beside = path.with_name("conftest.py")
    text = path.read_text() + (beside.read_text() if beside.exists() else "")
    return may_have(folder_of(path), text)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files of other layers are not even imported, nor what the conftest beside them wants."""
    is_asked = not (collection_path.is_dir() or collection_path.match("test_*.py"))
    return None if is_asked or has_wanted(collection_path) else True


def rank(item: pytest.Item) -> tuple[int, int]:
    """What takes long comes first."""
    group, folder = group_of(item.nodeid), folder_of(item.path)
    if group is not None:
        return list(GROUPS.values()).index(group), 0
    return len(GROUPS), EACH.index(folder) if folder in EACH else len(EACH)


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """The groups; then files of tests that wait between files of those that compute, so that none of the
    processors rests while all processes of the tests wait."""
    first = [item for item in items if group_of(item.nodeid)]
    parts: list[tuple[float, list[pytest.Item]]] = []
    for is_each in (True, False):
        some = (i for i in items if not group_of(i.nodeid) and (folder_of(i.path) in EACH) == is_each)
        files = [list(file) for _, file in groupby(some, key=lambda item: item.path)]
        parts += [((number + 0.5) / len(files), file) for number, file in enumerate(files)]
    return first + [item for _, file in sorted(parts, key=itemgetter(0)) for item in file]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (rank(item), item.path))
    items[:] = mixed(items)
    if others := [item for item in items if not is_wanted(item)]:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if is_wanted(item)]


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not walk it with every pass."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if folder_of(item.path) in QUICKLY and item.get_closest_marker("process") is None:
        guard.test = item.nodeid


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    try:
        yield
    finally:
        guard.test = None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have noted as `counted`, whether they passed or not."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "counted":
                        terminalreporter.write_line(f"{report.nodeid}: {value}")
