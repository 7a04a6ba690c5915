"""The one-machine frame: PostgreSQL and Valkey from wheels, and the supervisor that runs every part of nylorun.

Nothing here imports Django or an application: this package starts processes and watches them.
"""
