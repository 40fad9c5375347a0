"""Idempotency keys: what they are stored under; what becomes of drafts with known ones."""

from collections.abc import Callable

import pytest

from shards.dedupe import Refused, dedupe_key, keys_in_steps, woven
from shards.draft import Draft, Known
from shards.steps import at_once
from shards.tables import DedupeRow
from timeline.position import MessageId, Position


def test_a_key_belongs_to_its_user() -> None:
    assert len({dedupe_key(user, key) for user in ("http", "mqtt", "") for key in (b"a", b"b", b"")}) == 9
    assert len(dedupe_key("http", b"a" * 1_000)) == 16


def draft(key: bytes, fingerprint: bytes = b"f") -> Draft:
    return Draft(0, b"t", b"", key, fingerprint)


def taken(asked: Draft) -> DedupeRow | None:
    return DedupeRow(MessageId(7), b"f", 70, Position(1)) if asked.key == b"taken" else None


def bytes_of(row: DedupeRow) -> bytes:
    return b"stored"


def unsure(key: bytes) -> bool:
    """Of no key it is certain that it is new."""
    return False


def known_keys(
    drafts: list[Draft], taken: Callable[[Draft], DedupeRow | None] = taken
) -> dict[int, Known | int]:
    unhurried, quick = [
        outcome(lambda is_new=is_new: at_once(keys_in_steps(drafts, taken, bytes_of, is_new)))
        for is_new in (unsure, lambda key: key not in (b"taken", b"a"))
    ]
    assert repr(quick) == repr(unhurried), "a key that is new needs no second look"
    if isinstance(quick, Refused):
        raise quick
    return quick


def outcome(of: Callable[[], dict[int, Known | int]]) -> dict[int, Known | int] | Refused:
    try:
        return of()
    except Refused as error:
        return error


def test_known_drafts_get_the_first_answer_and_twins_that_of_the_first() -> None:
    drafts = [draft(b""), draft(b"new"), draft(b"taken"), draft(b""), draft(b"new"), draft(b"taken")]
    known = known_keys(drafts)
    assert known == {2: Known(MessageId(7), 70), 4: 1, 5: 2}
    placed = [MessageId(100), MessageId(101), MessageId(102)]
    again = Known(MessageId(7), 70)
    assert woven(placed, known, 6) == [100, 101, again, 102, 101, again]


@pytest.mark.parametrize(
    ("drafts", "index"),
    [
        ([draft(b"new"), draft(b"taken", b"other")], 1),
        ([draft(b"new"), draft(b"b"), draft(b"new", b"other")], 2),
        ([draft(b"taken"), draft(b"taken", b"other")], 1),
    ],
)
def test_a_key_of_another_request_is_refused(drafts: list[Draft], index: int) -> None:
    with pytest.raises(Refused) as caught:
        known_keys(drafts)
    assert (caught.value.why, caught.value.index) == ("idempotency-mismatch", index)


def test_a_key_that_cannot_be_read_names_its_draft() -> None:
    def unreadable(asked: Draft) -> DedupeRow | None:
        raise Refused("unreadable", "damage")

    with pytest.raises(Refused) as caught:
        known_keys([draft(b""), draft(b"a")], unreadable)
    assert (caught.value.why, caught.value.index) == ("unreadable", 1)


def test_twins_of_two_scopes_are_as_two_requests_would_be() -> None:
    """The key is taken for who wants it kept, and free for who does not."""

    def done(asked: Draft) -> DedupeRow | None:
        return None if asked.while_undone else taken(asked)

    kept, free = draft(b"taken"), Draft(0, b"t", b"", b"taken", b"f", while_undone=True)
    assert known_keys([kept, free, kept, free], done) == {0: Known(MessageId(7), 70), 2: 1, 3: 1}
    assert known_keys([free, kept, free], done) == {1: 0, 2: 0}
    assert woven([MessageId(9)], known_keys([kept, free, kept], done), 3) == [Known(MessageId(7), 70), 9, 9]


def test_who_is_refused_is_told_of_both_messages() -> None:
    other = Draft(0, b"t", b"wanted", b"taken", b"other")
    with pytest.raises(Refused) as caught:
        known_keys([other])
    assert (caught.value.other, caught.value.wanted) == (b"stored", b"wanted")


def test_each_whose_message_is_asked_about_is_a_step() -> None:
    """That of one may take a millisecond."""
    usual = [draft(b"%d" % n) for n in range(5)]
    free = [Draft(0, b"t", b"", b"%d" % n, b"f", while_undone=True) for n in range(5)]
    assert [len(list(keys_in_steps(some, taken, bytes_of, unsure))) for some in (usual, free)] == [0, 4]
