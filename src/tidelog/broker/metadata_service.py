"""Changes of the cluster's metadata on behalf of this broker's clients: asked of the controller, answered when they are true here, too.

The controller may be in this process: then a request is decided here, and its answer waits until this broker acts by it, so that a topic is ready for use when its creator hears of it. Otherwise
requests are forwarded as they came (`forwarding.py`). A request about thousands of topics is decided in a thread, against an image that never changes; if another change was faster, it
is decided once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, TypeVar

from tidelog.broker.threads import called_back
from tidelog.cluster.controller_node import ControllerNode
from tidelog.cluster.node import ClusterNode
from tidelog.controller.controller import Controller
from tidelog.controller.image import MetadataImage
from tidelog.controller.result import ControllerResult
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

R = TypeVar("R")
LARGE_REQUEST_ENTRIES = 200
"""A request about more topics or resources than this is decided in a thread: it may take a second and more."""

RETRY_SECONDS: Final = 0.05
REQUEST_SECONDS: Final = 5.0
_TRY_AGAIN: Final = frozenset((ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_CONTROLLER))


class MetadataService:
    def __init__(self, node: ClusterNode, executor: Executor) -> None:
        self._node = node
        self._executor = executor
        self._turn = asyncio.Lock()

    @property
    def image(self) -> MetadataImage:
        """What this broker acts by, and all that clients are told comes from it."""
        acted_by = self._node.replicas.image
        return self._node.metadata.image if acted_by is None else acted_by

    async def submit(self, decide: Callable[[Controller], ControllerResult[R]], *, entries: int = 1) -> R:
        """Decide on a request about so many `entries`, make the decision durable and true, and return the answer to send."""
        if entries <= LARGE_REQUEST_ENTRIES:
            return await self._submit(decide)
        async with self._turn:
            return await self._submit(await self._decided_in_thread(decide))

    async def ask_controller(self, request: Any, *, timeout_s: float = 30.0) -> Any:
        """One of this broker's own requests, to whoever is the active controller, tried until it is answered."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            response = await self._ask_once(request)
            code = ErrorCode.NETWORK_EXCEPTION if response is None else getattr(response, "error_code", 0)
            if code not in _TRY_AGAIN:
                return response
            if asyncio.get_running_loop().time() >= deadline:
                raise RequestError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"no controller has answered for {timeout_s:.0f} s: the cluster may have lost the majority of its controllers",
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def when(self, is_true: Callable[[MetadataImage], bool]) -> None:
        """Wait until this broker acts by metadata of which `is_true` says so."""
        await called_back(partial(self._node.replicas.when, is_true))

    async def _ask_once(self, request: Any) -> Any | None:
        leader_id = self._node.metadata.leader_id
        if leader_id is None:
            return None
        answer: asyncio.Future[Any | None] = asyncio.get_running_loop().create_future()
        self._node.to_controller.ask(
            leader_id, request, lambda response: _set(answer, response), timeout_s=REQUEST_SECONDS
        )
        return await answer

    async def _decided_in_thread(
        self, decide: Callable[[Controller], ControllerResult[R]]
    ) -> Callable[[Controller], ControllerResult[R]]:
        controller = self._node.controller.service.active if self._node.controller is not None else None
        if controller is None:
            return decide
        image = controller.image
        result = await asyncio.get_running_loop().run_in_executor(self._executor, decide, controller)
        return lambda later: result if later.image is image else decide(later)

    async def decide(self, request: Any) -> Any:
        """A request that the controller of this node answers by its own rules for it."""
        return await self._answer_of(lambda controller, answered: controller.handle(request, answered))

    async def _submit(self, decide: Callable[[Controller], ControllerResult[R]]) -> R:
        return await self._answer_of(lambda controller, answered: controller.submit(decide, answered))

    async def _answer_of(
        self, ask: Callable[[ControllerNode, Callable[[R | RequestError], None]], None]
    ) -> R:
        node = self._node
        if node.controller is None:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "this node is no controller")
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def answered(response: R | RequestError) -> None:
            if answer.done():
                return  # nobody waits any more
            if isinstance(response, RequestError):
                answer.set_exception(response)
            elif not node.settings.is_broker:
                answer.set_result(response)
            else:
                node.replicas.when_at(node.metadata.offset, lambda: _set(answer, response))

        ask(node.controller, answered)
        return await answer


def _set(answer: asyncio.Future[R], response: R) -> None:
    if not answer.done():
        answer.set_result(response)
