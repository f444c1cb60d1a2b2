"""Agent programs as npm has them, run by `shiftwork work` against a model server of the tests."""
