"""Placing drafts in the writer, and the answer for a single message: shared by all ways to post.

Single messages come through the front or the route of `POST /v1/messages`, many through `:batch`. `late:
drop` is decided in the writer and not before: a request that is repeated with its key must get its first
answer even if its time has passed since, or its endpoint was deleted.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from aiohttp import web

from shards.adopt import adopt, adopt_in_steps
from shards.commit import Commit
from shards.dedupe import Refused
from shards.draft import AS_EVER, BatchKey, Draft, Known, Terms
from shards.errors import Corrupt
from shards.record import decode
from shards.state import PENDING, State
from shards.steps import STEP, Bits, Steps, at_once
from shards.upsert import Effect, Upserted
from timeline.position import MessageId, at_of, id_text

from ..settings.times import format_ms
from .requests import flag
from .timeline import Timeline
from .values.bodies import FieldError
from .values.message_body import ParsedMessage
from .values.scalars import FLAG, KEPT, UNDONE, KeyScope, Query
from .values.views import etag

Placed = MessageId | Known
NOT_BARRED: Mapping[int, str] = MappingProxyType({})
TERMS: Query = {"replace": FLAG, "key_only": FLAG, "key_scope": KeyScope}
"""Query parameters about idempotency keys."""
UNDONE_WORTH = 10
"""Cost of a draft, in messages, if the writer must ask all places whether its key's message is undone: so
many that they take 50 ms are decided in several turns of the loop."""


class Given(NamedTuple):
    """Properties of drafts that are given beside them."""

    late: Sequence[int] = ()
    """Indices of drafts whose time has passed, and that must not be delivered late."""
    names: Sequence[MessageId] = ()
    """Ids of the drafts of an import, one each."""
    terms: Terms = AS_EVER
    """Terms of the idempotency keys."""
    barred: Mapping[int, str] = NOT_BARRED
    """Why a draft cannot be delivered to its target, by index."""


USUAL = Given()


def terms_of(request: web.Request) -> Terms:
    """The terms of a request's keys. Raises FieldError."""
    scope = request.query.get("key_scope", KEPT)
    if scope not in (KEPT, UNDONE):
        raise FieldError("key_scope", f"must be {KEPT} or {UNDONE}, not {scope[:40]!r}")
    terms = Terms(flag(request, "key_only"), flag(request, "replace"), scope == UNDONE)
    return AS_EVER if terms == AS_EVER else terms


def keyless(items: Sequence[object], terms: Terms) -> list[int]:
    """Indices of messages without a key although the terms, or their scope, need one."""
    return [
        i
        for i, item in enumerate(items)
        if isinstance(item, (Draft, ParsedMessage))
        and not item.key
        and (terms is not AS_EVER or item.while_undone)
    ]


def worth(drafts: Sequence[Draft], terms: Terms) -> int:
    """Cost of deciding drafts, in messages."""
    if terms.while_undone:
        return UNDONE_WORTH * len(drafts)
    return len(drafts) + (UNDONE_WORTH - 1) * sum([draft.while_undone for draft in drafts])


def place(commit: Commit, drafts: Sequence[Draft], given: Given = USUAL) -> list[Placed]:
    """In the writer: place a few drafts, all or none. Raises Refused."""
    if given.late or given.barred:
        at_once(_check(commit, drafts, given))
    if given.names:
        return adopt(commit, drafts, given.names, given.terms)
    return commit.put(drafts, given.terms)


def _all(commit: Commit, drafts: Sequence[Draft], given: Given) -> Bits[list[Placed]]:
    yield from _check(commit, drafts, given)
    if given.names:
        return (yield from adopt_in_steps(commit, drafts, given.names, given.terms))
    return (yield from commit.put_in_steps(drafts, given.terms))


def _each(commit: Commit, drafts: Sequence[Draft], given: Given) -> Bits[list[Placed | Refused]]:
    """Together if all can be placed, the usual case."""
    try:
        return list((yield from _all(commit, drafts, given)))
    except (Refused, Corrupt):
        pass
    late, names, terms, barred = given
    dropped = frozenset(late)
    answers: list[Placed | Refused] = []
    for index, draft in enumerate(drafts):
        if not index % STEP or draft.while_undone or terms.while_undone:
            yield
        try:
            is_late = (0,) if index in dropped else ()
            why = {0: barred[index]} if index in barred else NOT_BARRED
            answers += place(commit, [draft], Given(is_late, names[index : index + 1], terms, why))
        except Refused as error:
            answers.append(error)
        except Corrupt as fault:  # raised before anything was written
            answers.append(Refused("unreadable", str(fault)))
    return answers


def _check(commit: Commit, drafts: Sequence[Draft], given: Given) -> Bits[None]:
    """Refuse the first draft whose time has passed, or which cannot be delivered to its target, unless it was
    accepted before."""
    for count, (index, field, why) in enumerate(faults(given), 1):
        if _is_fresh(commit, drafts[index], given.terms):
            raise Refused(field, why, index)
        if not count % STEP or drafts[index].while_undone or given.terms.while_undone:
            yield


def faults(given: Given) -> list[tuple[int, str, str]]:
    """Why new messages cannot be placed: index, field, reason."""
    wrong = [(index, "late", "has passed, and the message is not wanted late") for index in given.late]
    return wrong + [(index, "deliver_to", why) for index, why in given.barred.items()]


def _is_fresh(commit: Commit, draft: Draft, terms: Terms) -> bool:
    """Whether it was not accepted before, under its key."""
    return not draft.key or commit.taken_from(draft, terms) is None


def _once(
    commit: Commit,
    decide: Callable[..., Bits[list[Any]]],
    key: BatchKey,
    drafts: Sequence[Draft],
    given: Given,
) -> Bits[list[Any]]:
    """`decide` for a batch with a key: what it has placed before gets its first answer, the rest is decided.
    Raises Refused."""
    before, places = commit.batch_under(key), key.places or range(key.count)
    if before is None:
        placed = yield from decide(commit, drafts, given)
        if len(placed) == key.count and set(map(type, placed)) == {int}:
            commit.note_batch(key, placed, max([draft.due_ms for draft in drafts]))
        else:
            _note(commit, key, [MessageId(0)] * key.count, 0, places, drafts, placed)
        return placed
    ids, answers, rest = before.ids, list[Any](), list[int]()
    for n, place in enumerate(places):
        if n and not n % STEP:
            yield
        if ids[place] and commit.is_kept(ids[place]):
            answers.append(Known(ids[place], drafts[n].due_ms))
        else:
            answers.append(None)
            rest.append(n)
    dropped, some = frozenset(given.late), [drafts[n] for n in rest]
    late = [at for at, n in enumerate(rest) if n in dropped]
    names = [given.names[n] for n in rest] if given.names else ()
    barred = {at: given.barred[n] for at, n in enumerate(rest) if n in given.barred}
    try:
        placed = yield from decide(commit, some, Given(late, names, given.terms, barred))
    except Refused as error:
        error.index = rest[error.index]
        raise
    for n, answer in zip(rest, placed, strict=True):
        answers[n] = answer
    _note(commit, key, ids, at_of(before.position), [places[n] for n in rest], some, placed)
    return answers


def _note(
    commit: Commit,
    key: BatchKey,
    ids: list[MessageId],
    due_ms: int,
    places: Sequence[int],
    drafts: Sequence[Draft],
    placed: Sequence[Placed | Refused],
) -> None:
    """Remember what a batch with a key has placed, if anything, among the `ids` of its items."""
    has_new = False
    for place, draft, answer in zip(places, drafts, placed, strict=True):
        if not isinstance(answer, Refused):
            ids[place] = answer.id if isinstance(answer, Known) else answer
            due_ms, has_new = max(due_ms, draft.due_ms), True
    if has_new:
        commit.note_batch(key, ids, due_ms)


def _in_steps(decide: Callable[..., Bits[list[Any]]]) -> Callable[..., Steps]:
    """Wrap a decision as `Steps` for the writer. `key`: of the batch. Many rows are written in key order."""

    def begun(
        commit: Commit, drafts: Sequence[Draft], given: Given = USUAL, key: BatchKey | None = None
    ) -> Steps:
        if key is None:
            bits = decide(commit, drafts, given)
        else:
            bits = _once(commit, decide, key, drafts, given)
        return Steps(bits if len(drafts) <= STEP else commit.open_batch.in_order(bits))

    return begun


place_all = _in_steps(_all)
"""In the writer: `place` of many, in steps: a list of Placed."""
place_each = _in_steps(_each)
"""In the writer: place each draft that can be, in steps: a list of Placed or Refused."""


def first_answer(
    placed: Placed, due_ms: int, now_ms: int, timeline: Timeline
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a POST with `due_ms`: 201.

    For a known key 200, and the first answer again, with the message's current state as GET shows it.
    """
    if isinstance(placed, Known):
        return _answer_again(placed, now_ms, timeline)
    name = id_text(placed)
    headers = {"Location": f"/v1/messages/{name}", "ETag": etag(placed)}
    return 201, headers, _body(name, due_ms, PENDING, now_ms)


def debounced_answer(upserted: Upserted, now_ms: int) -> tuple[int, dict[str, str], bytes]:
    """The same for a debounced message: 200 if the pending one has changed."""
    name, is_new = id_text(upserted.id), upserted.effect is Effect.MADE
    headers = {"Location": f"/v1/messages/{name}", "ETag": etag(upserted.row)}
    if not is_new:
        headers["Idempotent-Replayed"] = "false"
    return 201 if is_new else 200, headers, _body(name, upserted.due_ms, PENDING, now_ms)


def _answer_again(known: Known, now_ms: int, timeline: Timeline) -> tuple[int, dict[str, str], bytes]:
    name, row = id_text(known.id), known.id
    state: State = PENDING
    found = timeline.reader.find(known.id)
    if found is not None:
        row, (state, _) = found.row_id, timeline.state_of(found, decode(found.value))
    headers = {"Location": f"/v1/messages/{name}", "ETag": etag(row), "Idempotent-Replayed": "true"}
    return 200, headers, _body(name, known.due_ms, state, now_ms)


def _body(name: str, due_ms: int, state: State, now_ms: int) -> bytes:
    return (
        f'{{"id":"{name}","deliver_at":"{format_ms(due_ms)}","state":"{state}",'
        f'"server_time":"{format_ms(now_ms)}"}}'
    ).encode()
