"""The stores: invalid places and input, migrations, and the statements they send."""
