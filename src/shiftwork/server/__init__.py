"""The queue over HTTP, for agents in any language and for programs that watch events live."""
