"""The console's files as they are served: with a policy, without a key, complete."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from server.console.pages import TYPES, shipped
from server.engine.clock import SimulatedClock
from server.settings.config import Config
from tests.support.keys import KeysFile, with_keys

from ..conftest import Running, running

STATIC = Path(__file__).parents[3] / "server" / "console" / "static"


async def get(server: Running, path: str, **headers: str) -> tuple[int, Mapping[str, str], str]:
    async with server.http.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()}) as answer:
        return answer.status, answer.headers.copy(), await answer.text()


async def test_the_page_and_what_it_asks_for(server: Running) -> None:
    status, headers, page = await get(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    asked = set(re.findall(r'(?:src|href)="(/console/[^"]+)"', page))
    assert {"/console/main.js", "/console/console.css", "/console/icon.svg"} <= asked
    for path in asked:
        status, headers, _ = await get(server, path)
        assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")


async def test_nothing_is_from_elsewhere_and_nothing_is_written_into_the_page(server: Running) -> None:
    _, headers, page = await get(server, "/")
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|https?://", page)


async def test_who_has_it_is_told_that_it_has_not_changed(server: Running) -> None:
    _, headers, body = await get(server, "/console/main.js")
    assert headers["Cache-Control"] == "no-cache"
    assert body
    for known in (headers["ETag"], f"W/{headers['ETag']}", f'"other", {headers["ETag"]}', "*"):
        status, again, body = await get(server, "/console/main.js", If_None_Match=known)
        assert (status, again["ETag"], body) == (304, headers["ETag"], "")
    assert (await get(server, "/console/main.js", If_None_Match='"other"'))[0] == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpages.py", "pages.py", "main.js%00"])
async def test_only_its_files(server: Running, name: str) -> None:
    status, _, _ = await get(server, f"/console/{name}")
    assert status in (400, 404)


async def test_nobody_is_asked_for_a_key(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    file.add("someone", "read")
    async with running(tmp_path / "data", with_keys(config, file.path), clock) as server:
        for path in ("/", "/console/main.js"):
            assert (await get(server, path))[0] == 200
        assert (await get(server, "/v1/messages"))[0] == 401


def test_every_file_is_shipped() -> None:
    assert {path.name for path in STATIC.iterdir()} == set(shipped())
    assert {path.suffix for path in STATIC.iterdir()} <= set(TYPES)


def test_every_module_that_one_imports_is_there() -> None:
    for path in STATIC.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8")):
            assert (STATIC / name).is_file(), f"{path.name}: {name}"


def test_no_script_makes_markup_of_text() -> None:
    """The policy forbids it too; here it is found without a browser."""
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser"
    assert [path.name for path in STATIC.glob("*.js") if re.search(forbidden, path.read_text("utf-8"))] == []
