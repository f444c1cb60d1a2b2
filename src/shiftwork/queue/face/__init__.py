"""The public face: what `Queue` offers, one class for each kind of caller."""
