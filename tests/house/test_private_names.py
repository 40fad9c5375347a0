"""What the SDK uses of aiomqtt and paho that these keep private: in one file, and of tested releases only."""

import ast
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import aiomqtt
from packaging.requirements import Requirement
from packaging.version import Version
from paho.mqtt.client import Client as Paho

SDK = Path(__file__).parents[2] / "sdk"
AIOMQTT = {"_client", "_connected", "_disconnected", "_pending_subscribes"}
PAHO = {
    *("_handle_pingresp", "_handle_publish", "_handle_pubrel", "_send_pubrec"),
    *("_in_messages", "_in_packet", "_out_packet", "_sock_close"),
    *("_create_socket_connection", "_ssl_wrap_socket", "_sock_send"),
}


def foreign_names(source: str) -> set[str]:
    """Private attributes of anything but `self` and `cls`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def imports_either(source: str) -> bool:
    return any(
        name.partition(".")[0] in ("aiomqtt", "paho")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
        )
    )


def test_the_private_names_in_use_are_these() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in (SDK / "fasti").rglob("*.py")}
    used = {name: foreign_names(text) for name, text in sources.items() if imports_either(text)}
    assert used == {"mqtt_adapter.py": AIOMQTT | PAHO, "mqtt_values.py": set()}
    assert foreign_names("a._b, self._c, self._d._e, a.__f__") == {"_b", "_e"}


def test_they_are_there() -> None:
    for names, cls in ((AIOMQTT, aiomqtt.Client), (PAHO, Paho)):
        source = inspect.getsource(cls)
        assert [name for name in sorted(names) if f"self.{name}" not in source] == []


def test_no_release_is_let_in_that_has_not_been_tested() -> None:
    """The ranges end with the minor release that is installed here."""
    project = tomllib.loads((SDK / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    for name in ("aiomqtt", "paho-mqtt"):
        here = Version(version(name))
        assert here in asked[name], name
        assert f"{here.major}.{here.minor + 1}" not in asked[name], name
        assert f"{here.major}.{here.minor - 1}" not in asked[name], name


def test_no_range_of_the_sdk_is_open_upwards() -> None:
    project = tomllib.loads((SDK / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = (project["dependencies"], *project["optional-dependencies"].values())
    asked = [Requirement(text) for some in lists for text in some]
    assert [str(one) for one in asked if "999" in one.specifier] == []
    assert {one.name for one in asked} >= {"aiohttp", "typer", "rich", "opentelemetry-sdk"}
