"""What is withheld, over HTTP: shown with why, listed, counted, cancelled and moved."""

from collections.abc import Callable

import pytest

from tests.server.http.conftest import Keyed

CAUSES = {
    "revoked": "key 'shop' is revoked",
    "absent": "key 'shop' does not exist",
    "rule": "key 'shop' may not publish to 'o/1'",
}
WITHHELD = "/v1/messages?state=withheld&count=true"


def lose(keyed: Keyed, cause: str) -> Callable[[], None]:
    """The shop loses its right to send to `o/#`; returns what gives it back."""
    file = keyed.file
    if cause == "rule":
        file.change("shop", '"o/#"', '"x"')
        undo: Callable[[], None] = lambda: file.change("shop", '"x"', '"o/#"')  # noqa: E731
    else:
        lines = file.remove("shop")
        undo = lambda: file.put_back("shop", lines)  # noqa: E731
        if cause == "revoked":
            file.put_back("shop", lines + "revoked = 2026-11-22T00:00:00Z\n")
    review(keyed)
    return undo


def review(keyed: Keyed) -> None:
    keyed.take()
    keyed.server.app.core.review()


async def withhold(
    keyed: Keyed, cause: str = "revoked", number: int = 3
) -> tuple[list[str], Callable[[], None]]:
    """So many messages of the shop that nobody has got, as they fell due without its right."""
    keyed.add("shop", "schedule", publish=["o/#"])
    ids = [await keyed.schedule("shop", f"o/{n}", deliver_in=5 + n) for n in range(1, number + 1)]
    regain = lose(keyed, cause)
    await keyed.server.pass_time(20_000)
    return ids, regain


@pytest.mark.parametrize("cause", CAUSES)
async def test_it_is_shown_with_why_and_goes_out_when_the_right_is_back(keyed: Keyed, cause: str) -> None:
    _, link = await keyed.server.connect("audit", "o/#")
    (name, *others), regain = await withhold(keyed, cause)
    told = await keyed.body("ops", "GET", f"/v1/messages/{name}")
    assert (told["state"], told["withheld_by"]) == ("withheld", CAUSES[cause])
    assert "dispatched_at" not in told
    page = await keyed.body("ops", "GET", WITHHELD)
    assert [(one["id"], one["state"]) for one in page["messages"]] == [
        (one, "withheld") for one in (name, *others)
    ]
    assert page["count"] == 3
    assert page["messages"][0]["withheld_by"] == CAUSES[cause]
    assert (await keyed.body("ops", "GET", "/v1/messages?state=dispatched&topic=o/%23"))["messages"] == []
    metrics = await keyed.body("ops", "GET", "/metrics")
    assert "\nfasti_withheld_messages 3.0\n" in metrics.decode()
    assert link.sent == []
    regain()
    review(keyed)
    await keyed.server.app.quiet()
    assert [message.id_text(0) for message in link.sent] == [name, *others]
    told = await keyed.body("ops", "GET", f"/v1/messages/{name}")
    assert told["state"] == "dispatched"
    assert "withheld_by" not in told
    assert (await keyed.body("ops", "GET", WITHHELD))["count"] == 0


async def test_pages_and_filters(keyed: Keyed) -> None:
    ids, _ = await withhold(keyed)
    first = await keyed.body("ops", "GET", f"{WITHHELD}&limit=2")
    rest = await keyed.body("ops", "GET", f"{WITHHELD}&limit=2&cursor={first['next']}")
    assert [one["id"] for one in first["messages"] + rest["messages"]] == ids
    assert rest["next"] is None
    chosen = await keyed.body("ops", "GET", f"{WITHHELD}&topic=o/2")
    assert ([one["id"] for one in chosen["messages"]], chosen["count"]) == (ids[1:2], 1)
    assert (await keyed.body("ops", "GET", f"{WITHHELD}&due_to=0"))["messages"] == []
    assert [
        one["state"] for one in (await keyed.body("ops", "GET", "/v1/messages?state=all"))["messages"]
    ] == ["withheld"] * 3


async def test_a_group_has_a_delivery_that_is_withheld(keyed: Keyed) -> None:
    await keyed.body("ops", "PUT", "/v1/groups/g", {"filter": "o/#"}, status=201)
    (name, *_), _ = await withhold(keyed, number=1)
    told = await keyed.body("ops", "GET", f"/v1/messages/{name}")
    assert [(one["group"], one["state"], one["withheld_by"]) for one in told["deliveries"]] == [
        ("g", "withheld", CAUSES["revoked"])
    ]
    leased = await keyed.body("ops", "POST", "/v1/groups/g/messages:lease", {"max": 10})
    assert leased["messages"] == []


async def test_a_retry_that_is_withheld_says_why(keyed: Keyed) -> None:
    """Its worker has returned it, and then the right went."""
    keyed.add("shop", "schedule", publish=["o/#"])
    await keyed.body("ops", "PUT", "/v1/groups/g", {"filter": "o/#"}, status=201)
    await keyed.schedule("shop", "o/1", deliver_in=1)
    await keyed.server.pass_time(2_000)
    lease = await keyed.body("ops", "POST", "/v1/groups/g/messages:lease", {"max": 1})
    back = {"lease_ids": [lease["messages"][0]["lease_id"]], "delay": "10s"}
    await keyed.body("ops", "POST", "/v1/groups/g/messages:nack", back)
    (told,) = (await keyed.body("ops", "GET", "/v1/retries"))["retries"]
    assert (told["state"], told.get("withheld_by")) == ("dispatched", None)
    lose(keyed, "revoked")
    await keyed.server.pass_time(11_000)
    await keyed.body("ops", "POST", "/v1/groups/g/messages:lease", {"max": 1})
    (told,) = (await keyed.body("ops", "GET", "/v1/retries"))["retries"]
    assert (told["state"], told["withheld_by"]) == ("withheld", CAUSES["revoked"])


async def test_who_may_not_see_it_does_not(keyed: Keyed) -> None:
    await withhold(keyed)
    keyed.add("other", "read", subscribe=["x"])
    page = await keyed.body("other", "GET", WITHHELD)
    assert (page["messages"], page["count"]) == ([], 0)


async def test_a_cancel_wins_and_so_does_a_move(keyed: Keyed) -> None:
    ids, regain = await withhold(keyed)
    path = f"/v1/messages/{ids[0]}"
    await keyed.call("ops", "DELETE", path, status=204)
    assert (await keyed.body("ops", "GET", path))["state"] == "cancelled"
    await keyed.call("ops", "DELETE", path, status=204)
    moved = await keyed.body("ops", "PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": 60})
    assert moved["state"] == "pending"
    assert (await keyed.body("ops", "GET", WITHHELD))["count"] == 1
    await keyed.server.pass_time(61_000)
    assert (await keyed.body("ops", "GET", WITHHELD))["count"] == 2, (
        "it may not be sent at its new time either"
    )
    regain()
    review(keyed)
    await keyed.server.app.quiet()
    states = [(await keyed.body("ops", "GET", f"/v1/messages/{one}"))["state"] for one in ids]
    assert states == ["cancelled", "dispatched", "dispatched"]


async def test_a_bulk_call_takes_them_by_their_state(keyed: Keyed) -> None:
    await withhold(keyed)
    keyed.add("live", "schedule", publish=["o/#"])
    ahead = await keyed.schedule("live", "o/1")
    body = {"filter": {"topic": "o/#", "state": "withheld"}, "dry_run": True}
    answer = await keyed.body("ops", "POST", "/v1/messages:cancel", body)
    assert (answer["matched"], answer["changed"]) == (3, 0)
    body = {"filter": {"topic": "o/1", "state": "withheld"}, "shift": "PT1H"}
    answer = await keyed.body("ops", "POST", "/v1/messages:reschedule", body)
    assert (answer["matched"], answer["changed"]) == (1, 1)
    body = {"filter": {"topic": "o/#", "state": "withheld"}}
    answer = await keyed.body("ops", "POST", "/v1/messages:cancel", body)
    assert (answer["matched"], answer["changed"]) == (2, 2)
    assert (await keyed.body("ops", "GET", WITHHELD))["count"] == 0
    assert (await keyed.body("ops", "GET", f"/v1/messages/{ahead}"))["state"] == "pending"
    await keyed.call("ops", "POST", "/v1/messages:cancel", {"filter": {"state": "withheld"}}, status=422)
    wrong = {"filter": {"topic": "o/#", "state": "gone"}}
    answer = await keyed.body("ops", "POST", "/v1/messages:cancel", wrong, status=422)
    assert answer["errors"][0]["field"] == "filter.state"


async def test_what_has_its_key_is_changed_by_it(keyed: Keyed) -> None:
    keyed.add("shop", "schedule", publish=["o/#"])
    body = {"topic": "o/1", "payload": "x", "deliver_in": 5, "key": "k"}
    name = (await keyed.body("shop", "POST", "/v1/messages", body, status=201))["id"]
    keyed.file.change("shop", '"o/#"', '"p"')
    review(keyed)
    await keyed.server.pass_time(10_000)
    assert (await keyed.body("ops", "GET", f"/v1/messages/{name}"))["state"] == "withheld"
    keyed.file.change("shop", '"p"', '"o/#", "p"')
    keyed.take()  # the server has not looked at it yet
    body = {"topic": "p", "payload": "y", "deliver_in": 60, "version": [1, 0]}
    put = await keyed.body("shop", "PUT", "/v1/messages/by-key/k", body)
    assert (put["id"], put["state"], put["changed"]) == (name, "pending", True)
