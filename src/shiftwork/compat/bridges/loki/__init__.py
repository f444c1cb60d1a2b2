"""The `.loki` folder: five files of tasks that scripts read, and claim from under its lock."""
