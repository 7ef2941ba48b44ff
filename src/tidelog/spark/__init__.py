"""Spark reads and writes the log: `format("tidelog")`, batch and streaming, without a JAR.

What decides (options, offsets, ranges, limits, what counts as lost) is pure and knows neither Spark nor sockets.
"""
