"""The fields that sessions, groups and endpoints share."""

from server.http.values.shapes import PlaceStatus

from ..conftest import START, Running, with_settings

SHARED = {*PlaceStatus.__annotations__} - {"left_at"}


pytestmark = with_settings(webhook={"allow_private": True})


async def places(server: Running) -> list[dict[str, object]]:
    """One of each kind, from its list."""
    kinds = ("sessions", "groups", "endpoints")
    pages = [(await server.call("GET", f"/v1/{kind}")).body[kind] for kind in kinds]
    return [page[0] for page in pages]


async def test_all_show_the_same_fields(server: Running) -> None:
    away, _ = await server.connect("one", "a", "$share/one/a")
    await server.call("PUT", "/v1/endpoints/one", {"url": "http://127.0.0.1:9/"}, status=201)
    shown = await places(server)
    for place in shown:
        assert set(place) > SHARED
        assert (place["name"], place["in_flight"], place["delivered"]) == ("one", 0, 0)
    session, _, endpoint = shown
    assert (session["client_id"], session["expiry_s"]) == (session["name"], session["expiry"])
    assert session["read_position"] == session["position"]
    assert [type(endpoint[name]) for name in ("rate", "expiry")] == [float, str]
    assert ["left_at" in place for place in shown[:2]] == [False, False]
    server.app.core.clients.leave(away, is_clean=False)
    await server.call("POST", "/v1/endpoints/one:pause")
    assert [place["left_at"] for place in await places(server)] == [START] * 3
