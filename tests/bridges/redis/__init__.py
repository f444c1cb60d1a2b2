"""The Redis Streams protocol, against a real server."""
