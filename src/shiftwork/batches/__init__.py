"""Work that can wait a day, sent to a provider in batches at half the price."""
