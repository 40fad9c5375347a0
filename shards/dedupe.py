"""Idempotency keys: which drafts of a request were accepted before.

A key is remembered with its message (table `dedupe`) until that message's slice is dropped, or the message is
lost. If the same request comes again with the key, it gets the first answer again. If another request uses
the key, it is refused as a whole before any row is placed. Two drafts of one request with the same key are
one message.

A request may set other terms. With `key_only` the key alone decides that it is the same request. With
`replace` a key whose message was cancelled is free. A key whose message is pending or dispatched is not: a
replace that is sent again finds the message that it placed itself, and places nothing twice.

A whole batch may have a key of its own. One row then has the ids of all its messages (commit.py). Items that
such a batch placed get their ids again; those that were refused left nothing, and are decided again.

With `while_undone` a key counts as taken only while its message is undone. The terms of the earlier request
do not count, so no row stores them.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b

from timeline.position import MessageId

from .draft import Draft, Known
from .errors import ShardsError
from .steps import STEP, Bits
from .tables import DedupeRow

BATCH_MISMATCH = "batch-mismatch"
"""Why a batch is refused whose key another batch has used."""


def dedupe_key(user: str, key: bytes) -> bytes:
    """Row key of a user's idempotency key: 16 bytes."""
    hashing = _hash_of(user).copy()
    hashing.update(key)
    return hashing.digest()


@lru_cache(maxsize=16)
def _hash_of(user: str) -> blake2b:
    """An empty hash to copy: half the cost of making one. Never updated itself."""
    return blake2b(digest_size=16, person=user.encode()[:16])


class Refused(ShardsError):
    """A draft was refused. `index`: its place in the request; `why`: a stable word.

    `other`, `wanted`: if another request has used the key, that one's stored message, if it can be read, and
    the refused one.
    """

    def __init__(
        self, why: str, detail: str, index: int = 0, other: bytes = b"", wanted: bytes = b""
    ) -> None:
        super().__init__(detail)
        self.why = why
        self.index = index
        self.other = other
        self.wanted = wanted


def keys_in_steps(
    drafts: Sequence[Draft],
    taken: Callable[[Draft], DedupeRow | None],
    stored: Callable[[DedupeRow], bytes],
    is_new: Callable[[bytes], bool],
    *,
    key_only: bool = False,
    step: int = STEP,
) -> Bits[dict[int, Known | int]]:
    """Drafts whose key is taken, by index: the first answer, or the index of its twin in this request.

    `stored`: the message under a key, empty if it cannot be read. `is_new`: whether nothing is stored under a
    key, for certain; most keys are new, and they need no second look. A step is `step` drafts, or one draft
    whose places all have to be asked. Raises Refused for the first draft whose key another request has used,
    unless `key_only`.
    """
    known: dict[int, Known | int] = {}
    here: dict[bytes, int] = {}
    for index, draft in enumerate(drafts):
        if index and (draft.while_undone or not index % step):
            yield
        key = draft.key
        if not key:
            continue
        twin = here.setdefault(key, index)
        if twin == index and is_new(key):
            continue
        is_looked_up = twin == index or (draft.while_undone and isinstance(known.get(twin), Known))
        try:
            row = taken(draft) if is_looked_up else None
        except Refused as error:
            error.index = index
            raise
        if is_looked_up and row is None:
            twin = here[key] = index
        fingerprint = row.fingerprint if row else drafts[twin].fingerprint
        if fingerprint != draft.fingerprint and not key_only:
            other = stored(row) if row else drafts[twin].value
            detail = "the key was used by another request"
            raise Refused("idempotency-mismatch", detail, index, other, draft.value)
        if row:
            known[index] = Known(row.id, row.due_ms)
        elif twin != index:
            known[index] = twin
    return known


def woven(
    placed: Sequence[MessageId | Known], known: dict[int, Known | int], count: int
) -> list[MessageId | Known]:
    """The answers of new and known drafts in request order."""
    fresh = iter(placed)
    answers: list[MessageId | Known] = []
    for index in range(count):
        answer = known.get(index)
        if answer is None:
            answers.append(next(fresh))
        elif isinstance(answer, int):
            answers.append(answers[answer])
        else:
            answers.append(answer)
    return answers
