"""Faults that stand between the program and the server: the oracle has to name each.

A plant sees calls before the server does. It may forward them, change them or their answer, or make its own
calls. It strikes once, at the first occasion; until then it gives None, and the call goes on as it is.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tests.support.http import Answer

from .ledger import FLIGHT, UNDONE
from .world import Forward, World, name_of

Plant = Callable[[World, str, Any, Forward], Awaitable[Answer | None]]


class Planter:
    """The plants of one run. One strikes a call at most."""

    def __init__(self, *names: str) -> None:
        self.left = list(names)

    async def __call__(self, world: World, method: str, path: str, body: Any, forward: Forward) -> Answer:
        answers: list[Answer] = []

        async def forward_once() -> Answer:
            if not answers:
                answers.append(await forward())
            return answers[0]

        for name in self.left:
            occasion, plant, _ = PLANTS[name]
            if occasion in f"{method} {path}":
                answer = await plant(world, path, body, forward_once)
                if answer is not None:
                    self.left.remove(name)
                    return answer
        return await forward_once()


def with_(answer: Answer, **members: Any) -> Answer:
    return replace(answer, body={**answer.body, **members})


# -- what a worker is given


async def _leased_too(forward: Forward, ids: list[str]) -> Answer | None:
    got = await forward()
    if not ids or not got.body.get("messages"):
        return None
    return with_(got, messages=[*got.body["messages"], {"id": ids[0], "lease_id": "planted"}])


async def early(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    messages = w.ledger.messages.values()
    return await _leased_too(
        forward, [m.id for m in messages if m.due > w.ledger.high and not m.is_cancelled]
    )


async def twice_at_a_time(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    stakes = [stake for place, stake in w.ledger.all_stakes() if place.name == path.split("/")[3]]
    return await _leased_too(forward, [stake.message.id for stake in stakes if stake.may == {FLIGHT}])


async def of_another(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A worker is given what its group is not for, as of the group that had its name before."""
    mine = {key for p in w.ledger.places if p.name == path.split("/")[3] for key in p.stakes}
    others = (m for m in w.ledger.messages.values() if m.id not in mine and not m.is_cancelled)
    return await _leased_too(forward, [m.id for m in others if m.due <= w.ledger.low])


async def done_by_nobody(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A message that a worker should have been given is acked behind its back."""
    got = await forward()
    if not got.body.get("messages"):
        return None
    *rest, last = got.body["messages"]
    ids = {"lease_ids": [last["lease_id"]]}
    await w.http.call("POST", path.replace(":lease", ":ack"), ids, status=200)
    return with_(got, messages=rest)


# -- what becomes of what a client says


async def ack_lost(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    return Answer(200, {"acked": 1, "gone": []}, {})


async def sooner(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A nack's delay is forgotten."""
    delay = body.get("delay")
    if not isinstance(delay, float) or delay < 600:
        return None
    return await w.http.call("POST", path, {**body, "delay": 0})


async def untrue_204(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    message = w.ledger.messages[path.rpartition("/")[2]]
    is_ahead = message.due > w.ledger.high and not message.is_cancelled
    return Answer(204, None, {}) if is_ahead else None


async def given_away(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A second message is made though the first one is undone."""
    if not w.ledger.is_taken(body["key"]):
        return None
    keyless = {name: value for name, value in body.items() if not name.startswith("key")}
    return await w.http.call("POST", "/v1/messages", keyless, status=201)


async def kept(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A key stays taken though nothing of its message is undone."""
    message = w.ledger.solo.get(body["key"])
    if message is None or not w.ledger.is_free(body["key"]):
        return None
    return Answer(200, {"id": message.id}, {})


async def place_gone(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A group is deleted behind everybody's back."""
    if not any(place.name == "put" and place.stakes for place in w.ledger.open()):
        return None
    await w.http.call("DELETE", "/v1/groups/put" + ("?undone=drop" if w.says_undone else ""), status=204)
    return await forward()


# -- what the server shows


async def _deliveries(w: World, path: str, forward: Forward) -> tuple[Answer, list[dict[str, Any]]]:
    """Of a message that is looked at: those that are surely undone."""
    got, stakes = await forward(), w.ledger.stakes_of(path.rpartition("/")[2])
    names = {place.name for place, stake in stakes if place.is_open and stake.may <= UNDONE}
    names -= {place.name for place, _ in stakes if place.kind == "session"}
    shown = got.body.get("deliveries", [])
    return got, [one for one in shown if name_of(one) in names and one["state"] != "done"]


async def shown_as_done(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got, undone = await _deliveries(w, path, forward)
    for one in undone[:1]:
        one["state"] = "done"
        return got
    return None


async def not_named(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got, undone = await _deliveries(w, path, forward)
    if not undone:
        return None
    return with_(got, deliveries=[one for one in got.body["deliveries"] if one is not undone[0]])


async def letter_gone(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got = await forward()
    return with_(got, messages=got.body["messages"][1:]) if got.body["messages"] else None


async def letter_twice(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got = await forward()
    letters = got.body["messages"]
    return with_(got, messages=[letters[0], *letters]) if letters else None


async def miscounted(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got = await forward()
    for one in got.body["groups"]:
        counts = one.get("undone", one)
        counts["lag" if "undone" in one else "lag_messages"] += 50
    return got


PLANTS: dict[str, tuple[str, Plant, set[str]]] = {
    "early": ("messages:lease", early, {"early"}),
    "twice at a time": ("messages:lease", twice_at_a_time, {"given twice at a time"}),
    "another incarnation": ("messages:lease", of_another, {"given to another incarnation"}),
    "done by nobody": ("messages:lease", done_by_nobody, {"done by nobody"}),
    "an ack is lost": ("messages:ack", ack_lost, {"not finished any more", "given again after its ack"}),
    "a nack's delay": ("messages:nack", sooner, {"retry early"}),
    "untrue 204": ("DELETE /v1/messages/", untrue_204, {"given after a cancel"}),
    "a key is given away": ("POST /v1/messages?key_only", given_away, {"a key is given away"}),
    "a key is kept": ("POST /v1/messages?key_only", kept, {"a key is kept"}),
    "a place is gone": ("clock:advance", place_gone, {"a place is gone"}),
    "shown as done": ("GET /v1/messages/", shown_as_done, {"done by nobody"}),
    "not named": ("GET /v1/messages/", not_named, {"lost"}),
    "a letter is gone": ("GET /v1/dead?", letter_gone, {"a dead letter is gone"}),
    "a letter twice": ("GET /v1/dead?", letter_twice, {"two dead letters"}),
    "miscounted": ("GET /v1/groups?", miscounted, {"miscounted"}),
}
"""Each plant: which calls it may strike, and the kinds of fault of which the oracle has to name one."""
RUNS = (
    ("done by nobody", "a nack's delay", "untrue 204", "a letter twice", "another incarnation"),
    ("an ack is lost", "early", "twice at a time", "a letter is gone", "miscounted"),
    ("shown as done", "not named"),
    ("a key is kept",),
    ("a key is given away",),
    ("a place is gone",),
)
"""Which are planted in one run: those that are not taken for one another."""
