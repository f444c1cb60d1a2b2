"""The engine on a virtual clock and a seeded scheduler, with faults: `make prove-seeds`."""
