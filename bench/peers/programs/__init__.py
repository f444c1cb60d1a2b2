"""One program for each queue, run in its own Python or Node.js environment; `common` lists their verbs."""
