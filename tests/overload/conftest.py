"""What every proof of overload is given."""

import pytest

from .frame import Table


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    return Table(request.node.user_properties)
