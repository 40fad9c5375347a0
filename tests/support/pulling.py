"""Who pulls, on a rig: calls for messages, and what they were answered with."""

from collections.abc import Sequence
from typing import Any

from server.auth.rights import Rights
from server.pull.call import Call, LeaseAnswer, Leased, LeaseRequest
from server.pull.lease_id import LeaseId
from server.pull.pull import Settled
from shards.commit import Commit
from shards.draft import Draft
from tests.support.rig import Rig
from timeline.session import Flight

TEXT = "$share/g/t"


class Asked:
    """One call. `answer`: what it was answered with, None: nothing yet."""

    def __init__(self, puller: "Puller") -> None:
        self._puller = puller
        self.answer: LeaseAnswer | None = None
        self.is_gone = False
        self.call: Call

    def answered(self, call: Call, answer: LeaseAnswer) -> None:
        assert self.answer is None, "answered twice"
        self.answer = answer

    @property
    def leased(self) -> Sequence[Leased]:
        """What it was answered with, which counts as held no more."""
        assert self.answer is not None, "it waits"
        assert not isinstance(self.answer, Exception), self.answer
        self._puller.pull.release(self.call)
        return self.answer

    @property
    def payloads(self) -> list[str]:
        return [one.given.message.record.payload.decode() for one in self.leased]


class Puller:
    """Calls the rig's pull."""

    def __init__(self, rig: Rig, *texts: str, rights: Rights | None = None) -> None:
        self.rig = rig
        self.texts = texts or (TEXT,)
        self.rights = rights

    @property
    def pull(self) -> Any:
        return self.rig.core.pull

    def ask(
        self, most: int = 10, *, wait_ms: int = 0, lease_ms: int | None = None, pump: bool = True
    ) -> Asked:
        asked = Asked(self)
        request = LeaseRequest(most, wait_ms, lease_ms)
        name = self.texts[0].split("/")[1]
        asked.call = self.pull.lease(
            name, self.texts, self.rights, request, lambda: asked.is_gone, asked.answered
        )
        if pump:
            self.rig.pump()
        return asked

    def lease(self, most: int = 10, **options: Any) -> list[LeaseId]:
        return [lease_of(one) for one in self.ask(most, **options).leased]

    def ack(self, leases: Sequence[LeaseId], *, pump: bool = True) -> list[Settled]:
        """What it came to, once it has."""
        found: list[Settled] = []
        self.pull.ack(leases, found.append)
        if pump:
            self.rig.pump()
        return found

    def extend(self, leases: Sequence[LeaseId], lease_ms: int, *, pump: bool = True) -> list[Settled]:
        found: list[Settled] = []
        self.pull.extend(leases, lease_ms, found.append)
        if pump:
            self.rig.pump()
        return found

    def release(self, leases: Sequence[LeaseId], *, pump: bool = True) -> list[Settled]:
        found: list[Settled] = []
        self.pull.release_leases(leases, found.append)
        if pump:
            self.rig.pump()
        return found

    def nack(
        self, leases: Sequence[LeaseId], delay_ms: int | None = None, reason: str = "no", *, pump: bool = True
    ) -> list[Settled]:
        found: list[Settled] = []
        self.pull.nack(leases, delay_ms, reason, found.append)
        if pump:
            self.rig.pump()
        return found

    def follow(self, lease: LeaseId, draft: Draft, *, pump: bool = True) -> list[Any]:
        """An ack with a message that follows: its id, or None if the lease is gone."""
        core = self.rig.core

        def is_it(flight: Flight) -> bool:
            return flight.origin == (lease.position, lease.shard)

        def decide(commit: Commit) -> object:
            return core.settling.follow(commit, lease.text, lease.number, is_it, lambda: commit.put([draft]))

        return self.rig.decide(decide, pump=pump)


def lease_of(leased: Leased) -> LeaseId:
    """As its `lease_id` says it."""
    given = leased.given
    return LeaseId(given.text, leased.number, given.message.position, given.message.shard)
