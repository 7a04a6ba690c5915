"""nylorun: the control plane for the Environments that AI agents work in."""

__version__ = "0.1.0"
