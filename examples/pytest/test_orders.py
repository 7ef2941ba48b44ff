"""A test suite that used to start a Kafka container, with a real broker in the test process instead.

Run it in a clone after `make install`:  .venv/bin/python -m pytest examples/pytest
The fixtures `tidelog_cluster` and `tidelog_topic` come with Tidelog's pytest plugin; nothing else is set up.
"""

from __future__ import annotations

import json

from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.testing import Cluster


def place_order(producer: Producer, topic: str, order_id: int, dish: str) -> None:
    """The code under test: publishes an order, keyed by its id."""
    producer.produce(topic, key=str(order_id), value=json.dumps({"id": order_id, "dish": dish}))


def read_all(bootstrap_servers: str, topic: str, count: int) -> list[dict[str, object]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        orders: list[dict[str, object]] = []
        while len(orders) < count:
            message = consumer.poll(10)
            assert message is not None and message.error() is None, "the orders did not arrive"
            orders.append(json.loads(message.value()))
        return orders
    finally:
        consumer.close()


def test_orders_arrive_in_order(tidelog_cluster: Cluster, tidelog_topic: str) -> None:
    producer = Producer({"bootstrap.servers": tidelog_cluster.bootstrap_servers, "enable.idempotence": True})
    for order_id, dish in enumerate(["pizza", "sushi", "curry"]):
        place_order(producer, tidelog_topic, order_id, dish)
    assert producer.flush(10) == 0

    orders = read_all(tidelog_cluster.bootstrap_servers, tidelog_topic, 3)

    assert [order["dish"] for order in orders] == ["pizza", "sushi", "curry"]


def test_orders_survive_a_restart() -> None:
    with Cluster(topics=["orders"]) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        place_order(producer, "orders", 1, "ramen")
        assert producer.flush(10) == 0

        cluster.restart()

        assert read_all(cluster.bootstrap_servers, "orders", 1) == [{"id": 1, "dish": "ramen"}]
