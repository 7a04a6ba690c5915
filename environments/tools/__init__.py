"""Running tools in a live sandbox: the journal's commits around the work, which happens outside any transaction."""

from environments.tools.serve import Send, interrupted, serve
from environments.tools.waking import wake

__all__ = ["Send", "interrupted", "serve", "wake"]
