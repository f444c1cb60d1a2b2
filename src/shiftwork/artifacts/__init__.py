"""Artifacts: content stored by its hash, the inputs and results that refer to it, and the stores of the bytes."""
