"""Cluster metadata: what topics, brokers, settings and features there are, and how that may change.

Nothing here does I/O, reads a clock or keeps a second copy of the truth: a handler looks at a `MetadataImage` and returns
records; only `replay` turns records into the next image (D5, I18).
"""
