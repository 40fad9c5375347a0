"""The places in the code that change the disk, found by reading it: each is to be killed at (test_places.py).

A place is a call: of the engine's, of the store's, of the operating system's, by the names below. What is
found here and is killed at by no plot (plots.py) fails the test, unless `FREE` says why it need not be.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.server import ROOT

ROOMS = ("shards", "server", "spark")
ALWAYS = frozenset(
    (
        *("fsync", "fdatasync", "pwrite", "pwritev", "writev", "posix_fallocate"),
        *("rename", "unlink", "rmtree", "rmdir", "mkdir", "makedirs", "touch"),
        *("hardlink_to", "symlink_to", "write_text", "write_bytes", "ftruncate", "truncate", "mkstemp"),
        *("copyfile", "copy2", "copytree", "copyfileobj", "TemporaryDirectory", "NamedTemporaryFile"),
        *("create_checkpoint", "flush_wal", "create_column_family"),
        *("drop_column_family", "compact_range", "ParquetWriter", "write_table", "ZipFile", "dump"),
    )
)
BY_RECEIVER = {
    "write": re.compile(r"(store|_db|db|file|writer|^os)$"),
    "finish": re.compile(r"^writer$"),
    "flush": re.compile(r"(store|_db|db|file|family)$"),
    "checkpoint": re.compile(r"store$"),
    "compact": re.compile(r"store$"),
    "mark": re.compile(r"store$"),
    "repair": re.compile(r"Rdict$"),
    "move": re.compile(r"^shutil$"),
    "remove": re.compile(r"^os$"),
    "link": re.compile(r"^os$"),
    "symlink": re.compile(r"^os$"),
}
WRITING = re.compile(r"[wax+]|O_WRONLY|O_RDWR|O_CREAT|^mode$")


class Place(NamedTuple):
    """A call: in which function, by which name, on which lines."""

    function: str
    """`shards.mark:Mark.prepare`."""
    call: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.function} {self.call}"


FREE = {
    "shards.open_batch:OpenBatch._slice_for open": "a slice is opened in RAM",
    "shards.open_batch:OpenBatch.place touch": "a group in RAM",
    "shards.open_batch:OpenBatch.stay_below touch": "a group in RAM",
    "shards.open_batch:OpenBatch.hold_back touch": "a group in RAM",
    "shards.open_batch:OpenBatch.retire touch": "a group in RAM",
    "shards.recover:_read_again replace": "the directory in RAM",
    "shards.order:rebuild_index ": "rows that are derived: a repair that is cut off is done again",
    "shards.replicated:": "the store below does it; what a kill has kept from it is read from the log again",
    "shards.rocks:RocksStore._opened ": "links in a temporary directory of the process, made anew each time",
    "server.cluster.copy_out:pack open": "a tar that goes into a socket",
    "server.auth.keyring:Keyring.take replace": "rights in RAM",
    "server.auth.rights:Principal.revoke replace": "rights in RAM",
    "server.http.admission:_go_ahead write": "a socket",
    "server.http.front:HttpListener.open open": "a socket",
    "server.cluster.node:Node._checkpoint checkpoint": "the store below does it",
    "server.cluster.node:Node._hand_over": "the store below does it",
    "server.cluster.scrub:Scrub._write ": "how far a pass is: if it is lost, the pass begins anew",
    "server.cluster.node:Node._lead open": "sockets",
    "server.cluster.node:Node.start open": "sockets",
    "server.mqtt.listeners:Listeners._open open": "sockets",
    "spark.parquet:_Summed.write write": "pyarrow's own buffer; what counts is the rename",
    "spark.storage:Storage.write write": "pyarrow's own buffer; what counts is the rename",
    "spark.java:": "a wrapper for Java in a temporary directory of the process, made anew each time",
    "spark.session:": "the code as an archive for Spark, in a temporary directory of the process",
}
"""Places that change no disk that anybody comes back to; why. By how their names begin."""


def places() -> list[Place]:
    """All of them, those that are free too."""
    found: list[Place] = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found += _of_tree(module, ast.parse(path.read_text(encoding="utf-8")))
    return found


def why_free(place: Place) -> str | None:
    return next((why for start, why in FREE.items() if place.name.startswith(start)), None)


def _of_tree(module: str, tree: ast.AST, within: str = "") -> Iterator[Place]:
    for node in ast.iter_child_nodes(tree):
        inner = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{within}{node.name}."
        if isinstance(node, ast.Call) and _changes(node):
            call = ast.unparse(node.func).rpartition(".")[2]
            yield Place(f"{module}:{within.rstrip('.')}", call, node.lineno, node.end_lineno or node.lineno)
        yield from _of_tree(module, node, inner)


def _changes(node: ast.Call) -> bool:
    receiver, _, name = ast.unparse(node.func).rpartition(".")
    if name in ALWAYS:
        return True
    if name in BY_RECEIVER:
        return bool(BY_RECEIVER[name].search(receiver))
    if name == "replace":
        is_path = len(node.args) == 1 and not node.keywords and receiver != "msgspec.structs"
        return is_path or receiver == "os"
    if name in ("open", "fdopen"):
        return any(WRITING.search(_text(argument)) for argument in _modes(node, receiver))
    return False


def _modes(node: ast.Call, receiver: str) -> list[ast.expr]:
    """What may say how a file is opened: `path.open(mode)`, `open(path, mode)`."""
    named = [keyword.value for keyword in node.keywords if keyword.arg in ("mode", "flags")]
    is_path = receiver not in ("", "os", "io")
    return named + (node.args[:1] if is_path else node.args[1:2])


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
