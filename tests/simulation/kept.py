"""Seeds that once found a mistake. They are run with every change; what each showed is next to it."""

KEPT: dict[int, str] = {}
