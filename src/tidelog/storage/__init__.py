"""One replica on one disk: files, indexes, producer state, and the log made of them.

Nothing here knows sockets, other brokers or the wall clock: time, chance and the disk come in as arguments.
"""
