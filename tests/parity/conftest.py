"""Every parity test takes its cases one by one, as `case`, and reads all that a case says."""

from collections.abc import Iterator

import pytest
from golden import Case


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """A test that passed, and passed over a field, fails. One that is skipped says itself for which fields."""
    result = yield
    case = pyfuncitem.funcargs.get("case")
    if isinstance(case, Case):
        case.check_all_read()
    return result
