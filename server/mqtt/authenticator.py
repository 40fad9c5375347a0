"""Authentication of a CONNECT: the user name is a key's name, the password the key.

    a key, no name or `key`    the name in the key, which generated keys have
    a certificate              the name in it, with `mqtt.tls_identity_as_username`; else 0x87
    no credential              anonymous, if `mqtt.allow_anonymous` allows it; else 0x87
    a name alone               a user of `mqtt.acl_file`, if there is no `mqtt.password_file`, the name is no
                               key's, and anonymous clients are allowed
    name and key               the name; 0x86 if the key is wrong
    after too many wrong keys  0x9F, at 3.1.1 "server unavailable"; 0x89 while too many are being checked
                               (of one name from one network; a valid key passes)

Without a keys file and users, names and passwords are ignored. A certificate that gives a name lets its
client in, whatever `mqtt.allow_anonymous` says.
"""

from collections.abc import Callable

from ..auth.keyring import Keyring, Refusal, Why
from ..auth.keys_file import name_in
from ..auth.rights import Principal, Rights
from ..codec.packets import Connect
from ..codec.reasons import Reason
from ..net.revoked import CertificateId
from ..net.tls import Certificates

Authenticated = Callable[[Rights | None, Reason | None], None]
"""Called with the client's rights (None for all), or with the reason of the refusal."""
ANY_NAME = "key"
"""User name that stands for the name in the key."""
_REASONS = {
    Why.WRONG: Reason.BAD_USER_NAME_OR_PASSWORD,
    Why.HELD: Reason.CONNECTION_RATE_EXCEEDED,
    Why.BUSY: Reason.SERVER_BUSY,
}


class Authenticator:
    """Authenticates the clients of one listener."""

    def __init__(
        self, keyring: Keyring | None, certificates: Certificates | None, *, lets_anybody: bool
    ) -> None:
        """`lets_anybody`: accepts clients without a credential."""
        self._certificates = certificates
        self._keyring = None if keyring is None or keyring.is_open else keyring
        self._lets_anybody = lets_anybody

    def has_revoked(self, certificate: CertificateId | None) -> bool:
        """Whether a client's certificate is revoked; False without one."""
        certificates = self._certificates
        return certificate is not None and certificates is not None and certificates.has_revoked(certificate)

    def authenticate(
        self, packet: Connect, client_id: str, address: str, identity: str, answered: Authenticated
    ) -> None:
        """Authenticate a client; calls `answered` at once, or later on the loop.

        `client_id`: assigned by the server if the client sent none. `address`: the peer's, without the port.
        `identity`: the name in its certificate, used instead of CONNECT's; empty to use CONNECT's.
        """
        keyring, name, key = self._keyring, packet.username, packet.password
        if keyring is None:
            is_welcome = self._lets_anybody or identity
            answered(None, None if is_welcome else Reason.NOT_AUTHORIZED)
            return

        def found(answer: Principal | Refusal | None) -> None:
            if answer is None:
                answered(None, Reason.NOT_AUTHORIZED)
            elif isinstance(answer, Refusal):
                answered(None, _REASONS[answer.why])
            else:
                answered(Rights(answer, client_id), None)

        if identity:
            found(keyring.named(identity))
        elif key is None and name and self._lets_anybody and (user := keyring.unproven(name)) is not None:
            found(user)
        elif name is None and key is None:
            found(keyring.anonymous if self._lets_anybody else None)
        else:
            if key is not None and name in (None, ANY_NAME):
                name = name_in(key) or name
            keyring.check(name or "", key or b"", address, found)
