"""The words between the server and a workspace process on the process's control socket, one message each.

From the server: ``WORKSPACE`` + JSON ``{workspace, memoryMib, slot, stage}`` with the ledger as a handle, once;
``CALL`` + a header's bytes with the client's connection as a handle, and with the header in a second one when it is
longer than ``INLINE``; ``CANCEL`` + a call's id. From the process, when a call is over: ``AGAIN`` or ``ENDED``.
"""

from __future__ import annotations

WORKSPACE, CALL, CANCEL = b"W", b"C", b"K"
AGAIN, ENDED = b"+", b"-"
INLINE = 64 * 1024
SHORT = 2048  # more than any message that is no call
