"""Task logs: lines logged by the handler, and the output of a command agent."""
