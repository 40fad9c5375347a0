"""Lists by name, page after page, while rows appear and vanish: what stays comes once.

Lists of messages: test_listing.py. Bulk calls: test_control.py. Dead letters, retries and jobs: theirs.
"""

from urllib.parse import quote

import pytest

from ..conftest import Running

BODIES: dict[str, dict[str, object]] = {
    "groups": {"filter": "jobs/#"},
    "endpoints": {"url": "https://hooks.example/x"},
    "schedules": {"topic": "t", "payload": "x", "every": "1h"},
}
NAMED = {"groups": "name", "sessions": "client_id", "endpoints": "name", "schedules": "name"}


async def make(server: Running, what: str, name: str) -> None:
    if what == "sessions":
        await server.connect(name, "a/#")
    else:
        await server.call("PUT", f"/v1/{what}/{name}", BODIES[what], status=201)


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize("gone", ["b", "c", "d"])
async def test_pages_by_name(server: Running, what: str, gone: str) -> None:
    """The last row of the first page goes, or one beside it. One comes before the cursor, one behind it."""
    for name in "gabcdef":
        await make(server, what, name)
    first = (await server.call("GET", f"/v1/{what}?limit=3")).body
    assert [one[NAMED[what]] for one in first[what]] == ["a", "b", "c"]
    await server.call("DELETE", f"/v1/{what}/{gone}", status=204)
    for name in ("bb", "ee"):
        await make(server, what, name)
    seen, cursor = [], first["next"]
    while cursor is not None:
        page = (await server.call("GET", f"/v1/{what}?limit=2&cursor={quote(cursor)}")).body
        seen += [one[NAMED[what]] for one in page[what]]
        cursor = page["next"]
    assert seen == ["d", "e", "ee", "f", "g"][gone == "d" :]
