"""The Redis Streams protocol: this queue for foreign workers, and our workers for a foreign orchestrator."""
