"""The command line's commands that belong to the client, and what they print."""
