"""The conformance suite on a queue in a schema: it behaves as one with a database of its own."""

from importlib import import_module

from tests.client.test_conformance import FIXTURES, asked

SUITES = [
    *["breakers", "budgets", "cancelling", "claiming", "control", "dags", "dead_letters", "dependencies", "duplicates"],
    *["effects", "events", "failures", "guards", "idempotency", "leases", "lifecycle", "limits", "maintenance"],
    *["metrics", "observing", "quotas", "schedules", "serial", "settings_verb", "spawning", "steps", "submit"],
    *["triggers", "validation", "waits"],
]


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
