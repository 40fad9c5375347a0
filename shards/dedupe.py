"""Idempotency keys: which drafts of a request were accepted before.

A key is remembered with its message (table `dedupe`) until that message's slice is dropped, or it is lost. A
draft whose key is taken by the same request gets the first answer again; by another request, the whole
request is refused before any row is placed. Two drafts of one request with the same key are one message.

A request may set other terms: its key alone says that it is the same one (`key_only`), and a key whose
message was cancelled is free for it (`replace`). Not one whose message is pending or has been dispatched: a
request to replace that is sent again finds what it has placed itself, and places nothing twice.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

from timeline.position import MessageId

from .draft import Draft, Known
from .errors import ShardsError
from .steps import STEP, Bits, at_once
from .tables import DedupeRow


def key_of(user: str, key: bytes) -> bytes:
    """What the idempotency key of a user is stored under: 16 bytes."""
    return blake2b(key, digest_size=16, person=user.encode()[:16]).digest()


class Refused(ShardsError):
    """A draft cannot be taken; `index` says which of its request, `why` is a stable word."""

    def __init__(self, why: str, detail: str, index: int = 0) -> None:
        super().__init__(detail)
        self.why = why
        self.index = index


def known_keys(
    drafts: Sequence[Draft], taken: Callable[[bytes], DedupeRow | None], *, key_only: bool = False
) -> dict[int, Known | int]:
    """By index, each draft whose key is taken: the first answer, or the index of its twin here.

    Raises Refused for the first whose key was used by another request, if that is not all the same
    (`key_only`).
    """
    return at_once(keys_in_steps(drafts, taken, key_only=key_only))


def keys_in_steps(
    drafts: Sequence[Draft],
    taken: Callable[[bytes], DedupeRow | None],
    *,
    key_only: bool = False,
    step: int = STEP,
) -> Bits[dict[int, Known | int]]:
    """The same in steps."""
    known: dict[int, Known | int] = {}
    here: dict[bytes, int] = {}
    for index, draft in enumerate(drafts):
        if index and not index % step:
            yield
        if not draft.key:
            continue
        twin = here.setdefault(draft.key, index)
        try:
            row = taken(draft.key) if twin == index else None
        except Refused as error:
            error.index = index
            raise
        fingerprint = row.fingerprint if row else drafts[twin].fingerprint
        if fingerprint != draft.fingerprint and not key_only:
            raise Refused("idempotency-mismatch", "the key was used by another request", index)
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
