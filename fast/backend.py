"""What pip asks for a wheel: setuptools, and for a compiled wheel mypy with all that the types come from.

With FASTI_COMPILE=1 in the environment `pip wheel .` makes a wheel for this platform, with sources and
compiled modules; without it the wheel has the sources alone.

setuptools gathers what goes into a wheel in build/ and takes all that lies there. A module that has been
deleted since an earlier build would be in the wheel, and of one with compiled modules no server would start,
since these know their sources. So what an earlier build has gathered goes first."""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that are as ever

from .modules import TOOLS

EXTRAS = ("cluster", "otel")
"""What the server imports where it is there; the types of that are read as well."""


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """mypy reads the types of what the server stands on."""
    if os.environ.get("FASTI_COMPILE") != "1":
        return list(build_meta.get_requires_for_build_wheel(config_settings))
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    typed = [one for name in EXTRAS for one in extras[name]]
    return [*project["dependencies"], *typed, *(one for one in extras["dev"] if one.startswith(TOOLS))]


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Of what is in the tree now. The name of the file."""
    for gathered in Path("build").glob("lib*"):
        shutil.rmtree(gathered)
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))
