"""A rig that asks for keys."""

from pathlib import Path
from typing import Any

from tests.support.keys import KeysFile, with_keys
from tests.support.rig import Peer, Rig, config


class Keyed(Rig):
    """`add` makes a key, `come` and `stay` connect with it. There is `ops`, which may do everything.

    `acl`: what is in an ACL file, if there is one.
    """

    def __init__(self, folder: Path, *, acl: str = "", **keys: Any) -> None:
        self._acl = folder / "acl"
        if acl:
            self._acl.write_text(acl)
            keys["acl_file"] = str(self._acl)
        self.file = KeysFile(folder / "keys.toml")
        self.keys = {"ops": self.file.add("ops", "admin")}
        mqtt = {
            name: keys.pop(name) for name in ("allow_anonymous", "password_file", "acl_file") if name in keys
        }
        super().__init__(with_keys(config(**keys), self.file.path, **mqtt))

    def add(self, name: str, *scopes: str, **fields: Any) -> None:
        self.keys[name] = self.file.add(name, *scopes, **fields)
        self.read_keys()

    def change(self, name: str, before: str, after: str) -> None:
        self.file.change(name, before, after)
        self.read_keys()

    def change_acl(self, text: str) -> None:
        self._acl.write_text(text)
        self.read_keys()

    def revoke(self, name: str) -> None:
        self.file.revoke(name)
        self.read_keys()

    def rotate(self, name: str, for_ms: int) -> None:
        """The former key stays for so long."""
        self.keys[name] = self.file.rotate(name, self.clock.wall_ms() + for_ms)
        self.read_keys()

    def come(self, name: str, client_id: str = "", level: int = 5, **options: Any) -> Peer:
        return self.connected(client_id or name, level, username=name, key=self.keys[name], **options)

    def stay(self, name: str, client_id: str = "", **options: Any) -> Peer:
        return self.lasting(client_id or name, 5, username=name, key=self.keys[name], **options)
