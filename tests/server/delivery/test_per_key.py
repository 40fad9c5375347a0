"""Groups with limits of each key, and groups whose keys take turns: without order, over all members."""

import random
from itertools import pairwise

import pytest

from server.codec import wire
from server.http.backlog import lag_of
from server.http.timeline import Timeline
from shards import delivery_rows
from shards.order import rebuild_index
from shards.store import Table
from tests.model.order import check
from tests.server.delivery.test_order import TEXT, came, nack, send
from tests.support.rig import Peer, Rig, asking, config

PUBACK = 4


def worker(rig: Rig, name: str = "w", window: int = 100, **asked: str) -> Peer:
    said = asking(**{"backoff": "1s", "expiry": "never", **asked})
    return rig.connected(name, receive_maximum=window).subscribed(TEXT, qos=1, user_properties=said)


def ack(peer: Peer, out: dict[str, int], payload: str) -> list[str]:
    """What comes when a message is acked."""
    peer.ack(PUBACK, out.pop(payload))
    more = came(peer)
    out |= more
    return list(more)


def test_of_a_key_so_many_are_out_and_others_go_on(rig: Rig) -> None:
    peer = worker(rig, per_key_concurrency="2")
    send(rig, "a1", "a2", "a3", "b1", "a4", "-1")
    out = came(peer)
    assert list(out) == ["a1", "a2", "b1", "-1"]
    assert ack(peer, out, "a2") == ["a3"]
    assert ack(peer, out, "b1") == []
    assert ack(peer, out, "a1") == ["a4"]


def test_a_failed_message_lets_its_key_go_on_and_its_retry_waits_for_it(rig: Rig) -> None:
    peer = worker(rig, per_key_concurrency="1")
    send(rig, "a1", "a2", "a3", "a4", "b1")
    out = came(peer)
    nack(peer, out.pop("a1"), "2s")
    out |= came(peer)
    assert sorted(out) == ["a2", "b1"]
    rig.pass_ms(3_000)
    assert not came(peer), "the retry is due, and a2 is out"
    assert ack(peer, out, "a2") == ["a1"], "what waits in line and what is behind take turns"
    assert ack(peer, out, "a1") == ["a3"]
    assert ack(peer, out, "a3") == ["a4"]
    rig.pass_ms(500)
    send(rig, "b2")
    assert not [*delivery_rows.waiting(rig.store)]


@pytest.mark.parametrize("terms", [{"per_key_concurrency": "1"}, {"fair": "true"}, {"order": "true"}])
def test_what_is_in_flight_at_a_replay_and_fails_comes_again(rig: Rig, terms: dict[str, str]) -> None:
    """Its retry is due before the group has read so far, and the reader will pass it over."""
    peer = worker(rig, window=1, **terms)
    send(rig, "a1", "b1", "c1")
    for _ in range(2):
        (packet_id,) = came(peer).values()
        peer.ack(PUBACK, packet_id)
    (last,) = came(peer).values()
    rig.rewind(TEXT)
    nack(peer, last, "0s")
    seen = []
    for _ in range(4):
        for payload, packet_id in came(peer).items():
            seen.append(payload)
            peer.ack(PUBACK, packet_id)
        rig.pass_ms(500)
    assert sorted(seen) == ["a1", "b1", "c1"]


def test_many_due_retries_stand_in_line_and_all_come(rig: Rig) -> None:
    peer = worker(rig, per_key_concurrency="1", backoff="1s")
    names = [f"a{n}" for n in range(20)]
    send(rig, *names)
    for _ in names:
        (packet_id,) = came(peer).values()
        nack(peer, packet_id, "5s")
    send(rig, "a-hold")
    (held,) = came(peer).values()
    rig.pass_ms(6_000)
    assert not came(peer)
    peer.ack(PUBACK, held)
    seen = []
    while out := came(peer):
        (payload,) = out
        seen.append(payload)
        peer.ack(PUBACK, out[payload])
    assert seen == names
    assert not rig.order(TEXT).room.is_standing


def test_a_retry_in_line_that_is_dropped_does_not_come(rig: Rig) -> None:
    peer = worker(rig, per_key_concurrency="1")
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "2s")
    out = came(peer)
    rig.pass_ms(3_000)
    (name,) = [row.name for row in delivery_rows.waiting(rig.store)]
    rig.decide(lambda commit: rig.core.kept_retries.drop(commit, name, lambda *_: True))
    assert ack(peer, out, "a2") == []


def test_of_a_key_so_many_are_given_in_a_time(rig: Rig) -> None:
    peer = worker(rig, per_key_rate="2/s")
    send(rig, "a1", "a2", "a3", "b1", "-1", "-2")
    out = came(peer)
    assert list(out) == ["a1", "b1", "-1", "-2"]
    for payload in list(out):
        assert ack(peer, out, payload) == []
    rig.pass_ms(450)
    assert not came(peer)
    rig.pass_ms(100)
    assert list(came(peer)) == ["a2"]
    rig.pass_ms(500)
    assert list(came(peer)) == ["a3"]
    rig.pass_ms(2_000)
    send(rig, "a4")
    assert list(came(peer)) == ["a4"]
    order = rig.order(TEXT)
    rig.pass_ms(1_000)
    order.tokens.advance(rig.clock.mono() * 1_000)
    assert order.is_over
    assert order.next_ms is None


@pytest.mark.parametrize("window", [1, 2])
def test_a_dumped_key_and_messages_without_a_key_take_turns_with_others(rig: Rig, window: int) -> None:
    peer = worker(rig, window=window, fair="true")
    send(rig, *[f"a{n}" for n in range(40)], *[f"-{n}" for n in range(40)], "b1", "c1", "b2")
    out, seen = came(peer), []
    while out:
        payload = next(iter(out))
        seen.append(payload)
        ack(peer, out, payload)
    assert sorted(seen) == sorted({*seen})
    assert len(seen) == 83
    assert max(seen.index(payload) for payload in ("b1", "c1", "b2")) <= 8
    keyless = [n for n, payload in enumerate(seen) if payload[0] == "-"]
    assert max(later - one for one, later in pairwise(keyless)) <= 5, "with a in turns"


@pytest.mark.long
def test_of_many_tenants_one_that_dumps_hardly_delays_the_others() -> None:
    """What SQS's fair queues are measured by, in small; `make bench` has it whole."""
    rig, rnd = Rig(), random.Random(7)
    peer = worker(rig, window=8, fair="true")
    publisher = rig.connected("publisher")

    def publish(key: str, payload: str) -> None:
        users = (("deliver-in", "0s"), ("ordering-key", key))
        assert publisher.publish1("jobs/x", payload, user_properties=users).reason == 0

    for n in range(600):
        publish("a", f"a{n}")
    out, given, waited = came(peer), 8, [0]
    for n in range(400):
        if rnd.random() < 0.7:
            publish(f"t{rnd.randrange(99)}", f"t{given}.{n}")
        more = ack(peer, out, rnd.choice(list(out)))
        given += len(more)
        waited += [given - int(payload[1:].split(".")[0]) for payload in more if payload[0] == "t"]
    assert len(waited) > 250
    assert sorted(waited)[-len(waited) // 100] <= 20, "of 600 that were there before"


@pytest.mark.parametrize("order", ["true", "false"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_messages_without_a_key_come_once_when_keys_take_no_turns_any_more(
    rig: Rig, order: str, *, is_killed: bool
) -> None:
    peer, names = worker(rig, window=3, fair="true"), [f"-{n}" for n in range(9)]
    send(rig, *names)
    out = came(peer)
    nack(peer, out.pop(names[0]), "1s")
    rig.pass_ms(2_000)
    out |= came(peer)
    if is_killed:
        rig.disown()
        rig.kill()
    peer = worker(rig, window=3, fair="false", order=order)
    out = came(peer) if is_killed else {**out, **came(peer)}
    seen = list(out)
    for _ in range(20):
        for payload in list(out):
            seen += ack(peer, out, payload)
        rig.pass_ms(200)
    assert sorted(seen) == names


@pytest.mark.parametrize(
    "terms",
    [{"order": "true", "on_dead": "hold"}, {"per_key_concurrency": "1"}, {"per_key_rate": "1/m"}],
    ids=["order", "concurrency", "rate"],
)
def test_of_messages_without_a_key_only_turns_count(rig: Rig, terms: dict[str, str]) -> None:
    peer = worker(rig, window=100, fair="true", **terms)
    send(rig, "-1", "-2", "-3", "a1", "a2")
    out = came(peer)
    assert sorted(out) == ["-1", "-2", "-3", "a1"]
    nack(peer, out["-1"], "never")
    nack(peer, out["-2"], "2s")
    order = rig.order(TEXT)
    check(order)
    assert not order.held
    send(rig, "-4")
    assert list(came(peer)) == ["-4"]
    rig.pass_ms(3_000)
    assert list(came(peer)) == ["-2"]


def test_with_room_a_fair_group_gives_as_any_other(rig: Rig) -> None:
    peer = worker(rig, fair="true")
    names = [f"{'ab-'[n % 3]}{n}" for n in range(6)]
    send(rig, *names)
    assert list(came(peer)) == names
    order = rig.order(TEXT)
    assert not order.room.rows, "nothing was passed over"


def test_what_is_behind_is_undone_and_comes_when_the_rule_ends(rig: Rig) -> None:
    peer = worker(rig, per_key_concurrency="1")
    send(rig, "a1", "a2", "a3")
    came(peer)
    group = rig.group(TEXT)
    timeline = Timeline(rig.core.opened, rig.core.writer.journal, rig.core.owners.why_not, node=0)
    assert lag_of(group, timeline, rig.core.router, 100).lag_messages == 2
    rig.disown()
    rig.kill()
    peer = worker(rig)
    group = rig.group(TEXT)
    assert group.keeping.concurrency == 1, "as stored"
    out = came(peer)
    assert list(out) == ["a1"]
    peer.disconnect()
    peer = worker(rig, per_key_concurrency="0")
    assert list(came(peer)) == ["a1", "a2", "a3"]
    send(rig, "a4", "a5")
    assert list(came(peer)) == ["a4", "a5"]


def test_what_waits_for_its_key_is_found_again_by_a_repair(rig: Rig) -> None:
    peer = worker(rig, window=2, fair="true")
    names = [f"{'-a'[n % 2]}{n}" for n in range(40)]
    send(rig, *names)
    out = came(peer)
    assert list(out) == ["-0", "a1"]
    assert ack(peer, out, "-0") == ["-2"], "the reader goes on when there is room"
    rig.core.cursors.persist(rig.group(TEXT), lambda _: None)
    rig.pump()
    batch = rig.store.batch()
    batch.delete_range(Table.ORDER, b"\2", b"\3")
    rig.store.write(batch)
    assert rebuild_index(rig.store, rig.core.reader) > 30
    rig.disown()
    rig.kill()
    peer, seen = worker(rig, window=2, fair="true"), list[str]()
    out = came(peer)
    while out:
        seen.append(next(iter(out)))
        ack(peer, out, seen[-1])
    assert sorted(seen) == sorted(names[1:])


def test_what_is_given_again_counts_for_the_rate(rig: Rig) -> None:
    peer = worker(rig, per_key_rate="1/s")
    send(rig, "a1", "a2")
    assert list(came(peer)) == ["a1"]
    rig.pass_ms(900)
    peer.disconnect()
    peer = worker(rig)
    assert list(came(peer)) == ["a1"]
    rig.pass_ms(500)
    assert not came(peer)
    rig.pass_ms(700)
    assert list(came(peer)) == ["a2"]


def test_a_due_retry_comes_when_its_key_has_tokens_again(rig: Rig) -> None:
    peer = worker(rig, per_key_rate="30/m")
    send(rig, "a1")
    nack(peer, came(peer)["a1"], "100ms")
    rig.pass_ms(1_000)
    assert not came(peer), "the key's next token comes 2 s after the first one"
    rig.pass_ms(1_000)
    rig.pass_ms(200)
    assert list(came(peer)) == ["a1"]


def test_a_message_that_fails_again_and_again_takes_turns_with_its_key(rig: Rig) -> None:
    peer = worker(rig, per_key_rate="30/m", max_attempts="0")
    send(rig, "a1", "a2", "a3")
    given: list[str] = []
    for _ in range(100):
        for payload, packet_id in came(peer).items():
            given.append(payload)
            nack(peer, packet_id, "100ms") if payload == "a1" else peer.ack(PUBACK, packet_id)
        rig.pass_ms(100)
    assert given[:5] == ["a1", "a1", "a2", "a1", "a3"]


TERMS: list[dict[str, str]] = [
    {"order": "true"},
    {"per_key_concurrency": "1"},
    {"per_key_concurrency": "2"},
    {"per_key_rate": "5/s"},
    {},
]
NO_TERMS = {"order": "false", "per_key_concurrency": "0", "per_key_rate": "0", "fair": "false"}


def change_at_random(rig: Rig, rnd: random.Random) -> None:
    """A replay, or a key that somebody holds or lets go."""
    group, core, key = rig.group(TEXT), rig.core, rnd.choice("abcdef").encode()
    act = rnd.choice((core.holds.hold, core.holds.let_go))
    if rnd.random() < 0.5:
        rig.rewind(TEXT, pump=False)
    else:
        rig.decide(lambda commit: act(commit, group, key), pump=False)


def let_all_go(rig: Rig) -> None:
    group, holds = rig.group(TEXT), rig.core.holds
    held = list(group.session.order.held)
    rig.decide(lambda commit: [holds.let_go(commit, group, key) for key in held], pump=False)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_and_nothing_stalls_while_terms_change(seed: int) -> None:
    """At the bound of keys too, with replays, holds and kills."""
    rnd, rig = random.Random(seed), Rig(config(ordering_keys=(6, 100_000)[seed % 2]))
    terms, sent, done = dict[str, str](), list[str](), set[str]()
    peer, out = worker(rig, window=4), dict[str, int]()
    for _ in range(150):
        op = rnd.random()
        if op < 0.25:
            fresh = [f"{rnd.choice('abcdef--')}{len(sent) + n}" for n in range(rnd.choice((1, 6)))]
            sent += fresh
            send(rig, *fresh)
        elif op < 0.5 and out:
            payload = rnd.choice(list(out))
            peer.ack(PUBACK, out.pop(payload))
            done.add(payload)
        elif op < 0.65 and out:
            nack(peer, out.pop(rnd.choice(list(out))), rnd.choice(("0s", "1s")))
        elif op < 0.8:
            terms = {**NO_TERMS, **rnd.choice(TERMS), "fair": rnd.choice(("true", "false"))}
            worker(rig, name="other", window=1, **terms).disconnect()
        elif op < 0.88:
            change_at_random(rig, rnd)
        elif op < 0.9:
            rig.kill()
            peer, out = worker(rig, window=4, **terms), {}
        rig.pass_ms(rnd.choice((10, 1_500)))
        out |= came(peer)
    let_all_go(rig)
    for _ in range(1_000):
        for payload in list(out):
            peer.ack(PUBACK, out.pop(payload))
            done.add(payload)
        rig.pass_ms(400)
        out = came(peer)
        if done >= set(sent) and not out:
            break
    assert done == set(sent)
    assert not out, "nothing comes for ever"


def test_keys_go_on_when_they_take_no_turns_any_more(rig: Rig) -> None:
    """It was the turn of the keys, of a fair group's longer turns."""
    peer = worker(rig, window=1, fair="true")
    names = [*[f"a{n}" for n in range(4)], *[f"{key}0" for key in "bcdefghijklmnopqr"]]
    send(rig, *names)
    out, seen = came(peer), list[str]()
    order = rig.order(TEXT)
    while order.turns.is_reader:
        seen += out
        for payload in list(out):
            ack(peer, out, payload)
    worker(rig, name="other", window=1, fair="false").disconnect()
    for _ in names:
        seen += out
        for payload in list(out):
            ack(peer, out, payload)
    assert sorted(seen) == sorted(names)


def by_rate(rig: Rig) -> Peer:
    asked = asking(per_key_rate="2/s", backoff="1s", expiry="never")
    return rig.connected("w").subscribed(TEXT, qos=1, user_properties=asked)


def test_a_key_with_a_rate_goes_on_after_its_flights_were_sent_again(rig: Rig) -> None:
    peer = by_rate(rig)
    send(rig, "a1", "a2", "a3", "a4", "a5")
    for _ in range(2):
        rig.pass_ms(600)
    assert list(came(peer)) == ["a1", "a2", "a3"]
    rig.disown()
    rig.kill()
    peer = by_rate(rig)
    again = came(peer)
    assert list(again) == ["a1", "a2", "a3"]
    for packet_id in again.values():
        peer.ack(wire.PUBACK, packet_id)
    rig.pass_ms(20_000)
    assert list(came(peer)) == ["a4", "a5"]
