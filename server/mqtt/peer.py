"""The peer of a connection, as the log names it."""

from collections.abc import Mapping

from ..observe.logs import by, clean


class Peer:
    """`str` gives the address and, in parentheses, the client id, which is empty until CONNECT has come."""

    __slots__ = ("address", "client_id", "host", "identity")

    def __init__(self, address: str, identity: str) -> None:
        self.address = address
        self.identity = identity
        """The common name of its certificate, empty without one."""
        self.client_id = ""
        self.host = address.rpartition(":")[0]

    @property
    def cause(self) -> Mapping[str, object]:
        """For `extra`: the address without the port, which is another with each connection."""
        return by(self.host, client=self.client_id)

    def why(self, reason: int, why: object = None) -> Mapping[str, object]:
        """`cause`, with a reason code and what was wrong."""
        return by(self.host, client=self.client_id, reason=f"0x{reason:02x}", why=why)

    def __str__(self) -> str:
        return f"{self.address} ({clean(self.client_id)})"
