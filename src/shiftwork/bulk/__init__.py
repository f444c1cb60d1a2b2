"""The same change for all tasks that a filter matches: counted first, then done page by page."""
