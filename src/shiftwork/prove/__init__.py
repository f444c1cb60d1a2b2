"""`shiftwork prove`: a fleet is hurt on purpose, on a store of yours, and the ledger says whether anything was lost."""
