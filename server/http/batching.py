"""Answers to a batch, for the route and for the front, which reads small ones.

Nearly every answer is a new id, so one join encodes the ids of a batch.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from shards.dedupe import Refused
from shards.draft import Known
from shards.errors import Corrupt
from shards.record import decode
from shards.state import PENDING
from timeline.position import id_text

from .answers import refusal
from .posting import Placed
from .problems import Problem, problem_of
from .timeline import Timeline
from .values.bodies import FieldError

log = logging.getLogger(__name__)

Result = Placed | Refused | FieldError | Problem
_NEW = b'{"id":"%032x"}'
_REPLAYED = b'{"id":"%032x","replayed":true,"state":"%s"}'


def _problem(result: Refused | FieldError | Problem) -> Problem:
    if isinstance(result, Refused):
        return refusal(result)
    return result if isinstance(result, Problem) else problem_of(result)


def accepted(placed: Sequence[Placed]) -> bytes:
    """`{"accepted": n, "ids": [...]}`, by one join."""
    ids = [(p.id if isinstance(p, Known) else p).to_bytes(16, "big").hex() for p in placed]
    listed = '","'.join(ids)
    return b'{"accepted":%d,"ids":[%s]}' % (len(ids), f'"{listed}"'.encode() if ids else b"")


def fresh(placed: Sequence[Placed]) -> int:
    """Number of new messages; the others already existed under their keys."""
    return len({p for p in placed if isinstance(p, int)})


def result_texts(results: Sequence[Result], timeline: Timeline) -> Iterable[bytes]:
    """Results of each item, with the state of the message that already had its key.

    The second item with a key is treated like one of a later request.
    """
    if set(map(type, results)) == {int} and len(set(cast("Sequence[int]", results))) == len(results):
        return map(_NEW.__mod__, results)
    return _result_texts_in_turn(results, timeline)


def _result_texts_in_turn(results: Sequence[Result], timeline: Timeline) -> Iterator[bytes]:
    seen: set[int] = set()
    for result in results:
        if isinstance(result, int):
            yield _REPLAYED % (result, PENDING.encode()) if result in seen else _NEW % result
            seen.add(result)
        elif isinstance(result, Known):
            yield _known(result, timeline)
        else:
            yield _refused(_problem(result))


def _known(known: Known, timeline: Timeline) -> bytes:
    try:
        found = timeline.reader.find(known.id)
        state = PENDING if found is None else timeline.state_of(found, decode(found.value))[0]
    except Corrupt as error:
        log.error("idempotency key: %s", error)
        return _refused(Problem("unreadable", f"{id_text(known.id)} cannot be read"))
    return _REPLAYED % (known.id, state.encode())


def _refused(problem: Problem) -> bytes:
    return b'{"problem":' + problem.to_bytes() + b"}"
