"""Idempotency keys: what they are stored under; what becomes of drafts with known ones."""

import pytest

from shards.dedupe import Refused, key_of, known_keys, woven
from shards.draft import Draft, Known
from shards.tables import DedupeRow
from timeline.position import MessageId, Position


def test_a_key_belongs_to_its_user() -> None:
    assert len({key_of(user, key) for user in ("http", "mqtt", "") for key in (b"a", b"b", b"")}) == 9
    assert len(key_of("http", b"a" * 1_000)) == 16


def draft(key: bytes, fingerprint: bytes = b"f") -> Draft:
    return Draft(0, b"t", b"", key, fingerprint)


def taken(key: bytes) -> DedupeRow | None:
    return DedupeRow(MessageId(7), b"f", 70, Position(1)) if key == b"taken" else None


def test_known_drafts_get_the_first_answer_and_twins_that_of_the_first() -> None:
    drafts = [draft(b""), draft(b"new"), draft(b"taken"), draft(b""), draft(b"new"), draft(b"taken")]
    known = known_keys(drafts, taken)
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
        known_keys(drafts, taken)
    assert (caught.value.why, caught.value.index) == ("idempotency-mismatch", index)


def test_a_key_that_cannot_be_read_names_its_draft() -> None:
    def unreadable(key: bytes) -> DedupeRow | None:
        raise Refused("unreadable", "damage")

    with pytest.raises(Refused) as caught:
        known_keys([draft(b""), draft(b"a")], unreadable)
    assert (caught.value.why, caught.value.index) == ("unreadable", 1)
