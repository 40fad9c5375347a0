"""config.toml, the tables of docs/settings.md and docs/metrics.md, and the picture of docs/places.md, as the
code has them.

    python -m tests.support.tables        writes them

A setting's text is the string below it in server/settings/config.py, a metric's the HELP line of `/metrics`.
What lies between `<!-- made: name -->` and `<!-- made -->` in a page is made. The rest is written by hand, as
is what stands above the first section of config.toml.
"""

import ast
import asyncio
import inspect
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from prometheus_client import CollectorRegistry, generate_latest

from server.cluster.figures import ClusterFigures
from server.cluster.view import View
from server.engine.clock import SimulatedClock
from server.settings import config
from server.settings.config import Config
from server.settings.memory import MIB, PARTS, SHARES
from server.settings.reading import keys
from server.settings.removed import REMOVED
from tests.server.conftest import START_MS, running
from tests.support.life import picture

ROOT = Path(__file__).parents[2]
MADE = ("settings", "metrics", "places")
"""Pages with something that is made."""
COMMENT_WIDTH = 118
VIEW: View = {
    "name": "", "node": "a", "state": "leader", "epoch": 1, "applied": 1, "leader": None, "log": None,
    "takeovers": 0, "why": "", "fit": True, "clock_offset_ms": 0, "keys_digest": "",
    "tzdata": {"node": "", "store": "", "retime": False}, "nodes": [],
}  # fmt: skip


def texts() -> dict[str, str]:
    """`section.attribute` -> the string below it."""
    found = {}
    for node in ast.parse(inspect.getsource(config)).body:
        if isinstance(node, ast.ClassDef):
            section = (ast.get_docstring(node) or "").strip("[]")
            for item, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(item, ast.AnnAssign) and isinstance(below, ast.Expr):
                    assert isinstance(item.target, ast.Name)
                    assert isinstance(below.value, ast.Constant)
                    found[f"{section}.{item.target.id}"] = " ".join(str(below.value.value).split())
    return found


def settings() -> Iterator[tuple[str, str, str]]:
    """(`section.key`, its default as `--check` shows it, its text)."""
    told = texts()
    for name, attribute, kind in keys():
        section = name.partition(".")[0]
        value = getattr(getattr(Config(), section), attribute)
        yield name, kind.show(value), told[f"{section}.{attribute}"]


def _toml(shown: str) -> str:
    try:
        tomllib.loads(f"x = {shown}")
    except tomllib.TOMLDecodeError:
        return f'"{shown}"'
    return shown


def sample(above: str) -> str:
    """config.toml, below `above`."""
    lines, last = [above.rstrip()], ""
    for name, shown, text in settings():
        section, _, key = name.partition(".")
        if section != last:
            lines += ["", f"[{section}]"]
            last = section
        lines += [f"# {line}" for line in wrap(text.replace("`", ""), COMMENT_WIDTH, break_on_hyphens=False)]
        lines.append(f"{key} = {_toml(shown)}")
    return "\n".join(lines) + "\n"


def _table(head: str, *rows: tuple[str, ...]) -> str:
    columns = head.split("|")
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
    return "\n".join(lines)


def of_settings() -> str:
    sections: dict[str, list[tuple[str, ...]]] = {}
    for name, shown, text in settings():
        sections.setdefault(name.partition(".")[0], []).append((f"`{name}`", f"`{shown}`", text))
    return "\n\n".join(
        f"### {section}\n\n{_table('key|default|', *rows)}" for section, rows in sections.items()
    )


def of_parts() -> str:
    rows = []
    for part in PARTS:
        share = f"{part.share} of {SHARES:,}" if part.share else f"{part.least} MiB"
        most = f"{part.most:,} MiB" if part.share and part.most * MIB < 1 << 40 else ""
        bounds = ", ".join(f"`{name}`" for name in part.bounds)
        rows.append((part.name, share, f"{part.least} MiB" if part.share else "", most, bounds, part.what))
    return _table("part|share|least|most|bounded by|what is in it", *rows)


def of_removed() -> str:
    return _table("key|what took its place", *((f"`{name}`", text) for name, text in sorted(REMOVED.items())))


async def pages() -> str:
    """`/metrics` of a server, and of a node."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), Config(), SimulatedClock(START_MS)) as server:
            page = (await server.call("GET", "/metrics")).body.decode()
    registry = CollectorRegistry()
    registry.register(ClusterFigures(lambda: VIEW))
    return page + generate_latest(registry).decode()


def of_metrics(page: str) -> str:
    helps = re.findall(r"(?m)^# HELP (fasti_\S+)(?<!_created) (.*)$", page)
    kinds = dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", page))
    rows = ((f"`{name}`", kinds[name], text) for name, text in sorted(helps))
    return _table("name|type|", *rows)


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with its tables as they are now."""

    def made(found: re.Match[str]) -> str:
        return f"<!-- made: {found[1]} -->\n\n{tables[found[1]]}\n\n<!-- made -->"

    return re.sub(r"(?s)<!-- made: (\w+) -->\n.*?<!-- made -->", made, page)


def made() -> dict[Path, str]:
    """The files, as they have to be."""
    tables = {
        "settings": of_settings(),
        "parts": of_parts(),
        "removed": of_removed(),
        "metrics": of_metrics(asyncio.run(pages())),
        "life": picture(),
    }
    toml, docs = ROOT / "config.toml", [ROOT / "docs" / f"{name}.md" for name in MADE]
    found = {toml: sample(toml.read_text(encoding="utf-8").partition("\n[")[0])}
    return found | {path: filled(path.read_text(encoding="utf-8"), tables) for path in docs}


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
