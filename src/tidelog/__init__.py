"""Tidelog: a distributed commit log that speaks Apache Kafka's protocol and keeps its files."""

__version__ = "0.1.0.dev0"
