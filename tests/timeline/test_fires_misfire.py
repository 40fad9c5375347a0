"""What comes next after downtime."""

from zoneinfo import ZoneInfo

from timeline.fires import CATCH_UP, Every, Misfire, Plan, Progress, following

MINUTE_MS = 60_000
PLAN = Plan(Every(MINUTE_MS, 0), ZoneInfo("UTC"))


def run(misfire: Misfire, through: int, now: int, *, was_late: bool = False, count: int = 4) -> list[float]:
    """Minutes of the next fires at minute `now`, when those up to minute `through` are dealt with."""
    progress, found = Progress(through * MINUTE_MS), []
    for _ in range(count):
        fire, progress = following(PLAN, misfire, progress, now * MINUTE_MS, was_late=was_late)
        was_late = False
        assert fire is not None
        found.append(fire.base_ms / MINUTE_MS)
    return found


def test_on_time_all_are_the_same() -> None:
    for misfire in ("fire_all", "fire_once", "skip"):
        assert run(misfire, 5, 5) == [6, 7, 8, 9]  # type: ignore[arg-type]


def test_after_downtime() -> None:
    assert run("fire_all", 5, 8) == [6, 7, 8, 9]
    assert run("fire_once", 5, 8) == [6, 9, 10, 11], "one for all that were missed"
    assert run("fire_once", 5, 8, was_late=True) == [9, 10, 11, 12], "the one before was that one"
    assert run("skip", 5, 8) == [8, 9, 10, 11], "8 is due now"


def test_a_fire_in_its_first_second_is_not_missed() -> None:
    for misfire in ("fire_all", "fire_once", "skip"):
        fire, progress = following(
            PLAN,
            misfire,
            Progress(5 * MINUTE_MS),
            6 * MINUTE_MS + 900,
            was_late=False,  # type: ignore[arg-type]
        )
        assert fire is not None
        assert (fire.base_ms, progress.through_ms) == (6 * MINUTE_MS, 6 * MINUTE_MS)


def test_fire_all_is_bounded() -> None:
    now = 5_000
    found = run("fire_all", 0, now, count=CATCH_UP + 2)
    assert found[:CATCH_UP] == list(range(1, CATCH_UP + 1)), "the oldest first"
    assert found[CATCH_UP:] == [now + 1, now + 2], "what is left then is left out"


def test_the_end() -> None:
    plan = Plan(Every(MINUTE_MS, 0), ZoneInfo("UTC"), end_ms=6 * MINUTE_MS)
    for misfire in ("fire_all", "fire_once", "skip"):
        fire, _ = following(plan, misfire, Progress(6 * MINUTE_MS), 0, was_late=False)  # type: ignore[arg-type]
        assert fire is None
