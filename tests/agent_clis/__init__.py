"""Agent programs from npm, run by `shiftwork work` against a model server of the tests."""
