"""schemathesis over /openapi.json: no server error, and status codes and bodies as the schema says."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from support.serving import served

if sys.version_info < (3, 11):
    pytest.skip("schemathesis needs Python 3.11", allow_module_level=True)
schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("fastapi")
from schemathesis import checks  # noqa: E402

CHECKS = [checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]  # fmt: skip


@pytest.fixture(scope="module")
def described():
    with served("--max-length", "24", "--max-forwards", "24", "--max-prompt", "200") as (url, _):
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_the_api_is_as_it_says(described):
    """Fitting bodies and bodies that do not fit, for every operation."""
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) == 7
    modes = schemathesis.GenerationMode
    for operation in operations:
        for mode in (modes.POSITIVE, modes.NEGATIVE) if operation.body else (modes.POSITIVE,):

            @settings(
                max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
            )
            @given(operation.as_strategy(generation_mode=mode))
            def asked(case):
                case.call_and_validate(checks=CHECKS)

            asked()
