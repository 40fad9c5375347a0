"""The tables of planted faults are of lines that there are, and each fault has a driver that must find it."""

import pytest

from tests.support.build import OPENED
from tests.support.planted import DRIVERS, ROOT, Fault, every_fault
from timeline.position import START, Position
from timeline.tail import Tail

LINE = "return read >= self.floor"
COVERS_ALL = Fault("covers all", "", [("timeline/tail.py", LINE, "return True")], {})


def test_what_a_fault_changes_stands_in_the_sources_once() -> None:
    for fault in every_fault().values():
        for file, before, _ in fault.changes:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert (fault.name, text.count(before)) == (fault.name, 1)


@pytest.mark.parametrize(("driver", "file"), DRIVERS.items())
def test_a_driver_runs_its_faults(driver: str, file: str) -> None:
    assert f'@finds("{driver}")\n' in (ROOT / file).read_text(encoding="utf-8")
    assert any(driver in fault.drivers for fault in every_fault().values())


@OPENED
def test_a_fault_goes_when_the_test_ends() -> None:
    tail: Tail[str] = Tail(Position(7), max_entries=1, max_bytes=100)
    with pytest.MonkeyPatch.context() as patch:
        COVERS_ALL.plant(patch)
        assert tail.covers(START)
    assert not tail.covers(START)


@pytest.mark.parametrize(("before", "times"), [("return nothing", 0), ("return", 6)])
def test_a_fault_of_a_line_that_is_not_there_once_is_told(
    before: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match=f"stale: {times} times in timeline/tail.py: {before}"):
        Fault("stale", "", [("timeline/tail.py", before, "pass")], {}).plant(monkeypatch)
