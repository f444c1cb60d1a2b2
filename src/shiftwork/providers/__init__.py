"""What providers of models say about their limits."""
