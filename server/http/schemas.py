"""Types -> JSON schemas that programs which generate clients can read.

msgspec describes a type exactly, in forms on which generators fail: members beside a `$ref`, values without a
type, a union inside a union. The same is said here in fewer forms:

    a schema with a title        a component of that name, and a reference to it
    a reference, further rules   the component with the rules, under its own name or the one that is given
    {"enum": ["a", "b"]}         also {"type": "string"}
    a type beside its options    in each option
    an integer or a number       a number

What is true of several members at once stands below `then` or `not` (scalars.py): validators read it, and
generators don't look there.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

Json = dict[str, Any]
_VALUES = ("default", "enum", "required")
REF = "#/components/schemas/"


class Types:
    """Types -> schemas; named ones are collected in `components`."""

    def __init__(self) -> None:
        self.components: dict[str, Json] = {}

    def of(self, kind: Any) -> Json:
        (schema,), found = msgspec.json.schema_components([kind], ref_template=f"{REF}{{name}}")
        plain = self._plain(schema, found)
        assert isinstance(plain, dict)
        return plain

    def _plain(self, node: Any, found: Mapping[str, Json]) -> Any:
        """The node in the forms above; `found`: the components that msgspec refers to."""
        if isinstance(node, list):
            return [self._plain(inner, found) for inner in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            name = node["$ref"].removeprefix(REF)
            return self._named(_varied(found[name], node), found)
        return self._named(node, found) if "title" in node else self._members(node, found)

    def _named(self, schema: Json, found: Mapping[str, Json]) -> Json:
        """A reference to the component."""
        name = schema["title"]
        if name not in self.components:
            self.components[name] = {}  # it may refer to itself
            self.components[name] = self._members(schema, found)
        else:
            assert self.components[name] in ({}, self._members(schema, found)), f"two types are called {name}"
        return {"$ref": f"{REF}{name}"}

    def _members(self, schema: Json, found: Mapping[str, Json]) -> Json:
        given = dict(schema)
        if "enum" in given and all(isinstance(value, str) for value in given["enum"]):
            given["type"] = "string"
        if "anyOf" in given:
            given["anyOf"] = _options(given)
            given.pop("type", None)
        plain = {}
        for name, inner in given.items():
            if name == "properties":
                plain[name] = {member: self._plain(one, found) for member, one in inner.items()}
            else:
                plain[name] = inner if name in _VALUES else self._plain(inner, found)
        return plain


def _options(schema: Json) -> list[Json]:
    options = [{"type": schema["type"], **one} if "type" in schema else one for one in schema["anyOf"]]
    is_any_number = any(one.get("type") == "number" for one in options)
    return [one for one in options if one.get("type") != "integer" or not is_any_number]


def _varied(component: Json, node: Json) -> Json:
    """The component with what stands beside the reference to it; a property that is false is left out."""
    own = {name: value for name, value in node.items() if name != "$ref"}
    if not own:
        return component
    properties = component["properties"] | own.pop("properties", {})
    kept = {name: inner for name, inner in properties.items() if inner is not False}
    return {**component, **own, "properties": kept}
