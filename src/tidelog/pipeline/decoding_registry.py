"""Schemas by number: of a registry over HTTP (Confluent's REST form, which others serve, too), or of a directory with a file `<number>.avsc` for each.

A schema never changes under its number, so it is asked for once and kept in the flow's state. That a registry does not have one is not kept: it may come.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from tidelog.pipeline.decoding import DecodingError, write_atomically

TRIES: Final = 4
TIMEOUT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 8 << 20


class SchemaRegistry:
    def __init__(self, where: str, cache: str | None, sleep: Callable[[float], None] = time.sleep) -> None:
        """`cache`: a directory; None: in memory only."""
        self._where = where.rstrip("/")
        self._cache = cache
        self._sleep = sleep
        self._known: dict[int, Any] = {}

    def schema(self, number: int) -> Any | None:
        """As Avro's JSON, or None if there is none of that number. DecodingError if the registry cannot be asked, or has another kind."""
        if number not in self._known:
            found = self._kept(number)
            if found is None:
                return None
            self._known[number] = found
        return self._known[number]

    def _kept(self, number: int) -> Any | None:
        if not self._where.startswith(("http://", "https://")):
            return self._read(os.path.join(self._where, f"{number}.avsc"))
        if self._cache is None:
            return self._ask(number)
        path = os.path.join(self._cache, f"{number}.avsc")
        kept = self._read(path)
        if kept is None:
            kept = self._ask(number)
            if kept is not None:
                write_atomically(path, json.dumps(kept))
        return kept

    @staticmethod
    def _read(path: str) -> Any | None:
        try:
            with open(path) as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DecodingError(f"{path} is no Avro schema: {error}") from None

    def _ask(self, number: int) -> Any | None:
        for left in reversed(range(TRIES)):
            try:
                answer = self._get(f"{self._where}/schemas/ids/{number}")
                break
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code < 500 or left == 0:
                    raise DecodingError(
                        f"registry {self._where}: schema {number}: {error.code} {error.reason}"
                    ) from None
            except (OSError, http.client.HTTPException) as error:
                if left == 0:
                    raise DecodingError(
                        f"registry {self._where} does not answer: {error}; schema {number} is needed to go on"
                    ) from None
            self._sleep(0.5 * 2 ** (TRIES - 1 - left))
        return self._avro(number, answer)

    def _avro(self, number: int, answer: bytes) -> Any:
        try:
            found = json.loads(answer)
            kind, text = found.get("schemaType") or "AVRO", found["schema"]
            if kind != "AVRO":
                raise DecodingError(f"registry {self._where}: schema {number} is {kind}, not AVRO")
            if found.get("references"):
                raise DecodingError(
                    f"registry {self._where}: schema {number} refers to other schemas, which cannot be followed: put it into a directory as {number}.avsc with all of them in it"
                )
            return json.loads(text)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise DecodingError(
                f"registry {self._where}: what it says of schema {number} is no schema: {error!r}"
            ) from None

    def _get(self, url: str) -> bytes:
        parts = urllib.parse.urlsplit(url)
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
            url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            body: bytes = response.read(ANSWER_BYTES_MAX)
            return body
