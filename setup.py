"""pyproject.toml says what the distribution is. With FASTI_COMPILE=1 the hot modules are compiled, too."""

import os

from setuptools import setup

if os.environ.get("FASTI_COMPILE") == "1":
    from fast.extension import compiled

    setup(**compiled())
else:
    setup()
