"""What only the sources allow: a test of the inside of a class, which has no inside once it is compiled."""

import pytest

from server.build import form

OPENED = pytest.mark.skipif(
    form() == "compiled",
    reason="it puts something in the place of a method, or below a class; a compiled class has no such place",
)
