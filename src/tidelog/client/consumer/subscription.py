"""What a consumer reads: topics by name, all that match a pattern, or partitions that were assigned by hand; never two of these at a time. Pure.

A pattern given as text to a group of the consumer protocol is the server's business (RE2, KIP-848). Any other one is matched here, against the names of all topics, as
often as the metadata is refreshed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tidelog.client.metadata import TopicInfo


class Subscription:
    def __init__(self, *, server_matches: bool, exclude_internal: bool) -> None:
        self._server_matches = server_matches
        self._exclude_internal = exclude_internal
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.server_pattern: str | None = None
        self.is_by_hand = False

    @property
    def is_to_topics(self) -> bool:
        return bool(self.topics or self.pattern or self.server_pattern)

    def subscribe(
        self,
        topics: Iterable[str],
        pattern: str | re.Pattern[str] | None,
        known: Mapping[str, TopicInfo],
    ) -> None:
        """Replaces the one of before."""
        wanted = frozenset([topics] if isinstance(topics, str) else topics)
        if bool(wanted) == (pattern is not None):
            raise ValueError("subscribe takes either topics or a pattern")
        if self.is_by_hand:
            raise ValueError("partitions were assigned by hand: unsubscribe first")
        self.server_pattern = self.pattern = None
        self.topics = wanted
        if isinstance(pattern, str) and self._server_matches:
            self.server_pattern = pattern
        elif pattern is not None:
            self.pattern = re.compile(pattern)
            self.match(known)

    def assign(self) -> None:
        if self.is_to_topics:
            raise ValueError("the consumer is subscribed to topics: unsubscribe first")
        self.is_by_hand = True

    def clear(self) -> None:
        self.topics, self.pattern, self.server_pattern = frozenset(), None, None
        self.is_by_hand = False

    def match(self, known: Mapping[str, TopicInfo]) -> bool:
        """Topics have come or gone. True if that changes what is read."""
        if self.pattern is None:
            return False
        matching = frozenset(
            name
            for name, info in known.items()
            if not info.error_code
            and self.pattern.fullmatch(name)
            and not (info.is_internal and self._exclude_internal)
        )
        changed, self.topics = matching != self.topics, matching
        return changed
