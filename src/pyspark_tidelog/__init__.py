"""The name under which Spark finds `format("tidelog")`: it looks for packages called `pyspark_*`. Nothing else is here."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
