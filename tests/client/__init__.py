"""Tests of the client and of workers over HTTP, against real servers."""
