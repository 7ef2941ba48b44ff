"""Measurements of a broker from the outside, beside Apache Kafka on the same machine."""
