"""Seeds that once found a mistake. They are run with every change; what each showed stands beside it."""

KEPT: dict[int, str] = {}
