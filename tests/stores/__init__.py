"""Places where a queue cannot live, input it does not take, and how its schema comes to be."""
