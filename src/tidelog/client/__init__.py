"""Kafka's protocol from the client's side: connections, cluster metadata, administration, produce and fetch.

The layers, bottom up: `connection` (one socket), `cluster` (who leads what, retries), then `admin`, `offsets`, `produce`
and `fetch`. Works with any Kafka broker. Nothing is imported here: a command pays for what it uses.
"""
