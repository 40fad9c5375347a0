"""Certificates of a listener, reread when their files change.

A certificate lives for weeks and a server for months, so the files are watched (server/settings/watch.py).
New files apply to new connections. Files are replaced one after the other, so a pair may be incomplete or
wrong for a moment: an unusable pair is refused with a line in the log, and the old one stays until the files
change again.

    cert.pem replaced                refused: the key does not fit
    key.pem replaced                 taken: new connections get the new certificate

With a CA configured, client certificates must be issued by it and not be on its list of revoked ones; a
connection whose certificate is on a new list is closed. Mere expiry closes no connection: nobody has decided
that, and the certificate cannot be renewed within the connection. A client is identified by the common name
in its certificate.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..settings.config import Config, ConfigError
from ..settings.watch import stamps_of
from .revoked import CertificateId, Revoked, certificate_id_of, revoked_in


class Files(NamedTuple):
    """PEM files of certificates; an empty name is none."""

    cert: str
    key: str
    """Empty: in the file of the certificate."""
    ca: str = ""
    crl: str = ""
    is_required: bool = False
    """Whether a client must show a certificate."""


class Certificates:
    """Certificates of one listener; `setting` names them in errors."""

    def __init__(self, setting: str, files: Files, protocols: tuple[str, ...] = ()) -> None:
        """`protocols`: for ALPN. Raises ConfigError if they cannot be used."""
        self.name = setting
        self.paths = tuple(Path(name) for name in (files.cert, files.key, files.ca, files.crl) if name)
        self.stamps = stamps_of(self.paths)
        self._files = files
        self._protocols = protocols
        try:
            self.again()()
        except ValueError as error:
            raise ConfigError(setting, str(error)) from None

    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._context

    def has_revoked(self, client: CertificateId) -> bool:
        """Whether a certificate is on the current list."""
        return client.serial in self._revoked.get(client.issuer, ())

    def again(self) -> Callable[[], None]:
        """Read the files, in any thread; returns a function that puts them in place. Raises ValueError."""
        try:
            made = self._made()
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot be used: {_why(error)}") from None
        return partial(self._put, *made)

    def _put(self, context: ssl.SSLContext, revoked: Revoked) -> None:
        self._context, self._revoked = context, revoked

    def _made(self) -> tuple[ssl.SSLContext, Revoked]:
        files = self._files
        for path in self.paths:
            path.open().close()  # OpenSSL does not say which file is missing
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Without a password OpenSSL would ask for an encrypted key's on the terminal.
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
    """HTTP's certificates, if it uses TLS. Raises ConfigError."""
    http = config.http
    if not http.tls_cert:
        return None
    return Certificates("http.tls_cert", Files(http.tls_cert, http.tls_key), ("http/1.1",))


def mqtt_certificates(config: Config) -> Certificates | None:
    """MQTT's certificates, if it uses TLS. Raises ConfigError."""
    mqtt = config.mqtt
    if not mqtt.tls_cert:
        return None
    files = Files(mqtt.tls_cert, mqtt.tls_key, mqtt.tls_ca, mqtt.tls_crl, mqtt.tls_require_certificate)
    return Certificates("mqtt.tls_cert", files)


def common_name(transport: asyncio.BaseTransport) -> str:
    """The common name in the client's certificate; empty if there is none."""
    subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
    names = [value for parts in subject for name, value in parts if name == "commonName"]
    return str(names[-1]) if names else ""


def client_certificate_id(transport: asyncio.BaseTransport) -> CertificateId | None:
    """The identity of the client's verified certificate, if any."""
    spoken = transport.get_extra_info("ssl_object")
    certificate = None if spoken is None else spoken.getpeercert(binary_form=True)
    return certificate_id_of(certificate) if certificate else None


def _why(error: Exception) -> str:
    """The error in words, without details of the program."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
