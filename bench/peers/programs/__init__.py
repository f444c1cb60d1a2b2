"""One program for each queue, run with the Python or the Node.js of its own; `common` says which verbs each has."""
