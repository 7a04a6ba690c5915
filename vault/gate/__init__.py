"""The egress gate: the only way out of a sandbox, and the place where hidden Secrets meet a request. Without Django.

* :class:`~vault.gate.server.Gate` is a proxy. What it must know of rows it asks a
  :class:`~vault.gate.doorkeeper.Doorkeeper`; names, addresses and certificates are handed in as a
  :class:`~vault.gate.network.Network` and an :class:`~vault.gate.authority.Authority`.
* ``CONNECT host:443`` to a host without a Secret passes through untouched (``passing``); to one with a Secret the gate
  ends TLS, sets headers and verifies the real server (``bound``). ``http://`` requests in absolute form go to port 80
  and carry no Secret (``plain``).
* Whatever is refused is answered with one of the reasons of :data:`~vault.gate.doorkeeper.Reason`, counted and thinned
  (``refusals``), and handed back to the Doorkeeper.
* No log line, answer or exception of this package holds a token, a header's value or a resolved address.
"""
