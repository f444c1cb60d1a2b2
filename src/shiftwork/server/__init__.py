"""The queue over HTTP: agents in any language can work, and any program can watch events live."""
