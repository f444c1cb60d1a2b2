"""Agent frameworks on a queue, each the real one, with a scripted model on 127.0.0.1."""
