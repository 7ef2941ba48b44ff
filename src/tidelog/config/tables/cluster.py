"""Who this node is, whom it forms a cluster with, and where the cluster's metadata lives.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import NO_DEFAULT, Setting
from tidelog.config.tables.short import (
    ACTS,
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    REFUSED,
    STRING,
)
from tidelog.config.validators import VOTERS, at_least, items

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("node.id", INT, 0, at_least(0), "Number of this node, unique in the cluster.", effect=ACTS, kafka_default=NO_DEFAULT, reason="One broker starts without any configuration; node ids count from 0."),
    Setting("broker.id", INT, -1, None, "Older name of node.id. When both are given they must agree.", effect=ACTS),
    Setting("process.roles", LIST, ("broker", "controller"), items("broker", "controller"), "What this process is: broker, controller or both.", effect=ACTS, kafka_default=NO_DEFAULT, reason="One node is a whole cluster unless it is told otherwise."),
    Setting("broker.rack", STRING, None, None, "Name of the rack, zone or host this broker stands in. Clients see it in Metadata, and replicas are spread over it.", effect=ACTS),
    Setting("broker.heartbeat.interval.ms", INT, 250, None, "How often a broker tells the controller that it is alive.", effect=ACTS, kafka_default=2000, reason="Eight heartbeats fit into a session. They have a connection of their own and do not wait for each other's answers."),
    Setting("broker.session.timeout.ms", INT, 2000, None, "A broker that has not been heard for this long is fenced and loses its leaderships. One whose process has died is fenced at once, when its connections break and its port refuses new ones.", effect=ACTS, kafka_default=9000, reason="Partitions of a broker that is silent (paused, cut off, without power) get other leaders within two seconds. Time in which the controller itself did not run counts for nobody."),
    Setting("initial.broker.registration.timeout.ms", INT, 60_000, None, "How long a starting broker tries to register with the controller before it gives up."),
    Setting("controlled.shutdown.enable", BOOLEAN, True, None, "Hand leadership to other brokers before stopping."),
    Setting("controller.listener.names", LIST, (), None, "Names of the listeners that only controllers talk on. Clients are never served there.", effect=ACTS, kafka_default=NO_DEFAULT, reason="A node on its own needs no listener for other controllers."),
    Setting("controller.socket.timeout.ms", INT, 30_000, None, "How long a broker waits for the controller's answer on one connection."),
    Setting("controller.quorum.voters", LIST, (), VOTERS, "The controllers of a fixed quorum, as id@host:port, separated by commas.", effect=ACTS),
    Setting("controller.quorum.bootstrap.servers", LIST, (), None, "Addresses (host:port) where the members of a dynamic quorum can be found.", effect=ACTS),
    Setting("controller.quorum.auto.join.enable", BOOLEAN, False, None, "Let a new controller join the voters by itself."),
    Setting("controller.quorum.append.linger.ms", INT, 25, at_least(0), "How long the active controller gathers metadata records before it writes them as one batch."),
    Setting("controller.quorum.election.backoff.max.ms", INT, 250, at_least(0), "Longest pause of a candidate between two elections it did not win.", effect=ACTS, kafka_default=1000, reason="As long as there is no controller, no partition gets a new leader."),
    Setting("controller.quorum.election.timeout.ms", INT, 500, at_least(0), "How long a candidate waits for votes before it starts a new election.", effect=ACTS, kafka_default=1000, reason="As long as there is no controller, no partition gets a new leader."),
    Setting("controller.quorum.fetch.max.bytes", INT, 1_048_576, at_least(1), "Most bytes of metadata log in one fetch between controllers.", effect=ACTS),
    Setting("controller.quorum.fetch.snapshot.max.bytes", INT, 1_048_576, at_least(1), "Most bytes of a metadata snapshot in one fetch.", effect=ACTS),
    Setting("controller.quorum.fetch.timeout.ms", INT, 1500, at_least(0), "A follower that cannot fetch from the quorum's leader for this long becomes a candidate; a leader that a majority does not fetch from resigns.", effect=ACTS, kafka_default=2000, reason="With it and half of a session, a paused node that was the active controller as well is replaced in less than three seconds. Pre-votes make a false alarm harmless."),
    Setting("controller.quorum.request.timeout.ms", INT, 1000, at_least(0), "How long a quorum request may take before it counts as failed.", effect=ACTS, kafka_default=2000, reason="Less than the fetch timeout, so that one that got lost is sent again before anybody looks for another leader."),
    Setting("controller.quorum.retry.backoff.ms", INT, 20, at_least(0), "Pause before a failed quorum request is sent again.", effect=ACTS),
    Setting("controller.performance.always.log.threshold.ms", LONG, 2000, at_least(0), "Controller events slower than this are always logged.", internal=True),
    Setting("controller.performance.sample.period.ms", LONG, 60_000, at_least(100), "How often the controller reports how long its events took.", internal=True),
    Setting("metadata.log.dir", STRING, None, None, "Directory of the metadata log. Unset: the first of log.dirs."),
    Setting("metadata.log.segment.bytes", INT, 1_073_741_824, at_least(8388608), "Size at which a segment of the metadata log is closed."),
    Setting("metadata.log.segment.ms", LONG, 604_800_000, None, "Age at which a segment of the metadata log is closed."),
    Setting("metadata.log.max.record.bytes.between.snapshots", LONG, 20_971_520, at_least(1), "Bytes of new metadata records after which a snapshot is written, if it was not due before: one is taken when there are more new records than things in the cluster.", effect=ACTS),
    Setting("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, at_least(0), "Longest time between two metadata snapshots while records arrive. 0 switches the rule off.", effect=ACTS),
    Setting("metadata.max.idle.interval.ms", INT, 500, at_least(0), "How often an idle active controller writes a no-op record. 0 switches it off."),
    Setting("metadata.max.retention.bytes", LONG, 104_857_600, None, "Size of metadata log and snapshots above which old ones are removed."),
    Setting("metadata.max.retention.ms", LONG, 604_800_000, None, "Age above which old metadata segments and snapshots are removed."),
    Setting("internal.metadata.delete.delay.millis", LONG, 60_000, None, "Delay between marking metadata files as deleted and removing them.", internal=True),
    Setting("internal.metadata.log.segment.bytes", INT, None, None, "Metadata segment size for tests; overrides metadata.log.segment.bytes.", internal=True),
    Setting("internal.metadata.max.batch.size.in.bytes", INT, 8_388_608, None, "Largest batch that the metadata log writes.", internal=True),
    Setting("server.max.startup.time.ms", LONG, LONG_MAX, at_least(0), "Longest time a start may take before it is given up.", internal=True),
    Setting("unstable.api.versions.enable", BOOLEAN, False, None, "Advertise API versions that are not final yet. Tidelog advertises final versions only.", internal=True),
    Setting("unstable.feature.versions.enable", BOOLEAN, False, None, "Accept feature levels that are not final yet.", internal=True),
    Setting("leader.imbalance.check.interval.seconds", LONG, 300, at_least(1), "How often the controller looks for leaders that are not the preferred replica.", effect=ACTS),
    Setting("auto.leader.rebalance.enable", BOOLEAN, True, None, "Give leadership back to preferred replicas in the background.", effect=ACTS),
    Setting("unclean.leader.election.interval.ms", LONG, 300_000, at_least(1), "How often the controller looks for partitions that wait for an unclean election.", internal=True),
    Setting("create.topic.policy.class.name", CLASS, None, None, "A Java class that judges new topics. Tidelog cannot run it and refuses to ignore it.", effect=REFUSED),
    Setting("alter.config.policy.class.name", CLASS, None, None, "A Java class that judges configuration changes. Tidelog cannot run it and refuses to ignore it.", effect=REFUSED),
    Setting("config.providers", LIST, (), None, "Java classes that fill in placeholders in configuration values. Tidelog cannot run them.", update=CLUSTER_WIDE, effect=REFUSED),
    Setting("background.threads", INT, 10, at_least(1), "Threads for background work in Kafka. Tidelog schedules such work on its own.", update=CLUSTER_WIDE),
)
# fmt: on
