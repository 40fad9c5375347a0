"""A CA made in the test, by `openssl`, and the certificates that it gives."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = "DNS:localhost,IP:127.0.0.1"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """`path`: its certificate, for those who trust it."""

    def __init__(self, folder: Path, name: str = "CA") -> None:
        """Skips the test where there is no openssl."""
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._key = folder / "ca.pem", folder / "ca.key"
        self._folder = folder
        usage = "keyUsage=critical,keyCertSign,cRLSign"
        self._req(self.path, self._key, name, "basicConstraints=critical,CA:TRUE", usage)

    def issue(self, name: str, subject_names: str = "") -> tuple[Path, Path]:
        """Certificate and key of a server for `subject_names`; without any, of a client."""
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        names = [f"subjectAltName={subject_names}"] if subject_names else []
        kind = "serverAuth" if subject_names else "clientAuth"
        by = ("-CA", str(self.path), "-CAkey", str(self._key))
        self._req(cert, key, name, "basicConstraints=CA:FALSE", f"extendedKeyUsage={kind}", *names, by=by)
        return cert, key

    def _req(self, cert: Path, key: Path, name: str, *extensions: str, by: tuple[str, ...] = ()) -> None:
        more = [part for one in extensions for part in ("-addext", one)]
        where = ("-keyout", str(key), "-out", str(cert), "-subj", f"/CN={name}", "-days", "2")
        asked = ["openssl", "req", "-x509", *_NEW_KEY, *where, *by, *more]
        subprocess.run(asked, check=True, capture_output=True)
