"""Tests of the pure parts: values in, values out."""
