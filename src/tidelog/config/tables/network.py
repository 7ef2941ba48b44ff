"""Listeners, sockets, connections and the size of requests.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import ACTS, CLUSTER_WIDE, INT, INT_MAX, LIST, LONG, REFUSED, STRING
from tidelog.config.validators import CONNECTION_LIMITS, SOME, at_least, one_of

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("listeners", LIST, ("PLAINTEXT://127.0.0.1:9092",), SOME, "Where this node listens: NAME://host:port, separated by commas. An empty host means every interface; port 0 takes a free one.", effect=ACTS, kafka_default=("PLAINTEXT://:9092",), reason="A broker without authentication is reachable from its own machine only, until someone decides otherwise."),
    Setting("advertised.listeners", LIST, None, None, "The addresses clients are told to connect to. Unset: those of listeners, without the controllers' ones.", effect=ACTS),
    Setting("listener.security.protocol.map", STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None, "Which security protocol each listener name stands for, as NAME:PROTOCOL. Tidelog serves PLAINTEXT so far.", effect=ACTS),
    Setting("inter.broker.listener.name", STRING, None, None, "The listener that brokers use among themselves.", effect=ACTS),
    Setting("security.inter.broker.protocol", STRING, "PLAINTEXT", one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "Security protocol between brokers when inter.broker.listener.name is not given.", effect=REFUSED),
    Setting("early.start.listeners", LIST, None, None, "Listeners that open before the authorizer is ready."),
    Setting("socket.listen.backlog.size", INT, 1024, at_least(1), "Connections that may wait in the operating system's queue until they are accepted.", effect=ACTS, kafka_default=50, reason="One event loop accepts between requests. When a crowd comes back after a restart, whoever finds the queue full tries again only after a second."),
    Setting("socket.receive.buffer.bytes", INT, -1, None, "Receive buffer (SO_RCVBUF) of accepted sockets. -1 leaves it to the operating system.", effect=ACTS, kafka_default=102_400, reason="The kernel sizes the window by itself, and takes large produce requests much faster than through 100 KiB."),
    Setting("socket.send.buffer.bytes", INT, -1, None, "Send buffer (SO_SNDBUF) of accepted sockets. -1 leaves it to the operating system, but for clients on this machine, which get 1 MiB (as far as net.core.wmem_max allows).", effect=ACTS, kafka_default=102_400, reason="Over a network the kernel sizes it by itself, and takes a large answer in one piece instead of many. On one machine, sender and reader keep a core each busy when a full buffer paces them."),
    Setting("socket.request.max.bytes", INT, 104_857_600, at_least(1), "Largest request that is read. A connection that announces a bigger one is closed.", effect=ACTS),
    Setting("socket.connection.setup.timeout.ms", LONG, 10_000, None, "How long opening a connection to another node may take at first."),
    Setting("socket.connection.setup.timeout.max.ms", LONG, 30_000, None, "Upper bound of the growing time that opening a connection to another node may take."),
    Setting("connections.max.idle.ms", LONG, 600_000, None, "A connection without any request for this long is closed.", effect=ACTS),
    Setting("connections.max.held.bytes", LONG, 268_435_456, at_least(1_048_576), "Bytes that half received requests and untaken answers may hold over all connections of a listener. Beyond it, connections that have been stuck for longest are closed.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("connection.failed.authentication.delay.ms", INT, 100, at_least(0), "Pause before a connection that failed to authenticate is closed."),
    Setting("max.connections", INT, INT_MAX, at_least(0), "Connections this broker serves at the same time, over all listeners.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("max.connections.per.ip", INT, INT_MAX, at_least(0), "Connections that one client address may hold.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("max.connections.per.ip.overrides", STRING, "", CONNECTION_LIMITS, "Exceptions to max.connections.per.ip, as host:count separated by commas.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("max.connection.creation.rate", INT, INT_MAX, at_least(0), "New connections per second above which further ones are delayed.", update=CLUSTER_WIDE),
    Setting("num.network.threads", INT, 3, at_least(1), "Network threads in Kafka. Tidelog serves all connections from one event loop per node.", update=CLUSTER_WIDE),
    Setting("num.io.threads", INT, 8, at_least(1), "Request threads in Kafka. Tidelog handles requests on the event loop.", update=CLUSTER_WIDE),
    Setting("queued.max.requests", INT, 500, at_least(1), "Requests that may wait for Kafka's request threads. Tidelog bounds what each connection may have under way instead."),
    Setting("queued.max.request.bytes", LONG, -1, None, "Bytes of requests that may wait for Kafka's request threads. -1 means no limit."),
    Setting("request.timeout.ms", INT, 30_000, None, "How long this broker, as a client of other nodes, waits for an answer."),
    Setting("fetch.max.bytes", INT, 57_671_680, at_least(1024), "Most bytes one fetch answer holds, whatever the client asks for. A first batch that is bigger is still returned.", effect=ACTS),
    Setting("fetch.purgatory.purge.interval.requests", INT, 1000, None, "Finished fetches after which Kafka tidies its waiting list. Tidelog's waiting list keeps none."),
    Setting("producer.purgatory.purge.interval.requests", INT, 1000, None, "Finished produces after which Kafka tidies its waiting list. Tidelog's waiting list keeps none."),
    Setting("delete.records.purgatory.purge.interval.requests", INT, 1, None, "Finished DeleteRecords after which Kafka tidies its waiting list. Tidelog's waiting list keeps none."),
    Setting("share.fetch.purgatory.purge.interval.requests", INT, 1000, None, "Finished share fetches after which Kafka tidies its waiting list."),
    Setting("max.incremental.fetch.session.cache.slots", INT, 1000, at_least(0), "Incremental fetch sessions (KIP-227) that are remembered. 0 switches sessions off.", effect=ACTS),
    Setting("max.request.partition.size.limit", INT, 2000, at_least(1), "Most partitions in one DescribeTopicPartitions answer.", effect=ACTS),
    Setting("telemetry.max.bytes", INT, 1_048_576, at_least(1), "Largest metrics payload that is taken from a client."),
)
# fmt: on
