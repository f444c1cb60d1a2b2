"""A part of the conformance suite on a queue in a schema: it behaves as one with a database of its own.

`test_schema.py` shows that every statement names the schema, so a part is enough; SHIFTWORK_DEEP=1 runs the rest.
"""

from importlib import import_module

from tests.client.test_conformance import FIXTURES, asked
from tests.conftest import DEEP

SUITES = ["dags", "events", "idempotency", "lifecycle", "maintenance", "metrics", "quotas", "schedules", "serial"]
if DEEP:
    SUITES += ["breakers", "budgets", "cancelling", "claiming", "control", "dead_letters", "dependencies", "duplicates"]
    SUITES += ["effects", "failures", "guards", "judges", "leases", "limits", "observing", "settings_verb", "spawning"]
    SUITES += ["steps", "submit", "triggers", "validation", "waits"]

APART = {"test_database_constraint_keeps_a_key_unique"}  # it writes to the table itself


def of_suite(name: str) -> dict[str, object]:
    tests = vars(import_module(f"tests.conformance.test_{name}"))
    return {
        key: tests[key]
        for key in tests
        if key.startswith("test_") and key not in APART and asked(tests[key]) <= FIXTURES
    }


for suite in SUITES:
    found = of_suite(suite)
    assert not found.keys() & globals().keys()
    globals().update(found)
