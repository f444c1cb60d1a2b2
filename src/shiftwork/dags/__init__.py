"""DAGs as a resource."""
