"""The tests of Shiftwork."""
