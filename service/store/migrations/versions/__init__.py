"""One module for each migration. A released one is never changed: the next one goes on from it."""
