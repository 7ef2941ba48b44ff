"""The way to the active controller, which may be in this very process: then nothing goes over a socket.

Implements `ports.Peers`. Answers come in a later turn of the loop, as they do from other nodes: nobody who asks has to expect an answer before `ask` returns. A refusal of the
local controller becomes the response that another node would have sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidelog.errors import RequestError
from tidelog.ports import Peers, Scheduler
from tidelog.wire.api import spec_of_request


class Handler(Protocol):
    def handle(self, request: Any, answered: Callable[[Any], None]) -> None: ...


class LocalFirst:
    def __init__(self, node_id: int, local: Handler | None, peers: Peers, scheduler: Scheduler) -> None:
        self._node_id = node_id
        self._local = local
        self._peers = peers
        self._scheduler = scheduler

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        if node_id != self._node_id or self._local is None:
            self._peers.ask(node_id, request, answered, timeout_s=timeout_s)
            return
        local = self._local

        def later(response: Any) -> None:
            told = refusal(request, response) if isinstance(response, RequestError) else response
            self._scheduler.call_soon(lambda: answered(told))

        self._scheduler.call_soon(lambda: local.handle(request, later))


def refusal(request: Any, error: RequestError) -> Any | None:
    """The response that says nothing but an error. None, as if there were no answer, where a response has no place for one."""
    response = spec_of_request(type(request)).response_class()
    if not hasattr(response, "error_code"):
        return None
    response.error_code = error.code
    if hasattr(response, "error_message"):
        response.error_message = error.message
    return response
