"""Coordinators: state machines over a log, moved from broker to broker by moving that log's leadership (D5)."""
