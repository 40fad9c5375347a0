"""`make dist`: what people install, built, looked into, and tried where nothing else is.

    python -m tests.dist FOLDER [--plain]

FOLDER is made anew, with the wheel and the sources of `fasti-server` and of `fasti-client`, and, where there is a C
compiler and not `--plain`, the wheel with compiled modules. Each is held to what has to be in it, and nothing
else; the descriptions are held to what an index takes (twine). Then, in an environment with nothing in it and
a folder without a checkout, the server is installed and started, its pages are asked for, and a message is
scheduled and received by the installed command: once of the wheels, once of the sources, once of the compiled
wheel, which has to say that it is.

Whatever is wrong ends it with exit code 1 and says so.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
PAGES = ("/", "/console/main.js", "/docs", "/openapi.json", "/metrics", "/readyz")
SDK = "fasti_client-"
"""How the files of the client's distribution begin."""
NEVER = ("tests/", "/data/", ".venv", "__pycache__", ".pyc", ".git/", "build/", ".hypothesis", ".key")


class Wrong(Exception):
    """It cannot be released like this."""


def main() -> None:
    """Build and check."""
    parser = argparse.ArgumentParser(prog="python -m tests.dist")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plain", action="store_true", help="without the compiled wheel")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        is_compiled = not options.plain and shutil.which("cc") is not None
        built = build(folder, is_compiled=is_compiled)
        for archive in built:
            look_into(archive)
        run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))
        sdk = [one for one in built if one.name.startswith(SDK)]
        server = [one for one in built if one not in sdk]
        wheels = [one for one in server if one.name.endswith("-none-any.whl")]
        sources = [one for one in built if one.name.endswith(".tar.gz")]
        compiled = [one for one in server if one.suffix == ".whl" and one not in wheels]
        sdk_wheel = [one for one in sdk if one.suffix == ".whl"]
        try_out("wheels", [*wheels, *sdk_wheel], "pure")
        try_out("sources", sources, "pure")
        if compiled:
            try_out("compiled wheel", [*compiled, *sdk_wheel], "compiled")
        else:
            say("SKIPPED: the compiled wheel, " + ("--plain" if options.plain else "there is no C compiler"))
    except Wrong as error:
        say(f"wrong: {error}")
        sys.exit(1)
    for archive in sorted(folder.iterdir()):
        say(f"{archive.name}  {archive.stat().st_size:,} bytes")


def build(folder: Path, *, is_compiled: bool) -> list[Path]:
    """Both distributions; the wheels from the sources, as an index would."""
    for project in (ROOT, ROOT / "sdk"):
        run(sys.executable, "-m", "build", "--outdir", str(folder), str(project))
    if is_compiled:
        with tempfile.TemporaryDirectory() as work:
            env = {**os.environ, "FASTI_COMPILE": "1"}
            run(sys.executable, "-m", "build", "--wheel", "--outdir", work, str(ROOT), env=env)
            (wheel,) = Path(work).glob("*.whl")
            repaired = subprocess.run(
                [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(wheel)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            )
            if repaired.returncode:
                say(f"its platform stays {wheel.name}: {(repaired.stderr.strip().splitlines() or ['?'])[-1]}")
                shutil.copy(wheel, folder)
    return sorted(folder.iterdir())


def look_into(archive: Path) -> None:
    """Raises Wrong for what is in it and must not be, or the other way round."""
    names = names_in(archive)
    for name in names:
        if any(part in f"/{name}" for part in NEVER):
            raise Wrong(f"{archive.name} has {name} in it")
    wanted = ["LICENSE"]
    if archive.name.startswith(SDK):
        wanted += ["fasti/py.typed", "fasti/cli/app.py"]
    else:
        static = (ROOT / "server" / "console" / "static").iterdir()
        wanted += [
            "server/__main__.py",
            "spark/py.typed",
            *(f"server/console/static/{one.name}" for one in static),
        ]
    if archive.suffix == ".gz":
        wanted += ["README.md", "pyproject.toml"]
    for part in wanted:
        if not any(name.endswith(part) for name in names):
            raise Wrong(f"{archive.name} lacks {part}")


def names_in(archive: Path) -> list[str]:
    """The files in a wheel or an archive of sources."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as sources:
        return [member.name for member in sources if member.isfile()]


def try_out(what: str, archives: Sequence[Path], build_name: str) -> None:
    """Install them into an empty environment, and use them as their users do. Raises Wrong."""
    if not archives:
        raise Wrong(f"there are no {what}")
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        venv.create(place / "venv", with_pip=True)
        programs = place / "venv" / "bin"
        named = [f"{one}[cli]" if one.name.startswith(SDK) else str(one) for one in archives]
        run(str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check", *named, cwd=place)
        with serving(programs, place) as url:
            for page in PAGES:
                with urlopen(url + page, timeout=10) as answer:
                    if answer.status != 200 or not answer.read():
                        raise Wrong(f"{what}: {page} answers {answer.status}")
            with urlopen(url + "/v1/info", timeout=10) as answer:
                info = json.load(answer)
            if info["build"] != build_name:
                raise Wrong(f"{what}: the server says that its build is {info['build']}")
            fasti = [str(programs / "fasti"), "--url", url]
            heard = subprocess.Popen(
                [*fasti, "subscribe", "a/b", "--count", "1", "-o", "json", "--session", "s"],
                cwd=place,
                stdout=subprocess.PIPE,
                text=True,
            )
            run(*fasti, "message", "schedule", "a/b", "hello", "--in", "3s", cwd=place)
            out, _ = heard.communicate(timeout=WAIT_S)
            said = json.loads(out)
            if (said["payload"], said["late_ms"] >= 0) != ("hello", True):
                raise Wrong(f"{what}: received {said}")
    say(f"{what}: installed, served, scheduled, received {said['late_ms']:.1f} ms after it was due")


@contextmanager
def serving(programs: Path, place: Path) -> Iterator[str]:
    """The installed server on free ports; its URL. Raises Wrong."""
    ports = ("--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    command = [str(programs / "fasti-server"), "--data", str(place / "data"), *ports]
    with subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith("listening http="):
                    yield f"http://{line.split('http=')[1].split()[0]}"
                    break
            else:
                raise Wrong("the server does not start: " + "".join(lines[-5:]))
        finally:
            server.terminate()
        if server.wait(WAIT_S):
            raise Wrong(f"the server ended with {server.returncode}")


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Raises Wrong with what it said."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(f"{' '.join(command)}:\n{done.stdout[-2_000:]}{done.stderr[-4_000:]}")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
