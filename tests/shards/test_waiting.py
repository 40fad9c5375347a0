"""The two figures of what waits: each verb moves its own, and an undone group leaves them as they were."""

from shards.recover import Opened
from shards.waiting import Waiting
from timeline.slices import DAY_MS

from .timelines import NOW, draft, group, open_at, put, written


def figures(waiting: Waiting) -> tuple[int, int]:
    return waiting.pending, waiting.held


def test_each_verb_changes_its_own_figure() -> None:
    assert figures(Waiting()) == (0, 0)
    waiting = Waiting(5, 2)
    waiting.placed(10)
    waiting.cancelled()
    waiting.dispatched(4)
    assert figures(waiting) == (10, 2)
    waiting.held_back()
    waiting.held_back()
    waiting.let_go()
    assert figures(waiting) == (10, 3)


def test_a_group_that_is_not_written_is_undone() -> None:
    waiting = Waiting(5, 2)
    waiting.placed(1)
    waiting.begin()
    waiting.placed(3)
    waiting.held_back()
    waiting.undo()
    assert figures(waiting) == (6, 2)


def test_what_was_dispatched_meanwhile_stays_dispatched() -> None:
    """A group may be open for several turns."""
    waiting = Waiting(5, 2)
    waiting.begin()
    waiting.placed(3)
    waiting.dispatched(4)
    waiting.undo()
    assert figures(waiting) == (1, 2)


def test_what_is_counted_again_stays_when_a_group_is_undone() -> None:
    waiting = Waiting(5, 2)
    waiting.begin()
    waiting.recounted(7, 1)
    waiting.undo()
    assert figures(waiting) == (7, 1)


def test_an_opened_timeline_shows_them_and_counts_them_again(opened: Opened) -> None:
    put(opened, draft(NOW + DAY_MS), draft(NOW + 2 * DAY_MS))
    with written(opened, NOW - 60_000) as commit:
        commit.put([draft(NOW - 30_000)])
    assert (opened.waiting.pending, opened.waiting.held) == figures(opened.waiting) == (3, 1)
    opened.waiting.dispatched(2)
    opened.waiting.let_go()
    assert (opened.waiting.pending, opened.waiting.held) == (1, 0)
    opened.recount()
    assert (opened.waiting.pending, opened.waiting.held) == (3, 1)


def test_running_time_is_added_up_and_comes_back(opened: Opened) -> None:
    opened.open_batch.ran(1_500)
    opened.open_batch.ran(500)
    put(opened, draft(NOW + DAY_MS))
    assert opened.open_batch.running_ms == open_at(opened.store).open_batch.running_ms == 2_000  # type: ignore[arg-type]


def test_opening_a_group_is_where_undoing_it_comes_back_to(opened: Opened) -> None:
    put(opened, draft(NOW + DAY_MS))
    group(opened).put([draft(NOW + DAY_MS)])
    assert opened.waiting.pending == 2
    opened.waiting.undo()
    assert opened.waiting.pending == 1
