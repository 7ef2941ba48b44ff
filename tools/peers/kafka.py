"""Apache Kafka as a peer in the bench and as the referee of our files and answers.

Owns a single combined KRaft node on loopback, and the running of Kafka's own command line tools. Needs Java, and Maven
the first time; `PeerUnavailableError` says what is missing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.peers.maven import KAFKA_VERSION, OLD_CLIENT_VERSION, java, kafka_jars
from tools.peers.process import Peer, free_port

TOOL_SECONDS_MAX = 120.0
HEAP = "1g"  # what kafka-server-start gives a broker
SERVER_OPTIONS = (  # kafka-run-class's defaults, so that the peer is the stock one
    f"-Xms{HEAP}",
    f"-Xmx{HEAP}",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
CLUSTER_ID = "dGlkZWxvZy1wZWVyLTAwMA"

TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
# Classes that have moved between the two releases that we run.
OLD_TOOLS = TOOLS | {
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
}


def class_path(version: str = KAFKA_VERSION) -> str:
    return f"{kafka_jars(version)}/*"


def run_tool(
    tool: str,
    *arguments: str,
    version: str = KAFKA_VERSION,
    stdin: bytes | None = None,
    timeout_seconds: float = TOOL_SECONDS_MAX,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools by the name of its script; its logging noise is left out of stderr."""
    main_class = (OLD_TOOLS if version == OLD_CLIENT_VERSION else TOOLS)[tool]
    options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    done = subprocess.run(
        [java(), *options, "-cp", class_path(version), main_class, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout_seconds,
        check=False,
    )
    noise = ("slf4j", "log4j", "statuslogger")
    complaints = "\n".join(
        line
        for line in done.stderr.decode(errors="replace").splitlines()
        if not any(word in line.lower() for word in noise)
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(errors="replace"), complaints
    )


class KafkaPeer(Peer):
    """One combined broker and controller of Apache Kafka, stock settings but for addresses, paths and `overrides`."""

    def __init__(
        self,
        *,
        overrides: dict[str, str] | None = None,
        version: str = KAFKA_VERSION,
        name: str = "kafka",
        data_dir: Path | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(data_dir=data_dir, port=port)
        self.name = name
        self.version = version
        self._overrides = overrides or {}
        self._controller_port = free_port()

    @property
    def _properties_path(self) -> Path:
        return self.data_dir / "server.properties"

    def prepare(self) -> None:
        if self._properties_path.exists():
            return
        self._properties_path.write_text(
            "".join(f"{name}={value}\n" for name, value in self._settings().items())
        )
        format_command = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            CLUSTER_ID,
            "-c",
            str(self._properties_path),
        ]
        subprocess.run(
            [java(), "-cp", class_path(self.version), *format_command],
            capture_output=True,
            check=True,
        )

    def _settings(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        } | self._overrides

    def command(self) -> list[str]:
        return [
            java(),
            *SERVER_OPTIONS,
            "-cp",
            class_path(self.version),
            "kafka.Kafka",
            str(self._properties_path),
        ]
