"""What counts as fallen."""

from pathlib import Path

from tests.bench.recorded import fallen, form, record
from tests.bench.results import Result

FORM = "quick pure"


def rate(value: float, baseline: str = "Redis", *, less: bool = False, floor: bool = False) -> Result:
    return Result("batch", "msg/s", [value], baseline, [100.0], less=less, is_floor=floor)


def test_a_ratio_has_fallen_that_is_a_fifth_worse(tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    record([rate(50)], FORM, file)
    assert fallen([rate(41)], FORM, file) == []
    assert fallen([rate(80)], FORM, file) == []
    assert fallen([rate(39)], FORM, file) == ["batch / Redis: 0.5 -> 0.39"]


def test_where_less_is_better_a_ratio_that_grows_has_fallen(tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    record([rate(50, less=True)], FORM, file)
    assert fallen([rate(30, less=True)], FORM, file) == []
    assert fallen([rate(61, less=True)], FORM, file) == []
    assert fallen([rate(64, less=True)], FORM, file) == ["batch / Redis: 0.5 -> 0.64"]


def test_forms_and_rows_do_not_mix_and_what_is_not_measured_stays(tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    record([rate(50), rate(60, "PostgreSQL")], FORM, file)
    record([rate(70, "PostgreSQL"), rate(9, "before"), Result("alone", "s", [1.0])], FORM, file)
    assert fallen([rate(1)], form(True, "compiled"), file) == []
    assert fallen([rate(1), rate(50, "PostgreSQL"), rate(1, "before")], FORM, file) == [
        "batch / Redis: 0.5 -> 0.01",
        "batch / PostgreSQL: 0.7 -> 0.5",
    ]


def test_a_floor_is_judged_only_where_no_peer_is(tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    record([rate(50), rate(20, "a log", floor=True)], FORM, file)
    assert fallen([rate(50), rate(1, "a log", floor=True)], FORM, file) == []
    assert fallen([rate(1, "a log", floor=True)], FORM, file) == ["batch / a log: 0.2 -> 0.01"]
