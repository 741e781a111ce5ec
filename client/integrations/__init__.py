"""The guard under other people's training loops."""
