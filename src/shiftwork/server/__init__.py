"""The queue over HTTP: any agent in any language works with it, any program watches it live."""
