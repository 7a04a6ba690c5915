"""Disk versions, Operations, restore, seeds, forks and recovery."""
