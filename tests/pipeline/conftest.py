from tests.spark_world import cluster, spark

__all__ = ["cluster", "spark"]
