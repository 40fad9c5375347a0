"""`GET /docs`: the OpenAPI document as a page, without scripts or external resources.

It lists every call in the order of use, with a command, parameters and answers; then the types. Types are
linked, not repeated.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import msgspec

Json = Mapping[str, Any]

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
code,pre{font:13px/1.4 ui-monospace,monospace;background:#f4f4f4;padding:.1em .3em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.6em}
h2{font-size:1.05em;margin:2em 0 .3em;border-top:1px solid #ddd;padding-top:1em}td{padding:.1em 1em .1em 0;
vertical-align:top}td:first-child{min-width:8em}td:nth-child(2){min-width:11em}
small{color:#666}b{text-transform:uppercase;color:#06c}"""


def page_of(document: Json) -> str:
    """The document as HTML."""
    info = document["info"]
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>',
        f"<style>{STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f'<p>{escape(info["description"])} As data: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    names = [*(tag["name"] for tag in document["tags"]), "types"]
    links = " &middot; ".join(f'<a href="#{name}">{name}</a>' for name in names)
    parts.append(f"<p>{links}</p>")
    for tag in document["tags"]:
        parts.append(f'<h1 id="{tag["name"]}">{tag["name"]}</h1><p>{escape(tag["description"])}</p>')
        for path, operations in document["paths"].items():
            parts += [
                _section(method, path, one)
                for method, one in operations.items()
                if tag["name"] in one["tags"]
            ]
    parts.append('<h1 id="types">types</h1>')
    parts += [_type(name, schema) for name, schema in document["components"]["schemas"].items()]
    return "\n".join(parts)


def _section(method: str, path: str, operation: Json) -> str:
    rows = [
        f"<tr><td><code>{escape(p['name'])}</code><td>{p['in']}<td>{_text(p['schema'])}"
        for p in operation["parameters"]
    ]
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(f"<tr><td>body<td><code>{media}</code><td>{_text(content['schema'])}")
    rows += [_answer(status, answer) for status, answer in operation["responses"].items()]
    head = f"<h2><b>{method}</b> <code>{escape(path)}</code></h2><p>{escape(operation['summary'])}"
    head += f" <small>{escape(operation['description'])}</small></p>"
    samples = "".join(f"<pre>{escape(sample['source'])}</pre>" for sample in operation["x-codeSamples"])
    return f"{head}{samples}<table>{''.join(rows)}</table>"


def _answer(status: str, answer: Json) -> str:
    """One line: status, type, description, headers."""
    (schema,) = (content["schema"] for content in answer.get("content", {"": {"schema": None}}).values())
    typed = "" if schema is None else _text(schema)
    headers = "".join(f" <small>{escape(name)}</small>" for name in answer.get("headers", {}))
    return f"<tr><td>{status}<td>{typed}<td>{escape(answer['description'])}{headers}"


def _type(name: str, schema: Json) -> str:
    """A type: its members as a table, or anything else as JSON."""
    head = f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(schema.get("description", ""))}</p>'
    if "properties" not in schema:
        return f"{head}<pre>{escape(msgspec.json.format(msgspec.json.encode(schema)).decode())}</pre>"
    required = schema.get("required", ())
    rows = (
        f"<tr><td><code>{escape(name)}</code><td>{'' if name in required else 'optional'}<td>{_text(inner)}"
        for name, inner in schema["properties"].items()
    )
    return f"{head}<table>{''.join(rows)}</table>"


def _text(schema: Json) -> str:
    """A schema in words, on one line."""
    return "; ".join(_words(schema)) or "any"


def _words(schema: Json) -> Iterator[str]:
    ref = schema.get("$ref", "").rpartition("/")[2]
    options = schema.get("anyOf", ())
    if ref:
        yield f'<a href="#{ref}">{ref}</a>'
    elif "items" in schema:
        yield f"array of {_text(schema['items'])}"
    elif "enum" in schema:
        yield " | ".join(escape(str(value)) for value in schema["enum"])
    elif options:
        yield " or ".join(dict.fromkeys(_text(option) for option in options))
    elif "type" in schema and not (schema["type"] == "string" and "description" in schema):
        yield escape(str(schema["type"]))
    if "description" in schema:
        yield escape(schema["description"])
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        yield f"{low} to {high}" if high is not None else f"at least {low}"
    if schema.get("default") is not None:
        yield f"default {escape(msgspec.json.encode(schema['default']).decode())}"
