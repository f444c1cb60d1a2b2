"""The engine: each verb is one transaction: load, decide, apply, announce."""
