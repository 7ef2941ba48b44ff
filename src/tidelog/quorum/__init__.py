"""The metadata quorum: Raft as KRaft does it, pull based.

`core` decides, one event at a time, and does nothing: it returns effects in an order in which what must be durable comes before what is
said. `driver` carries them out over ports. `roles` tells the story of a node's life; one file each has elections, leading, following and
snapshots. Records are bytes here: what they mean is the controller's business, except for leader changes.
"""
