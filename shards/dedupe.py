"""Idempotency keys: which drafts of a request were accepted before.

A key is remembered with its message (table `dedupe`) until that message's slice is dropped, or it is lost. A
draft whose key is taken by the same request gets the first answer again; by another request, the whole
request is refused before any row is placed. Two drafts of one request with the same key are one message.

A request may set other terms: its key alone says that it is the same one (`key_only`), and a key whose
message was cancelled is free for it (`replace`). Not one whose message is pending or has been dispatched: a
request to replace that is sent again finds what it has placed itself, and places nothing twice.

A draft may ask for less (`while_undone`): for it a key is taken only while something of the message that has
it is undone. What the request before it asked for does not count, so no row says it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b

from timeline.position import MessageId

from .draft import Draft, Known
from .errors import ShardsError
from .steps import STEP, Bits
from .tables import DedupeRow


def key_of(user: str, key: bytes) -> bytes:
    """What the idempotency key of a user is stored under: 16 bytes."""
    hashing = _hash_of(user).copy()
    hashing.update(key)
    return hashing.digest()


@lru_cache(maxsize=16)
def _hash_of(user: str) -> blake2b:
    """Of nothing yet: to copy it takes half of what making one takes. Nobody updates it."""
    return blake2b(digest_size=16, person=user.encode()[:16])


class Refused(ShardsError):
    """A draft cannot be taken; `index` says which of its request, `why` is a stable word.

    `other`, `wanted`: of a key that another request has used, the stored message of that one, if it can be
    read, and the one that is refused.
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
    *,
    key_only: bool = False,
    step: int = STEP,
) -> Bits[dict[int, Known | int]]:
    """By index, each draft whose key is taken: the first answer, or the index of its twin here.

    `stored`: the message under a key, empty if it cannot be read. A step is `step` drafts, or one of whose
    message all have to be asked who were to get it. Raises Refused for the first whose key was used by
    another request, if that is not all the same (`key_only`).
    """
    known: dict[int, Known | int] = {}
    here: dict[bytes, int] = {}
    for index, draft in enumerate(drafts):
        if index and (draft.while_undone or not index % step):
            yield
        if not draft.key:
            continue
        twin = here.setdefault(draft.key, index)
        is_asked = twin == index or (draft.while_undone and isinstance(known.get(twin), Known))
        try:
            row = taken(draft) if is_asked else None
        except Refused as error:
            error.index = index
            raise
        if is_asked and row is None:
            twin = here[draft.key] = index
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
    """The answers of fresh and known drafts in request order."""
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
