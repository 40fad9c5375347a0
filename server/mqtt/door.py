"""Who comes in by a listener: the user name of a CONNECT is a key's name, its password the key.

    a key, no name or `key`    whose it is, as a key of the server's names itself: for who has only that
    a certificate              whose name it has, if `mqtt.tls_identity_as_username` says so; else 0x87
    nothing shown              who has no key, where `mqtt.allow_anonymous` lets such in; else 0x87
    name and key               whose they are; 0x86 if they do not belong together
    after too many wrong ones  0x9F, at 3.1.1 "server unavailable"; 0x89 while too many are being checked
                               (of one name from one network; a valid key passes)

Where the server has no keys at all names and passwords are not looked at.
"""

from collections.abc import Callable

from ..auth.keyring import Keyring, Refusal, Why
from ..auth.keys_file import name_in
from ..auth.rights import Principal, Rights
from ..codec.packets import Connect
from ..codec.reasons import Reason
from ..net.revoked import CertificateId
from ..net.tls import Certificates

Entered = Callable[[Rights | None, Reason | None], None]
"""Called with what the client may (None: everything) or with why it is not let in."""
ANY_NAME = "key"
"""A user name that stands for the one in the key."""
_REASONS = {
    Why.WRONG: Reason.BAD_USER_NAME_OR_PASSWORD,
    Why.HELD: Reason.CONNECTION_RATE_EXCEEDED,
    Why.BUSY: Reason.SERVER_BUSY,
}


class Door:
    """The door of one listener."""

    def __init__(
        self, keyring: Keyring | None, certificates: Certificates | None, *, lets_anybody: bool
    ) -> None:
        """`keyring`, `certificates`: None: there are none. `lets_anybody`: also who shows no key."""
        self._certificates = certificates
        self._keyring = None if keyring is None or keyring.is_open else keyring
        self._lets_anybody = lets_anybody

    def has_revoked(self, shown: CertificateId | None) -> bool:
        """Whether the certificate that a client has shown counts no more. None: it has shown none."""
        certificates = self._certificates
        return shown is not None and certificates is not None and certificates.has_revoked(shown)

    def ask(self, packet: Connect, client_id: str, address: str, identity: str, entered: Entered) -> None:
        """Find out who it is; `entered` is called at once, or on the loop when it is known.

        `client_id`: the server's, if the client has none. `address`: where it comes from, without the port.
        `identity`: who it is by its certificate, whatever CONNECT says; empty: that is not asked.
        """
        keyring = self._keyring
        if keyring is not None and identity:
            principal = keyring.named(identity)
            if principal is None:
                entered(None, Reason.NOT_AUTHORIZED)
            else:
                entered(Rights(principal, client_id), None)
        elif keyring is not None and (packet.username is not None or packet.password is not None):

            def found(answer: Principal | Refusal) -> None:
                if isinstance(answer, Refusal):
                    entered(None, _REASONS[answer.why])
                else:
                    entered(Rights(answer, client_id), None)

            name, key = packet.username or "", packet.password or b""
            if packet.username is None or name == ANY_NAME:
                name = name_in(key) or name
            keyring.check(name, key, address, found)
        elif not self._lets_anybody:
            entered(None, Reason.NOT_AUTHORIZED)
        else:
            entered(None if keyring is None else Rights(keyring.anonymous, client_id), None)
