"""`shiftwork prove`: injects faults into a fleet on your store and checks the ledger for losses."""
