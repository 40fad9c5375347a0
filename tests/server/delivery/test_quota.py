"""The bounds on subscriptions: of one session and of all, in number and in bytes."""

import pytest

from server.delivery.quota import Quota
from tests.support.rig import Rig, config


def _quota(rig: Rig) -> Quota:
    return rig.core.sessions.quota


@pytest.mark.parametrize("level", [4, 5])
def test_bytes_of_one_session(level: int) -> None:
    rig = Rig(config(subscription_bytes_per_session=10))
    refused = 0x97 if level == 5 else 0x80
    peer = rig.connected("s", level)
    assert peer.subscribe("a/b/c", "d/é", "e/f/", "g", "h", qos=1) == (1, 1, refused, 1, refused)
    assert _quota(rig).refused == 2
    # Those that are there may be changed, and one that goes makes room.
    assert peer.subscribe("a/b/c", "g", qos=0) == (0, 0)
    peer.unsubscribe("a/b/c", "a/b/c", "nothing")
    assert peer.subscribe("$share/", "12345", qos=0)[1:] == (0,)
    assert rig.connected("other", level).subscribe("123456789", "x/", qos=0) == (0, refused)


def test_all_sessions_together() -> None:
    rig = Rig(config(subscriptions=3))
    first, second = rig.connected("a"), rig.lasting("b")
    assert first.subscribe("1", "$share/g/2", qos=0) == (0, 0)
    assert second.subscribe("3", "4", "3", qos=0) == (0, 0x97, 0)
    first.drop()
    assert second.subscribe("4", "5", "6", qos=0) == (0, 0, 0x97)
    # Restored ones count, also when there are more than may be.
    for limit in (3, 2):
        rig.crash(settings=config(subscriptions=limit), pump=True)
        assert (_quota(rig).count, _quota(rig).bytes) == (3, 3)
        second = rig.lasting("b")
        assert second.subscribe("3", "7", qos=0) == (0, 0x97)
    rig.connected("b")  # a clean start
    assert (_quota(rig).count, _quota(rig).bytes) == (0, 0)


def test_bytes_of_all_sessions_together() -> None:
    rig = Rig(config(subscription_bytes=20))
    first, second = rig.connected("a"), rig.connected("b")
    assert first.subscribe("$share/g/12345", qos=0) == (0,)
    assert second.subscribe("1234567", "123456", qos=0) == (0x97, 0)
    first.unsubscribe("$share/g/12345")
    assert second.subscribe("1234567", "1234567890", qos=0) == (0, 0x97)
    assert (_quota(rig).count, _quota(rig).bytes) == (2, 13)


def test_a_session_that_is_taken_over_counts_once(rig: Rig) -> None:
    for _ in range(3):
        rig.lasting("a").subscribed("t").subscribe("$share/g/t", user_properties=(("expiry", "0s"),))
        assert _quota(rig).count == 2
    rig.core.clients.drop("a")
    rig.pump()
    assert (_quota(rig).count, _quota(rig).bytes, len(rig.core.router)) == (0, 0, 0)
