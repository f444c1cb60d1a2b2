"""The command line: every command in both forms, every error with its code."""
