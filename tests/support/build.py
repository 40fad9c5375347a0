"""What only the sources allow: a test that looks inside; what is compiled has no such inside."""

import pytest

from server.build import form

OPENED = pytest.mark.skipif(
    form() == "compiled",
    reason="it puts something in the place of a method, or below a class, or follows lines of the sources",
)
