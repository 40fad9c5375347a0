"""TLS, over HTTP and MQTT alike: which servers a client trusts, and what it shows to them.

    ca=None                                 the authorities of the system
    ca="ca.pem"                             those in the file, and no others
    cert="client.pem"                       a client certificate, with its key in the same file
    cert=("client.pem", "client.key")       with its key in another one

All files are PEM. They are read once, when the client is made; a key with a password cannot be used.

What goes wrong in TLS is mended by people, not by another attempt. `trouble` says how, by what OpenSSL says:

    62, 64 host or address mismatch         another address; the certificate has other names
    9, 10 not yet valid, expired            another certificate; or this machine's clock is wrong
    every other verify error                another CA
    alert "certificate required"            a client certificate is wanted
    alerts about a certificate              that of this client is not accepted
"""

from __future__ import annotations

import ssl
from os import PathLike, fspath
from typing import Final

from .errors import BadArgument

File = str | PathLike[str]
Cert = File | tuple[File, File]
"""A file with certificate and key, or one for each."""

_OTHER_NAME: Final = frozenset({62, 64})
_OTHER_TIME: Final = frozenset({9, 10})
_WANTED: Final = "CERTIFICATE_REQUIRED"
_NOT_ACCEPTED: Final = tuple(
    f"ALERT_{name}"
    for name in (
        "BAD_CERTIFICATE",
        "CERTIFICATE_EXPIRED",
        "CERTIFICATE_REVOKED",
        "CERTIFICATE_UNKNOWN",
        "UNKNOWN_CA",
        "UNSUPPORTED_CERTIFICATE",
    )
)
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")


CUT: Final = "the connection was closed within the TLS handshake: does this port speak TLS?"


class Tls:
    """The certificates of one client."""

    def __init__(self, ca: File | None = None, cert: Cert | None = None) -> None:
        """Raises BadArgument for files that cannot be used."""
        self.ca = ca
        self.cert = cert
        self._context = None if ca is None and cert is None else self._made()

    def context(self) -> ssl.SSLContext:
        """For a connection. Without `ca` the first call reads the system's authorities, some 40 ms."""
        if self._context is None:
            self._context = self._made()
        return self._context

    def _made(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else fspath(self.ca))
        except (OSError, TypeError, ValueError) as error:
            raise BadArgument("ca", f"cannot be used: {self.ca}: {_why(error)}") from None
        if self.cert is None:
            return context
        try:
            cert, key = self.cert if isinstance(self.cert, tuple) else (self.cert, None)
            # Without a password OpenSSL would ask for an encrypted key's on the terminal.
            context.load_cert_chain(cert, key, password="")
        except (OSError, TypeError, ValueError) as error:
            raise BadArgument("cert", f"cannot be used: {self.cert}: {_why(error)}") from None
        return context


def trouble(error: BaseException | str, tls: Tls) -> str | None:
    """What is wrong with TLS and what to do; None: it is not that, and another attempt may help.

    `error`: what was raised, or OpenSSL's text.
    """
    if isinstance(error, BaseException):
        # aiohttp's errors have the system's in one of these.
        error = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(error, ssl.SSLCertVerificationError):
        return _mistrust(error, tls)
    text = str(error)
    if _WANTED in text:
        return "the server asks for a client certificate: give one as cert= (--cert)"
    if any(name in text for name in _NOT_ACCEPTED):
        return f"the server does not accept the client certificate: {text}; give another as cert= (--cert)"
    if any(name in text for name in _NO_TLS):
        return "this port does not speak TLS: give http://, mqtt:// or ws://, or another port"
    return None


def is_cut(error: object) -> bool:
    """Whether the other side just closed, where that was within a TLS handshake."""
    return isinstance(error, ssl.SSLEOFError | ConnectionResetError | ConnectionAbortedError)


def unaccepted(tls: Tls) -> str:
    """What may be wrong where a server closes behind the handshake and says no more."""
    if tls.cert is None:
        return "does the server ask for a client certificate? Give one as cert= (--cert)"
    return "does the server accept the client certificate of cert= (--cert)?"


def _mistrust(error: ssl.SSLCertVerificationError, tls: Tls) -> str:
    why = error.verify_message.rstrip(".")
    if error.verify_code in _OTHER_NAME:
        return f"the server's certificate has other names: {why}; use an address that it names"
    if error.verify_code in _OTHER_TIME:
        return f"the server's certificate is not valid now: {why}; renew it, or set this machine's clock"
    if tls.ca is not None:
        return f"the server's certificate was not issued by the CA in {tls.ca}: {why}; give the right CA"
    return f"the server's certificate is not trusted: {why}; give its CA as ca= or FASTI_CA (--ca)"


def _why(error: Exception) -> str:
    """The error in words, without details of the program."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(getattr(error, "strerror", None) or error)
