"""What users and our own tests need to run Tidelog inside a test. Nothing in the product imports this package."""

from __future__ import annotations

from tidelog.testing.cluster import Cluster

__all__ = ["Cluster"]
