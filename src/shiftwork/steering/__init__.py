"""Instructions to the agent that holds a task, sent while it works."""
