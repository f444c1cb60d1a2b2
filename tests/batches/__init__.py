"""Work that is sent to a provider in batches, against the two APIs on 127.0.0.1."""
