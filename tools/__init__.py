"""Commands for people who work on Shiftwork."""
