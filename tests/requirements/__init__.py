"""The requirement ledger: every numbered requirement, and the tests that verify it."""
