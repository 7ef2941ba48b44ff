"""`spark.read.format("tidelog")` in a real Spark, compared with what was sent."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tidelog.client.blocking import Producer
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

RECORDS = [
    (
        b"key %d" % (number % 7) if number % 5 else None,
        b"value %d" % number if number % 11 else None,
        number % 3,
    )
    for number in range(1000)
]


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> str:
    name = cluster.create_topic("orders", 4)  # one partition stays empty
    with Producer(cluster.bootstrap_servers, compression_type="lz4") as producer:
        for key, value, partition in RECORDS:
            producer.send(
                name, value, key=key, partition=partition, headers=[("n", b"1")] if value is None else ()
            )
        producer.flush()
    return name


def expected() -> list[tuple[bytes | None, bytes | None, int, int]]:
    counts = [0, 0, 0]
    found = []
    for key, value, partition in RECORDS:
        found.append((key, value, partition, counts[partition]))
        counts[partition] += 1
    return sorted(found, key=lambda row: row[2:])


def reader(spark: Any, cluster: Cluster, **options: str) -> Any:
    return spark.read.format("tidelog").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders", **options}
    )


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(
        ((_bytes(row.key), _bytes(row.value), row.partition, row.offset) for row in frame.collect()),
        key=lambda row: row[2:],
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def test_what_was_sent_is_read_with_and_without_filters(spark: Any, cluster: Cluster, orders: str) -> None:
    frame = reader(spark, cluster, includeHeaders="true", minPartitions="6").load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert rows(frame) == expected()
    headers = frame.groupBy(f.col("value").isNull(), f.col("headers")[0]["key"]).count().collect()
    dead = sum(value is None for _, value, _ in RECORDS)
    assert sorted(map(tuple, headers)) == [(False, None, 1000 - dead), (True, "n", dead)]
    wanted = (f.col("partition") == 1) & f.col("offset").between(10, 19) & (f.col("timestamp") > "2020-01-01")
    some = [row for row in expected() if row[2] == 1 and 10 <= row[3] <= 19]
    for is_pushed in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", is_pushed)
        try:
            filtered = reader(spark, cluster).load().filter(wanted)
            assert rows(filtered) == some
            plan = filtered._jdf.queryExecution().executedPlan().toString()
            assert ("Filter" in plan) and (
                ("offset#" in plan.split("Filter", 1)[1].split("\n")[0]) is (is_pushed == "false")
            )
            # Nothing is that late: with push-down there is nothing to plan tasks for (Spark makes one all the same).
            late = reader(spark, cluster, minPartitions="6").load().filter("timestamp > '2999-01-01'")
            assert late.rdd.getNumPartitions() == (1 if is_pushed == "true" else 6)
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_columns_options_and_sql(spark: Any, cluster: Cluster, orders: str) -> None:
    frame = reader(spark, cluster).schema("offset LONG, partition INT").load()
    assert frame.columns == ["offset", "partition"]
    assert frame.agg(f.sum("offset"), f.count("*")).first() == (sum(row[3] for row in expected()), 1000)
    assert reader(spark, cluster, columns="value").load().columns == ["value"]
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders_view USING tidelog OPTIONS "
        f"(`kafka.bootstrap.servers` '{cluster.bootstrap_servers}', subscribe 'orders', `kafka.max.poll.records` '5000')"
    )
    assert spark.sql("SELECT count(*) FROM orders_view WHERE key IS NULL").first()[0] == 200
    with pytest.raises(
        PySparkException, match="no option maxoffsetpertrigger; do you mean maxOffsetsPerTrigger"
    ):
        reader(spark, cluster, maxOffsetPerTrigger="5").load().count()
    with pytest.raises(PySparkException, match=r"kafka\.sasl\.mechanism cannot be honoured"):
        reader(spark, cluster, **{"kafka.sasl.mechanism": "PLAIN"}).load().count()
    with pytest.raises(PySparkException, match="subscribe names absent, which does not exist"):
        reader(spark, cluster, subscribe="absent").load().count()
