"""The server on a real socket."""
