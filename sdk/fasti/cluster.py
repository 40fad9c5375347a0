"""The nodes of a cluster: the leader and the lag of the others.

Every node answers `GET /v1/cluster` for itself. The table of all nodes is the leader's; the others have the
last one that they received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .transport import Transport
from .wire import Json


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One of the nodes, as the leader heard of it `heard_ms` ago (None: never).

    `state` is leader, follower or resync. `applied`: the log record up to which its disk is complete; `lag`:
    number of records that it is behind, None if unknown.
    """

    node: str
    state: str
    epoch: int
    applied: int
    lag: int | None
    heard_ms: int | None
    is_alive: bool
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(
            node=str(said["node"]),
            state=str(said.get("state", "")),
            epoch=int(said.get("epoch") or 0),
            applied=int(said.get("applied") or 0),
            lag=said.get("lag"),
            heard_ms=said.get("heard_ms"),
            is_alive=bool(said.get("is_alive", False)),
            raw=said,
        )


@dataclass(frozen=True, slots=True)
class ClusterState:
    """`GET /v1/cluster`: the state of the node that answered, and what it knows about the others.

    `leader`: the leader's name, None if unknown. `why`: what is wrong with the node, empty if nothing.
    `wants_retime`: the node has another tzdata than the one used for due times, and recomputes them when it
    takes the lead.
    """

    name: str
    node: str
    state: str
    epoch: int
    applied: int
    leader: str | None
    takeovers: int
    why: str
    wants_retime: bool
    nodes: tuple[ClusterNode, ...]
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        leader = said.get("leader") or {}
        return cls(
            name=str(said.get("name", "")),
            node=str(said.get("node", "")),
            state=str(said.get("state", "")),
            epoch=int(said.get("epoch") or 0),
            applied=int(said.get("applied") or 0),
            leader=leader.get("node"),
            takeovers=int(said.get("takeovers") or 0),
            why=str(said.get("why") or ""),
            wants_retime=bool((said.get("tzdata") or {}).get("retime", False)),
            nodes=tuple(ClusterNode.of(each) for each in said.get("nodes") or ()),
            raw=said,
        )


class Cluster:
    """Calls on `/v1/cluster`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def status(self) -> ClusterState:
        """The cluster as the answering node sees it. Raises NotFound if the server is not in a cluster."""
        return ClusterState.of((await self._transport.call("GET", "/v1/cluster")).object())
