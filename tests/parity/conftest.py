"""Every parity test takes its cases one by one, as `case`."""

import pytest
from golden import Case


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)
