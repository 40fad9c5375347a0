"""How the tests are shared out between the processes of pytest-xdist, and what they have counted."""

import gc

import pytest
from xdist.scheduler import LoadScopeScheduling

import server  # noqa: F401 - before anything that may be compiled

GROUPS = {
    "tests/cluster/": "cluster",
    "tests/spark/test_cluster.py": "programs",
    "tests/spark/test_program.py": "programs",
    "tests/spark/": "session",
}
"""By how a path starts: one process has the Spark session, another the programs that start their own, another
the nodes of a cluster."""


class Groups(LoadScopeScheduling):
    """Each test by itself, but for those of a group, which go to one process; the largest group first.

    Not by the marks that xdist has for this: with pytest 9.2 they are not heeded (pytest-xdist issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((group for start, group in GROUPS.items() if nodeid.startswith(start)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    return Groups(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have noted as `counted`, whether they passed or not."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "counted":
                        terminalreporter.write_line(f"{report.nodeid}: {value}")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not walk it with every pass."""
    gc.collect()
    gc.freeze()
