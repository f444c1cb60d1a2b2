"""How the databases execute the hot statements on a large backlog."""
