"""What can be seen of the queue: how it stands, why a task waits, what is measured and what is wrong."""
