"""Shiftwork inside other frameworks, each the real one."""
