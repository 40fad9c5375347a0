"""The nodes of a cluster: the leader and the lag of the others.

Every node answers `GET /v1/cluster` for itself. The table of all nodes is the leader's; the others have the
last one that they received.
"""

from __future__ import annotations

from .answers import ClusterState
from .transport import Transport


class Cluster:
    """Calls on `/v1/cluster`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def status(self) -> ClusterState:
        """The cluster as the answering node sees it. Raises NotFound if the server is not in a cluster."""
        return ClusterState.of((await self._transport.call("GET", "/v1/cluster")).object())
