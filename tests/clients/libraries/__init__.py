"""The client libraries under test, each behind the same few calls."""

from __future__ import annotations

from tests.clients.libraries.aio import AiokafkaLibrary
from tests.clients.libraries.base import Library
from tests.clients.libraries.confluent import ConfluentLibrary
from tests.clients.libraries.kafka_python import KafkaPythonLibrary
from tests.clients.libraries.kcat import KcatLibrary

LIBRARIES: tuple[Library, ...] = (
    ConfluentLibrary(),
    KafkaPythonLibrary(),
    AiokafkaLibrary(),
    KcatLibrary(),
)
