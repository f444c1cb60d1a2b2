"""Agent frameworks on a queue: each really runs, against a scripted model on 127.0.0.1."""
