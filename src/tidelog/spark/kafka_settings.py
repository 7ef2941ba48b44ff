"""Settings of a Java client, as `kafka.*` options of source and sink bring them: what they are called here, and which of them must be refused.

Those that decide who is spoken to and how cannot be passed over: reading or writing on without the protection that was asked for would be a lie. Pure.
"""

from __future__ import annotations

from typing import Final

KAFKA: Final = "kafka."
"""What Spark's users write before a setting of the client."""
_OUR_NAMES: Final = {"socket.connection.setup.timeout.ms": "connect.timeout.ms"}
_SECURITY: Final = ("sasl.", "ssl.", "security.")


def our_name(name: str) -> str:
    """Of a setting that Java's clients call by this name."""
    return _OUR_NAMES.get(name, name)


def is_security(name: str) -> bool:
    return name.startswith(_SECURITY)


def why_refused(name: str, value: str) -> str | None:
    """Of a setting for security; None: it asks for what is done anyway."""
    if name == "security.protocol" and value.strip().upper() == "PLAINTEXT":
        return None
    return (
        f"{KAFKA}{name} cannot be honoured: this client speaks PLAINTEXT only, without a password, and records would go without the protection that was asked for. "
        "Use a PLAINTEXT listener, or Spark's own Kafka connector"
    )
