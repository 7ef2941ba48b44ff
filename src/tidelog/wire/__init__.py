"""Bytes to messages and back: headers, the codec, the API table, error codes.

Knows nothing about logs, brokers or sockets; every other package may import it.
"""
