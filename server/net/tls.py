"""Certificates: what a door speaks TLS with, read again when the files change.

A certificate lives for weeks and a server for months, so the files are watched (server/settings/watch.py).
What is new counts for new connections; open ones keep what they have. Files are replaced one after the
other, so what is found may be half of it, or wrong: a pair that cannot be used is refused with a line in the
log, and what was there stays, until the files change again.

    cert.pem replaced                refused: the key does not fit
    key.pem replaced                 taken: new connections get the new certificate

Client certificates, where a CA is named, must be of that CA and not on its list of revoked ones; a connection
whose certificate is on a new list ends. One that only expires meanwhile ends nothing: when that comes nobody
has decided anything, and it cannot be shown again. Who shows one is known by the common name in it.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..settings.config import Config, ConfigError
from ..settings.watch import stamps_of
from .revoked import Revoked, Shown, revoked_in, shown_by


class Files(NamedTuple):
    """Where certificates are, as PEM; an empty name is none."""

    cert: str
    key: str
    """Empty: in the same file as the certificate."""
    ca: str = ""
    crl: str = ""
    is_required: bool = False
    """Whether a client must show a certificate."""


class Certificates:
    """Those of one door; `setting` names them in errors."""

    def __init__(self, setting: str, files: Files, protocols: tuple[str, ...] = ()) -> None:
        """`protocols`: for ALPN. Raises ConfigError if they cannot be used."""
        self.name = setting
        self.paths = tuple(Path(name) for name in (files.cert, files.key, files.ca, files.crl) if name)
        self.stamps = stamps_of(self.paths)
        self._files = files
        self._protocols = protocols
        try:
            self._context, self._revoked = self._made()
        except (OSError, ValueError) as error:
            raise ConfigError(setting, f"cannot be used: {_why(error)}") from None

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self._context

    def has_revoked(self, shown: Shown) -> bool:
        """Whether it is on the list that there is now."""
        return shown.serial in self._revoked.get(shown.issuer, ())

    def again(self) -> Callable[[], None]:
        """Read the files, in any thread; what comes back puts it in place. Raises ValueError."""
        try:
            made = self._made()
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot be used: {_why(error)}") from None
        return partial(self._put, *made)

    def _put(self, context: ssl.SSLContext, revoked: Revoked) -> None:
        self._context, self._revoked = context, revoked

    def _made(self) -> tuple[ssl.SSLContext, Revoked]:
        files = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Without a password OpenSSL would ask on the terminal for that of an encrypted key.
        context.load_cert_chain(files.cert, files.key or None, password="")
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        if files.ca:
            context.load_verify_locations(files.ca)
            context.verify_mode = ssl.CERT_REQUIRED if files.is_required else ssl.CERT_OPTIONAL
        if not files.crl:
            return context, {}
        context.load_verify_locations(files.crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context, revoked_in(Path(files.crl).read_bytes())


def http_certificates(config: Config) -> Certificates | None:
    """What HTTP speaks TLS with, if it does. Raises ConfigError."""
    http = config.http
    if not http.tls_cert:
        return None
    return Certificates("http.tls_cert", Files(http.tls_cert, http.tls_key), ("http/1.1",))


def mqtt_certificates(config: Config) -> Certificates | None:
    """What MQTT speaks TLS with, if it does. Raises ConfigError."""
    mqtt = config.mqtt
    if not mqtt.tls_cert:
        return None
    files = Files(mqtt.tls_cert, mqtt.tls_key, mqtt.tls_ca, mqtt.tls_crl, mqtt.tls_require_certificate)
    return Certificates("mqtt.tls_cert", files)


def common_name(transport: asyncio.BaseTransport) -> str:
    """Of the certificate that the client has shown; empty if there is none, or no name in it."""
    subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
    names = [value for parts in subject for name, value in parts if name == "commonName"]
    return str(names[-1]) if names else ""


def shown_on(transport: asyncio.BaseTransport) -> Shown | None:
    """What tells the certificate that the client has shown, and that has been verified, if there is one."""
    spoken = transport.get_extra_info("ssl_object")
    certificate = None if spoken is None else spoken.getpeercert(binary_form=True)
    return shown_by(certificate) if certificate else None


def _why(error: Exception) -> str:
    """Without what it says of the program."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)
