"""What a group and a session may be called: the SDK and the server say the same, the SDK before it sends."""

from collections.abc import Callable

import pytest

import fasti
from fasti.names import check_group
from fasti.subscribe import SubscribeRequest
from timeline.filters import FilterError, share_text
from timeline.filters import check_filter as servers_check

NAMES = [
    *("workers", "a b", "$share", "é", "", "a/b", "/", "a+", "+", "#", "a#b", "a\0b", "\0", "\ud800"),
    "x" * 65_536,
]


def is_taken(check: Callable[[str], object]) -> Callable[[str], bool]:
    def taken(name: str) -> bool:
        try:
            check(name)
        except (fasti.BadArgument, FilterError):
            return False
        return True

    return taken


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:12])
def test_a_group_is_named_by_the_servers_rules(name: str) -> None:
    by_server = is_taken(lambda name: share_text(name, "a"))(name)
    assert is_taken(lambda name: check_group("group", name))(name) == by_server
    assert is_taken(lambda name: SubscribeRequest("a", group=name))(name) == by_server


@pytest.mark.parametrize(
    "topic_filter",
    [
        *("a", "/", "a/", "+", "#", "+/+", "a/+/b", "a/#", "/#", "$SYS/#", "a b", "é"),
        *("a/#/b", "#/a", "a#", "a/b#", "a+", "a/+b/c", "a+/b", "##", "++", "+#", "a\0b"),
    ],
)
def test_a_filter_is_taken_by_the_servers_rules(topic_filter: str) -> None:
    by_server = is_taken(servers_check)(topic_filter)
    assert is_taken(SubscribeRequest)(topic_filter) == by_server
    assert is_taken(lambda text: SubscribeRequest(f"$share/g/{text}"))(topic_filter) == by_server


def test_a_filter_that_is_none_is_said_so() -> None:
    with pytest.raises(fasti.BadArgument, match=r"topic_filter has '#' before its end: 'a/#/b'"):
        SubscribeRequest("a/#/b")
    with pytest.raises(
        fasti.BadArgument, match=r"topic_filter has a wildcard .* no level of its own: 'a/b\+'"
    ):
        SubscribeRequest("a/b+")


async def test_nothing_is_sent_for_a_name_that_is_none() -> None:
    async with fasti.Client("http://127.0.0.1:9") as c:
        for name in ("", "a/b", "+", "a\0b"):
            with pytest.raises(fasti.BadArgument, match="group"):
                c.subscribe("a", group=name)
            with pytest.raises(fasti.BadArgument, match="group"):
                c.pull(name, "a")
            with pytest.raises(fasti.BadArgument, match="name"):
                await c.groups.put(name, "a")
        for name in ("", "a\0b", "x" * 65_536):
            with pytest.raises(fasti.BadArgument, match="session"):
                c.subscribe("a", session=name)


def test_the_blocking_client_says_so_too() -> None:
    with fasti.sync.Client("http://127.0.0.1:9") as c:
        for asked in (
            lambda: c.subscribe("a", group="a/b"),
            lambda: c.subscribe("a", session=""),
            lambda: c.pull("a/b", "a"),
            lambda: c.groups.get("a/b"),
        ):
            with pytest.raises(fasti.BadArgument, match=r"must not (contain|be empty)"):
                asked()
