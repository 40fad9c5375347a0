"""Groups that stay with nobody there: over starts and kills, for a time, with somebody's rights."""

from pathlib import Path

import pytest

from server.delivery.burials import GROUP_DELETED
from server.delivery.membership import TooManyGroups
from server.delivery.shared import Group
from server.delivery.terms import KEEP_ALL, LASTING, NEVER_S, Keeping
from shards import keys
from shards.commit import Commit
from shards.store import Table
from shards.tables import encode_row, group_of
from shards.verify import verify_tables
from tests.server.engine.test_decisions import spoil
from tests.support.build import OPENED
from tests.support.keyed import Keyed
from tests.support.rig import START_MS, Peer, Rig, asking, config
from timeline.session import Terms

TEXT = "$share/workers/jobs/#"
KEY = keys.GROUP_PREFIX.encode() + TEXT.encode()
DAY_MS = 86_400_000


def joined(rig: Rig, name: str = "w", **asked: str) -> Peer:
    """A worker without a session of its own."""
    return rig.connected(name).subscribed(TEXT, qos=1, user_properties=asking(**asked))


def scheduled(rig: Rig, *payloads: str, after: str = "60s") -> None:
    publisher = rig.connected("publisher")
    for payload in payloads:
        assert publisher.publish1("jobs/x", payload, user_properties=(("deliver-in", after),)).reason == 0
    publisher.disconnect()


def found(rig: Rig) -> Group | None:
    return rig.core.groups.get(TEXT)


def expire(rig: Rig) -> int:
    """What housekeeping does."""
    groups = rig.core.groups
    return rig.core.clients.end_expired([group for group in groups if groups.is_over(group)])


def changed_row(rig: Rig, row: bytes) -> None:
    rig.decide(lambda commit: commit.row(Table.SESSIONS, KEY, row))


def test_those_of_a_name_are_found_by_it(rig: Rig) -> None:
    texts = [f"$share/{name}" for name in ("a/x", "a/y/#", "ab/x")]
    rig.make(*texts)
    groups = rig.core.groups
    assert [group.text for group in groups.of_name("a")] == texts[:2]
    rig.decide(lambda commit: rig.core.groups.disband(commit, groups.of_name("a")[0]))
    rig.restart()
    groups = rig.core.groups
    assert [group.text for group in groups.of_name("a")] == texts[1:2]
    assert [group.text for group in groups.of_name("ab")] == texts[2:]
    assert groups.of_name("x") == []


@pytest.mark.parametrize("how", ["stays", "restart", "crash"])
def test_what_falls_due_while_all_workers_are_away_is_the_next_ones(rig: Rig, how: str) -> None:
    workers = [joined(rig, f"w{n}") for n in range(3)]
    scheduled(rig, "1", "2", "3", "4")
    for worker in workers:
        worker.drop()
    rig.start_again(how)
    rig.pass_ms(120_000)
    assert [s.session.client_id for s in rig.core.sessions] == []
    worker = joined(rig, "new")
    assert sorted(worker.take_all()) == ["1", "2", "3", "4"]
    scheduled(rig, "5")
    rig.pass_ms(120_000)
    assert worker.take_all() == ["5"]


def test_a_group_is_durable_when_its_suback_comes(rig: Rig) -> None:
    joined(rig)
    rig.crash()
    group = found(rig)
    assert group is not None
    assert not group.members
    assert group.presence.left_ms == START_MS
    scheduled(rig, "1", after="0s")
    assert joined(rig).take_all() == ["1"]


def test_suback_waits_for_the_store(rig: Rig) -> None:
    worker = rig.connected("w")
    rig.is_held = True
    worker.subscribe(TEXT, pump=False)
    rig.pump()
    assert worker.inbox == []
    rig.is_held = False
    rig.pump()
    assert len(worker.inbox) == 1


def test_terms_and_what_else_was_said_are_kept(rig: Rig) -> None:
    kept = {"keep": "all", "result_ttl": "2h"}
    joined(rig, ack_timeout="30s", max_attempts="3", backoff="1s,5s", expiry="2h", rate="5", **kept).drop()
    rig.crash()
    group = found(rig)
    assert group is not None
    assert group.terms == Terms(30_000, 3, (1_000, 5_000))
    assert group.keeping == Keeping(7_200, 5.0, keep_ms=KEEP_ALL, result_ttl_ms=7_200_000)
    assert group.session.expiry_s == 7_200


def test_terms_of_a_session_are_kept(rig: Rig) -> None:
    rig.lasting("s").subscribe("a", user_properties=(("max-attempts", "3"),))
    rig.crash()
    known = rig.session("s")
    assert known.session.subscriptions["a"].terms == Terms(max_attempts=3)


def test_what_was_changed_from_outside_is_not_what_a_member_once_said(rig: Rig) -> None:
    rig.lasting("s").subscribe(TEXT, user_properties=(("max-attempts", "3"),))
    rig.make(TEXT, terms=Terms(max_attempts=9))
    rig.crash()
    group = found(rig)
    assert group is not None
    assert (group.terms.max_attempts, len(group.members)) == (9, 1)


@pytest.mark.parametrize("goes", ["unsubscribes", "is ended"])
def test_it_ends_with_its_rows_when_the_last_holder_gives_it_up(rig: Rig, goes: str) -> None:
    first, last = joined(rig, "a"), joined(rig, "b")
    assert first.unsubscribe(TEXT) == (0,)
    group = found(rig)
    assert group is not None
    if goes == "unsubscribes":
        assert last.unsubscribe(TEXT) == (0,)
    else:
        rig.core.groups.end(group, GROUP_DELETED)
        rig.decide(lambda commit: None)
    assert found(rig) is None
    assert len(rig.core.router) == 0
    for table in (Table.SESSIONS, Table.CURSORS):
        assert rig.store.get(table, KEY) is None
    rig.crash()
    assert found(rig) is None


def test_it_is_gone_with_its_rows_when_its_time_has_come(rig: Rig) -> None:
    worker = joined(rig, expiry="60s")
    rig.pass_ms(120_000)
    assert expire(rig) == 0, "somebody is there"
    worker.drop()
    rig.pass_ms(50_000)
    joined(rig).drop()
    rig.pass_ms(50_000)
    assert expire(rig) == 0, "somebody was there"
    rig.pass_ms(12_000)
    assert expire(rig) == 1
    rig.decide(lambda commit: None)
    assert found(rig) is None
    assert rig.store.get(Table.SESSIONS, KEY) is None
    assert rig.store.get(Table.CURSORS, KEY) is None


def test_its_time_counts_running_time_over_a_start(rig: Rig) -> None:
    joined(rig, expiry="60s").drop()
    rig.pass_ms(30_000)
    rig.restart()
    rig.clock.now_ms += 30 * DAY_MS
    rig.crash()
    group = found(rig)
    assert group is not None
    assert expire(rig) == 0
    rig.pass_ms(32_000)
    assert expire(rig) == 1


def test_it_stays_as_long_as_a_session_that_holds_it(rig: Rig) -> None:
    rig.lasting("s", expiry=120).subscribed(TEXT, user_properties=(("expiry", "1s"),)).drop()
    rig.pass_ms(60_000)
    assert expire(rig) == 0
    rig.pass_ms(62_000)
    assert rig.core.clients.end_expired(list(rig.core.sessions)) == 1
    assert expire(rig) == 1


@pytest.mark.parametrize("persistent", [False, True])
def test_with_no_expiry_it_is_as_persistent_as_its_members(rig: Rig, persistent: bool) -> None:
    worker = rig.lasting("w") if persistent else rig.connected("w")
    worker.subscribe(TEXT, user_properties=(("expiry", "0"),))
    worker.drop()
    assert (found(rig) is not None) == persistent
    rig.crash()
    assert (found(rig) is not None) == persistent
    if persistent:
        rig.connected("w", clean=True)
        assert found(rig) is None


def test_a_group_of_a_plain_subscribe_lives_as_a_session_does() -> None:
    rig = Rig(config(expiry_max_ms=3_600_000))
    worker = joined(rig)
    group = found(rig)
    assert group is not None
    assert (group.session.expiry_s, group.keeping.is_lasting) == (3_600, False)
    worker.unsubscribe(TEXT)
    assert found(rig) is None


@pytest.mark.parametrize("how", ["said", "made"])
def test_a_group_that_stays_ends_only_when_it_is_deleted(rig: Rig, how: str) -> None:
    if how == "made":
        rig.make(TEXT, keeping=LASTING)
    worker = joined(rig, expiry="never") if how == "said" else joined(rig)
    worker.unsubscribe(TEXT)
    worker.drop()
    scheduled(rig, "1", after="0s")
    group = found(rig)
    assert group is not None
    assert group.session.expiry_s == NEVER_S
    rig.pass_ms(5_000)
    assert rig.core.clients.end_expired([*rig.core.sessions, *rig.core.groups]) == 0
    rig.crash()
    group = found(rig)
    assert group is not None
    assert group.keeping == LASTING
    rig.decide(lambda commit: rig.core.groups.disband(commit, group))
    assert found(rig) is None


def test_a_group_that_stays_keeps_what_its_last_member_gave_back(rig: Rig) -> None:
    worker = joined(rig, expiry="never")
    scheduled(rig, "1", "2", after="0s")
    worker.inbox.clear()
    worker.unsubscribe(TEXT)
    worker.drop()
    other = joined(rig, "other")
    rig.pass_ms(10_000)
    assert sorted(other.take_all()) == ["1", "2"]


def test_a_group_of_an_older_program_stays_and_has_a_row_from_then_on(rig: Rig) -> None:
    rig.lasting("s").subscribe(TEXT)
    rig.decide(lambda commit: commit.row(Table.SESSIONS, KEY, None))
    rig.core.cursors._is_last = True  # what is dirty goes with the next batch, as at a stop
    rig.crash()
    group = found(rig)
    assert group is not None
    assert [member.session.client_id for member in group.members] == ["s"]
    rig.core.cursors.recover()
    rig.decide(lambda commit: None)
    assert rig.store.get(Table.SESSIONS, KEY) is not None


def test_a_row_that_cannot_be_read_is_passed_over_and_verify_says_so(rig: Rig) -> None:
    joined(rig)
    assert verify_tables(rig.store) == []
    row = rig.store.get(Table.SESSIONS, KEY) or b""
    changed_row(rig, row.replace(b"jobs", b"jo\xc4s"))
    assert [damage.bad for damage in verify_tables(rig.store)] == [[KEY]]
    rig.crash()
    assert found(rig) is None
    assert rig.core.sessions.unreadable == 1


def test_a_row_says_who_was_its_last_member(tmp_path: Path) -> None:
    rig = Keyed(tmp_path)
    rig.add("app")
    rig.come("app", "w1").subscribed(TEXT).drop()
    group = found(rig)
    assert group is not None
    assert (group.owner, group.client, group.owners) == ("app", "w1", frozenset(("app",)))
    rig.core.cursors.recover()
    rig.decide(lambda commit: None)
    row = group_of(rig.store.get(Table.SESSIONS, KEY) or b"")
    assert (row.owner, row.client) == ("app", "w1")
    assert encode_row(row) == rig.store.get(Table.SESSIONS, KEY)


def test_no_more_groups_than_limits_say() -> None:
    rig = Rig(config(groups=2))
    peer = rig.connected("c")
    assert peer.subscribe("$share/a/t", "$share/b/t") == (2, 2)
    assert peer.subscribe("$share/c/t", "t") == (0x97, 2)
    assert peer.subscribe("$share/a/t") == (2,), "it is there"
    assert rig.core.groups.refused == 1

    def open_batch(commit: Commit) -> None:
        with pytest.raises(TooManyGroups):
            rig.core.groups.make(commit, "$share/c/t")

    rig.decide(open_batch)
    peer.unsubscribe("$share/a/t")
    assert peer.subscribe("$share/c/t") == (2,)


def test_no_more_bytes_of_their_filters_than_limits_say() -> None:
    rig = Rig(config(subscription_bytes=100))
    assert rig.connected("a").subscribe("$share/g/" + "t" * 60) == (2,)
    assert rig.connected("b").subscribe("$share/h/" + "t" * 60) == (0x97,)


def test_it_may_what_its_last_member_might_also_after_a_start(tmp_path: Path) -> None:
    rig = Keyed(tmp_path)
    rig.add("app", subscribe=["jobs/%c/#"])
    worker = rig.come("app", "w1")
    assert worker.subscribe("$share/workers/jobs/w1/#") == (2,)
    worker.drop()
    rig.core.cursors.recover()
    rig.decide(lambda commit: None)
    for _ in range(2):
        (group,) = rig.core.groups
        assert group.is_restricted
        assert group.rights is not None
        assert group.rights.may_subscribe("jobs/w1/#")
        assert not group.rights.may_subscribe("jobs/w2/#")
        rig.crash()


def test_a_group_of_a_key_that_is_revoked_is_kept_for_the_next_of_its_name(tmp_path: Path) -> None:
    rig = Keyed(tmp_path)
    rig.add("app")
    rig.come("app", "w1").subscribed(TEXT).drop()
    rig.revoke("app")
    rig.add("else", deliver=["else/#"])
    rig.come("else").subscribe(TEXT)
    rig.come("ops").publish1("jobs/x", "1")
    rig.pass_ms(1_000)
    rig.add("app")
    worker = rig.come("app", "w1").subscribed(TEXT)
    assert worker.payloads() == ["1"]


def test_a_group_that_is_not_to_stay_any_more_is_not_there_after_a_kill(rig: Rig) -> None:
    joined(rig)
    joined(rig, "other", expiry="0s")
    rig.crash()
    assert found(rig) is None
    joined(rig)
    rig.make(TEXT, keeping=Keeping(expiry_s=0))
    rig.crash()
    assert found(rig) is None


@pytest.mark.parametrize("cursor", [b"\xff\xff", None])
def test_a_group_whose_place_cannot_be_read_goes_on_from_now(rig: Rig, cursor: bytes | None) -> None:
    """As a session does: nothing that it has done comes again."""
    worker = joined(rig)
    scheduled(rig, "1", "2", after="0s")
    assert worker.take_all() == ["1", "2"]
    worker.disconnect()
    rig.pass_ms(1_000)
    rig.decide(lambda commit: commit.row(Table.CURSORS, KEY, cursor))
    rig.crash()
    worker = joined(rig)
    scheduled(rig, "3", after="0s")
    assert worker.take_all() == ["3"]


@OPENED
def test_how_long_a_group_stays_is_not_counted_anew_with_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100,000 of them that would be minutes."""
    rig = Rig()
    counted = 0
    follow = Group._follow

    def noted(group: Group) -> None:
        nonlocal counted
        counted += 1
        follow(group)

    monkeypatch.setattr(Group, "_follow", noted)
    said = (("expiry", "2h"),)
    peers = [rig.lasting(f"p{n}", expiry=200_000 if n else 300_000) for n in range(50)]
    for peer in peers:
        assert peer.subscribe(TEXT, qos=1, user_properties=said) == (1,)
    group = found(rig)
    assert group is not None
    assert (counted, group.session.expiry_s) == (2, 300_000)
    for peer, expiry_s in zip(peers[:-1], [200_000] * 49, strict=True):
        assert peer.unsubscribe(TEXT) == (0,)
        assert group.session.expiry_s == expiry_s
    assert counted == 3


@pytest.mark.parametrize("what", ["lost", "stored", "given up"])
def test_what_is_said_of_a_group_and_not_written_counts_as_it_is_stored(what: str) -> None:
    """Its terms, and that it is paused: the caller was told that nothing was written."""
    rig = Rig()
    core, text = rig.core, "$share/g/t"
    before, after = Keeping(NEVER_S, rate=5.0, order=True, on_dead="hold"), Keeping(60, fair=True)
    rig.decide(lambda commit: core.groups.make(commit, text, Terms(30_000), before))
    group = rig.group(text)

    def act(commit: Commit) -> None:
        core.groups.make(commit, text, Terms(60_000, 3), after)
        core.groups.pause(commit, group, is_paused=True)

    rig.decide(act, pump=False)
    if what == "given up":
        rig.decide(spoil, pump=False)
        rig.compose()
    else:
        rig.compose()
        rig.lose(9 * (what == "stored"))
    for _ in range(2):
        assert (group.terms, group.is_paused) == (
            (Terms(60_000, 3), True) if what == "stored" else (Terms(30_000), False)
        )
        assert group.keeping == (after if what == "stored" else before)
        rig.kill()
        found = rig.group(text)
        group = found
