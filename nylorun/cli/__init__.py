"""The `nylorun` command. A guest: it starts processes and talks to them, and imports nothing of what they run."""
