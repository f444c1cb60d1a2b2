"""Types of task: what their payloads and results must look like, and the functions that do them."""
