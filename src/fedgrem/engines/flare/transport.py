"""Two ways to carry an order to a site over NVFlare: pushed, which is fast, and polled, which is public API."""

import uuid
from typing import Any

from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReservedTopic, ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal

from fedgrem.engines.flare.messages import Letter, envelope, opened
from fedgrem.engines.remote.engine import Answer
from fedgrem.engines.remote.wire import Fields
from fedgrem.errors import MessageError, PausedError

REFUSED = {ReturnCode.TASK_RESULT_FILTER_ERROR, ReturnCode.UNSAFE_JOB, ReturnCode.TASK_DATA_FILTER_ERROR}
"""The site's own policy stopped the job or the answer: asking again does not help."""


class Push:
    """Sends each order straight to the site's worker: a round takes as long as the slowest site and the wire."""

    def __init__(self, server_engine: Any, abort: Signal) -> None:
        self._engine, self._abort = server_engine, abort

    def ask(self, site: str, task: str, exchange: int, order: Fields, timeout: float) -> Answer:
        """The answer of one site."""
        _check_running(self._abort)
        request = envelope(Letter(exchange, order))
        request.set_header(ReservedHeaderKey.TASK_NAME, task)
        request.set_header(ReservedHeaderKey.TASK_ID, str(uuid.uuid4()))
        with self._engine.new_context() as ctx:
            replies = self._engine.send_aux_request(
                targets=[site], topic=ReservedTopic.DO_TASK, request=request, timeout=timeout, fl_ctx=ctx, optional=True
            )
        _check_running(self._abort)
        return answer_from((replies or {}).get(site))


class Poll:
    """Leaves each order where the site's worker comes to fetch it: slower, and nothing but NVFlare's public API."""

    def __init__(self, controller: Controller, server_engine: Any, abort: Signal) -> None:
        self._controller, self._engine, self._abort = controller, server_engine, abort

    def ask(self, site: str, task: str, exchange: int, order: Fields, timeout: float) -> Answer:
        """The answer of one site."""
        _check_running(self._abort)
        job = Task(name=task, data=envelope(Letter(exchange, order)), timeout=max(1, round(timeout)))
        with self._engine.new_context() as ctx:
            self._controller.send_and_wait(task=job, fl_ctx=ctx, targets=[site], abort_signal=self._abort)
        _check_running(self._abort)
        if job.completion_status != TaskCompletionStatus.OK or not job.client_tasks:
            return Answer(None, trouble=f"the task was not fetched or answered: {job.completion_status}")
        return answer_from(job.client_tasks[-1].result)


def answer_from(reply: Shareable | None) -> Answer:
    """What a reply means for the engine."""
    if not isinstance(reply, Shareable):
        return Answer(None, trouble="not connected")
    code = reply.get_return_code(ReturnCode.OK)
    if code in REFUSED:
        return Answer(None, declined="guard")
    if code != ReturnCode.OK:
        return Answer(None, trouble=str(code))
    try:
        letter = opened(reply)
    except MessageError as error:
        # As fields that fit no declaration: the center's check then names the site and says what is wrong.
        return Answer({"malformed": {"bytes": str(error).encode()}})
    return Answer(letter.fields, letter.exchange, letter.declined)


def _check_running(abort: Signal) -> None:
    if abort.triggered:
        raise PausedError("paused: the job was stopped; go on with `fedgrem sites resume STUDY`.")
