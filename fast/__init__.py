"""The optional build: the hot modules compiled by mypyc.

    modules.py     which modules are compiled, and why no others
    extension.py   the commands of setuptools that compile them
    backend.py     what pip asks for a wheel: FASTI_COMPILE=1 for one with compiled modules
    __main__.py    `make fast`: compile them for this checkout

Nothing here is part of the distribution. What runs, and when, is in `server/build.py`.
"""
