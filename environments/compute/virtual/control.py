"""The words between the server and a workspace process on the process's control socket, one message each.

From the server: ``WORKSPACE`` + JSON ``{workspace, memoryMib, slot, stage}`` with the ledger as a handle, once;
``CALL`` + a header's bytes with these handles: the client's connection; for ``CALL_OUT``, a call with a way out, the
line on which it asks for connections; and when the header is longer than ``INLINE`` a file with it. ``CANCEL`` + a
call's id. From the process, when a call is over: ``AGAIN`` or ``ENDED``.

On the line of a way out, from the process: ``CONNECTION``. From the server: ``CONNECTION`` with one as a handle, or
``NONE_LEFT``. The line ends with the call.
"""

from __future__ import annotations

WORKSPACE, CALL, CALL_OUT, CANCEL = b"W", b"C", b"O", b"K"
AGAIN, ENDED = b"+", b"-"
CONNECTION, NONE_LEFT = b"c", b"n"
INLINE = 64 * 1024
SHORT = 2048  # more than any message that is no call
