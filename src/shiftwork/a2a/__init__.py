"""The queue as an A2A agent: messages become tasks, which agents claim as usual."""
