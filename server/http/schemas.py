"""Types -> JSON schemas that programs which generate clients can read.

msgspec describes a type exactly, in forms on which generators fail: members beside a `$ref`, values without a
type, a union inside a union. Here it is described in fewer forms:

    a schema with a title        a component of that name, and a reference to it
    a reference, further rules   the component with the rules, under its own name or the one that is given
    {"enum": ["a", "b"]}         also {"type": "string"}
    a type beside its options    in each option
    an integer or a number       a number
    a member with a default      {"description": "default 1"}: some take it for a member that is always there

What is true of several members at once stands below `then` or `not` (scalars.py): validators read it, and
generators don't look there.
"""

import json
from typing import Any

import msgspec

Json = dict[str, Any]
REF = "#/components/schemas/"


class Types:
    """Types -> schemas; named ones are collected in `components`."""

    def __init__(self) -> None:
        self.components: dict[str, Json] = {}
        self._found: dict[str, Json] = {}
        """Named types, as msgspec describes them."""
        self._sources: dict[str, Json] = {}
        """Components, as msgspec describes them, with further rules."""

    def of(self, kind: Any) -> Json:
        (schema,), found = msgspec.json.schema_components([kind], ref_template=f"{REF}{{name}}")
        for name, component in found.items():
            _keep(self._found, name, component)
        return self._plain(schema)

    def _plain(self, schema: Json) -> Json:
        """The schema in the forms above."""
        if "$ref" in schema:
            return self._named(_varied(self._found[schema["$ref"].removeprefix(REF)], schema))
        return self._named(schema) if "title" in schema else self._members(schema)

    def _named(self, schema: Json) -> Json:
        """A reference to the component."""
        name = schema["title"]
        if _keep(self._sources, name, schema):
            self.components[name] = self._members(schema)
        return {"$ref": f"{REF}{name}"}

    def _members(self, schema: Json) -> Json:
        given = dict(schema)
        if "enum" in given and all(isinstance(value, str) for value in given["enum"]):
            given["type"] = "string"
        if "anyOf" in given:
            given["anyOf"] = [self._plain(one) for one in _options(given)]
            given.pop("type", None)
        if "properties" in given:
            given["properties"] = {
                name: self._plain(_with_default(one)) for name, one in given["properties"].items()
            }
        for name in ("items", "additionalProperties"):
            if isinstance(given.get(name), dict):
                given[name] = self._plain(given[name])
        if "prefixItems" in given:
            given["prefixItems"] = [self._plain(one) for one in given["prefixItems"]]
        return given


def _keep(known: dict[str, Json], name: str, schema: Json) -> bool:
    """Whether it is new."""
    is_new = name not in known
    assert known.setdefault(name, schema) == schema, f"two types are called {name}"
    return is_new


def _with_default(member: Json) -> Json:
    """A member whose default stands in its description. None, false and empty ones are left out."""
    if "anyOf" in member:
        default = next((one["default"] for one in member["anyOf"] if "default" in one), None)
        options = [{name: one[name] for name in one if name != "default"} for one in member["anyOf"]]
        member = {**member, "anyOf": options, "default": member.get("default") or default}
    default = member.get("default")
    described = {name: inner for name, inner in member.items() if name != "default"}
    if default:
        text = default if isinstance(default, str) else json.dumps(default)
        described["description"] = "; ".join(filter(None, (described.get("description"), f"default {text}")))
    return described


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
