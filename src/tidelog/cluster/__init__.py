"""One node's part in a cluster, between the pure packages below and the broker above.

Ties quorum, controller and replication together: the metadata as this node knows it, the controller if this node is the active one, the broker's registration
and heartbeats. Callback style on ports (`tidelog.ports`), without asyncio, sockets, threads or clocks of its own: the broker runs it on an event loop, the
simulation on a heap of events, and both run the same code.
"""
