"""Faults that stand between the program and the server: the oracle has to name each.

A plant sees calls before the server does. It may forward them, change them or their answer, or make its own
calls. It strikes once, at the first occasion; until then it gives None, and the call goes on as it is.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tests.support.http import Answer
from tests.support.ledger.words import DEAD, FLIGHT, UNDONE

from .world import EVERY, START_MS, Forward, World, iso, ms_of, name_of

Plant = Callable[[World, str, Any, Forward], Awaitable[Answer | None]]


class Planter:
    """The plants of one run. One strikes a call at most, and only once if it is not of LASTING."""

    def __init__(self, *names: str) -> None:
        self.left = list(names)
        self.lasting = [name for name in names if name in LASTING]

    async def __call__(self, world: World, method: str, path: str, body: Any, forward: Forward) -> Answer:
        answers: list[Answer] = []

        async def forward_once() -> Answer:
            if not answers:
                answers.append(await forward())
            return answers[0]

        for name in [*self.left, *self.lasting]:
            occasion, plant, _ = PLANTS[name]
            if occasion in f"{method} {path}":
                answer = await plant(world, path, body, forward_once)
                if answer is not None:
                    self.left = [one for one in self.left if one != name]
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
    messages = w.ledger.messages.by_id.values()
    return await _leased_too(
        forward, [m.id for m in messages if m.due > w.ledger.clock.high and not m.is_cancelled]
    )


async def twice_at_a_time(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    stakes = [stake for place, stake in w.ledger.known.all_stakes() if place.name == path.split("/")[3]]
    return await _leased_too(forward, [stake.message.id for stake in stakes if stake.may == {FLIGHT}])


async def of_another(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A worker is given what its group is not for, as of the group that had its name before."""
    mine = {key for p in w.ledger.places if p.name == path.split("/")[3] for key in p.stakes}
    others = (m for m in w.ledger.messages.by_id.values() if m.id not in mine and not m.is_cancelled)
    return await _leased_too(forward, [m.id for m in others if m.due <= w.ledger.clock.low])


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
    message = w.ledger.messages.by_id[path.rpartition("/")[2]]
    is_ahead = message.due > w.ledger.clock.high and not message.is_cancelled
    return Answer(204, None, {}) if is_ahead else None


async def given_away(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A second message is made though the first one is undone."""
    if not w.ledger.is_taken(body["key"]):
        return None
    keyless = {name: value for name, value in body.items() if not name.startswith("key")}
    return await w.http.call("POST", "/v1/messages", keyless, status=201)


async def kept(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A key stays taken though nothing of its message is undone."""
    message = w.ledger.messages.solo.get(body["key"])
    if message is None or not w.ledger.is_free(body["key"]):
        return None
    return Answer(200, {"id": message.id}, {})


async def place_gone(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A group is deleted behind everybody's back."""
    if not any(place.name == "put" and place.stakes for place in w.ledger.known.open()):
        return None
    await w.http.call("DELETE", "/v1/groups/put" + ("?undone=drop" if w.says_undone else ""), status=204)
    return await forward()


# -- what the server shows


async def _deliveries(w: World, path: str, forward: Forward) -> tuple[Answer, list[dict[str, Any]]]:
    """Of a message that is looked at: those that are surely undone."""
    got, stakes = await forward(), w.ledger.known.stakes_of(path.rpartition("/")[2])
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


def first(of: str, times: int) -> Plant:
    """A list has its first entry so many times."""

    async def plant(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
        got = await forward()
        listed = got.body[of]
        return with_(got, **{of: [*times * listed[:1], *listed[1:]]}) if listed else None

    return plant


letter_gone, letter_twice = first("messages", 0), first("messages", 2)
retry_gone, retry_twice = first("retries", 0), first("retries", 2)


async def miscounted(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got = await forward()
    for one in got.body["groups"]:
        counts = one.get("undone", one)
        counts["lag" if "undone" in one else "lag_messages"] += 50
    return got


# -- retries, places and letters are steered


async def not_tried(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """`:try` answers, and does nothing."""
    if body.get("deliver_in", 0) < 20:
        return None
    got = await w.http.call("POST", path, {**body, "dry_run": True})
    return with_(got, changed=got.body["matched"]) if got.body["matched"] else None


async def dropped_too(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """`:try` drops it."""
    got = await w.http.call("POST", "/v1/retries:drop", {"filter": body["filter"]})
    return got if got.body["changed"] else None


async def dead_and_waits(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A dead letter is listed as a retry too."""
    got = await forward()
    letters = await w.http.call("GET", "/v1/dead?limit=1000")
    open_names = {place.name for place in w.ledger.known.open()}
    for one in letters.body["messages"]:
        if name_of(one) in open_names:
            return with_(got, retries=[*got.body["retries"], {**one, "retry_at": one["died_at"]}])
    return None


async def all_is_less(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """`#` leaves one out."""
    got = await forward()
    return with_(got, matched=got.body["matched"] - 1) if got.body["matched"] else None


async def counted_more(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got = await forward()
    for one in got.body["messages"]:
        one["attempt"] += 3
    return got if got.body["messages"] else None


async def nothing_left(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A cancel's 409 names nobody."""
    got, stakes = await forward(), w.ledger.known.stakes_of(path.rpartition("/")[2])
    sure = [s for p, s in stakes if p.is_open and p.kind != "session" and s.may <= UNDONE]
    is_left = got.status == 409 and any(stake.message.expires is None for stake in sure)
    return with_(got, deliveries=[]) if is_left else None


def _undone(w: World, path: str) -> bool:
    name = path.partition("?")[0].rpartition("/")[2]
    stakes = [s for p in w.ledger.known.open() if p.name == name for s in p.stakes.values()]
    return any(stake.may <= UNDONE and stake.message.expires is None for stake in stakes)


async def ended_anyway(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A DELETE that says nothing drops what is undone."""
    is_asked = "undone=" not in path and _undone(w, path)
    return await w.http.call("DELETE", f"{path}?undone=drop") if is_asked else None


async def not_buried(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    if "undone=dead" not in path or not _undone(w, path):
        return None
    return await w.http.call("DELETE", path.replace("dead", "drop"))


async def undone_untrue(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got = await forward()
    if got.status != 409 or got.slug != "undone":
        return None
    return with_(got, undone={**got.body["undone"], "lag": got.body["undone"]["lag"] + 50})


async def requeued_nowhere(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """The letter goes, and the other place gets nothing."""
    if "to" not in body:
        return None
    got = await w.http.call("POST", "/v1/dead:drop", {"filter": body["filter"]})
    there = [s for p in w.ledger.known.open() if p.name == body["to"] for s in p.stakes.values()]
    name = body["filter"]["id"]
    return (
        got
        if got.body["changed"] and any(s.message.id == name and not s.is_reported for s in there)
        else None
    )


async def other_reason(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    got = await forward()
    known = {(p.name, s.message.id) for p, s in w.ledger.known.all_stakes() if s.reason and s.may == {DEAD}}
    for one in got.body["messages"]:
        if (name_of(one), one["id"]) in known:
            one["reason"] = "no reason"
            return got
    return None


# -- tries and leases


async def release_lost(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    return Answer(200, {"released": 1, "gone": []}, {})


async def old_nack(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A nack of an earlier try counts."""
    got = await forward()
    return Answer(200, {"nacked": 1, "dead": 0, "gone": []}, {}) if got.body["gone"] else None


# -- the clock is stepped


async def early_after_a_step(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """What waits because the clock was set back is given all the same."""
    held = (m for m in w.ledger.messages.by_id.values() if m.is_held and w.ledger.messages.is_ahead(m))
    return await _leased_too(forward, [m.id for m in held])


async def lapsed_by_wall(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """The clock was set ahead, so a lease of an hour counts as over: its message is given to another."""
    mine = (place for place in w.ledger.known.open() if place.name == path.split("/")[3])
    stakes = [stake for place in mine for stake in place.stakes.values()]
    over = [s for s in stakes if s.may == {FLIGHT} and s.is_leased and s.wall_until <= w.ledger.clock.low]
    return await _leased_too(forward, [stake.message.id for stake in over])


async def ended_by_wall(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """The clock was set ahead by a week, so a session of which nobody is there ends."""
    for place in w.ledger.known.open():
        is_away = place.kind == "session" and place.name not in w.members
        if is_away and place.expiry and w.ledger.clock.low - w.ledger.clock.walked - START_MS >= place.expiry:
            await w.http.call("DELETE", f"/v1/sessions/{place.name}", status=204)
            return await forward()
    return None


async def fired_again(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """The clock was ahead, and what was sent then is sent once more in its time."""
    got = await forward()
    for one in got.body["messages"]:
        is_again = one["state"] == "dispatched" and one["deliver_at"] > iso(w.ledger.clock.low)
        if is_again and w.ledger.messages.fired.get((one["schedule"], ms_of(one["deliver_at"]))) == one["id"]:
            again = {**one, "id": f"{one['id'][:-4]}dead", "state": "pending"}
            return with_(got, messages=[*got.body["messages"], again])
    return None


async def silent(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A schedule does not say that it is silent."""
    got = await forward()
    for one in got.body["schedules"]:
        if one["silent"] is not None:
            one["silent"] = None
            return got
    return None


async def high_water(w: World, path: str, body: Any, forward: Forward) -> Answer | None:
    """A schedule goes on behind the latest instant that it has ever sent."""
    got = await forward()
    for one in got.body["schedules"]:
        every = EVERY.get(one.get("every") or one.get("cron"))
        last = max((due for name, due in w.ledger.messages.fired if name == one["name"]), default=0)
        passed = {(one["name"], last - every)} if every and one["next"] else set()
        if (
            passed
            and last - every > ms_of(one["next"]["at"])
            and not passed & {*w.ledger.messages.fired, *w.ledger.messages.spared}
        ):
            one["next"] = {**one["next"], "at": iso(last)}
            return got
    return None


PLANTS: dict[str, tuple[str, Plant, set[str]]] = {
    "early": ("messages:lease", early, {"early"}),
    "twice at a time": ("messages:lease", twice_at_a_time, {"given twice at a time"}),
    "another incarnation": ("messages:lease", of_another, {"given to another incarnation"}),
    "done by nobody": ("messages:lease", done_by_nobody, {"done by nobody"}),
    "an ack is lost": ("messages:ack", ack_lost, {"not finished any more", "given again after its ack"}),
    "a nack's delay": ("messages:nack", sooner, {"retry early", "retry at another time"}),
    "untrue 204": ("DELETE /v1/messages/", untrue_204, {"given after a cancel"}),
    "a key is given away": ("POST /v1/messages?key_only", given_away, {"a key is given away"}),
    "a key is kept": ("POST /v1/messages?key_only", kept, {"a key is kept"}),
    "a place is gone": ("clock:advance", place_gone, {"a place is gone"}),
    "shown as done": ("GET /v1/messages/", shown_as_done, {"done by nobody"}),
    "not named": ("GET /v1/messages/", not_named, {"lost"}),
    "a letter is gone": ("GET /v1/dead?", letter_gone, {"a dead letter is gone", "two answers"}),
    "a letter twice": ("GET /v1/dead?", letter_twice, {"two dead letters"}),
    "miscounted": ("GET /v1/groups?", miscounted, {"miscounted"}),
    "a try is lost": ("retries:try", not_tried, {"retry at another time"}),
    "a try drops": ("retries:try", dropped_too, {"dropped by nobody", "lost"}),
    "a retry is gone": ("GET /v1/retries?limit=1000", retry_gone, {"two answers", "retries miscounted"}),
    "a retry twice": ("GET /v1/retries?limit=1000", retry_twice, {"two retries", "retries miscounted"}),
    "dead and waits": ("GET /v1/retries?limit=1000", dead_and_waits, {"a retry and a dead letter"}),
    "# is not all": ("retries:", all_is_less, {"retries miscounted"}),
    "counted more": ("messages:lease", counted_more, {"counted too often"}),
    "nothing left": ("DELETE /v1/messages/", nothing_left, {"409 does not name it"}),
    "ended anyway": ("DELETE /v1/groups/", ended_anyway, {"ended without a word"}),
    "not buried": ("DELETE /v1/", not_buried, {"ended without a word"}),
    "undone is untrue": ("DELETE /v1/", undone_untrue, {"miscounted"}),
    "requeued nowhere": ("dead:requeue", requeued_nowhere, {"lost", "dropped by nobody"}),
    "another reason": ("GET /v1/dead?", other_reason, {"another reason"}),
    "a release is lost": ("messages:release", release_lost, {"leased by nobody"}),
    "early after a step": ("messages:lease", early_after_a_step, {"early"}),
    "leases by wall time": ("messages:lease", lapsed_by_wall, {"given twice at a time"}),
    "sessions by wall time": ("clock:advance", ended_by_wall, {"a place is gone", "lost"}),
    "fired again": ("GET /v1/messages?topic=jobs/sched", fired_again, {"fired twice"}),
    "silent": ("GET /v1/schedules?", silent, {"silent without a word"}),
    "high water": ("GET /v1/schedules?", high_water, {"an instant is left out"}),
    "an old nack": ("messages:nack", old_nack, {"an earlier try counts", "a lease is gone"}),
}
"""Each plant: which calls it may strike, and the kinds of fault of which the oracle has to name one."""
LASTING = {
    "not named",
    "a letter is gone",
    "a letter twice",
    "a try is lost",
    "another reason",
    "a retry is gone",
    "a retry twice",
    "dead and waits",
    "# is not all",
    "a release is lost",
}
"""What is asked once more before it is called a fault is wrong each time."""
Run = tuple[int, tuple[str, ...]]
RUNS: dict[str, list[Run]] = {
    "calm": [
        (11, ("done by nobody", "a nack's delay", "untrue 204", "a letter twice", "another incarnation")),
        (15, ("an ack is lost", "early", "twice at a time", "a letter is gone", "miscounted")),
        (11, ("shown as done", "not named")),
        (11, ("a place is gone",)),
    ],
    "solo": [(11, ("a key is kept",)), (11, ("a key is given away",))],
    "steered": [
        (1, ("a retry twice", "requeued nowhere")),
        (2, ("a retry is gone", "not buried")),
        (5, ("a try is lost", "counted more", "undone is untrue")),
        (6, ("a try drops", "# is not all", "nothing left", "another reason")),
        (1, ("dead and waits",)),
        (1, ("ended anyway",)),
    ],
    "stepped": [
        (28, ("leases by wall time", "fired again", "early after a step")),
        (6, ("sessions by wall time", "high water")),
        (5, ("silent",)),
    ],
    "ruled": [(11, ("a release is lost",)), (11, ("an old nack",))],
}
"""Which are planted in one run, by the kind of work: those that are not taken for one another. Each run has a
seed in which they find their occasion; the first of its kind finds it soonest."""
