"""The center's side of a job: NVFlare starts it, the fit runs in it, and its folder has all that came of it.

Orders go to a site in two ways: pushed, which is fast, and polled, which is public API.
"""

import re
import uuid
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal

from fedgrem.engines.flare.messages import Letter, envelope, opened
from fedgrem.engines.remote.delivery import Answer
from fedgrem.engines.remote.progress import Diary
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.wire import Fields
from fedgrem.errors import FedGrEMError, InputError, MessageError, PausedError
from fedgrem.fit.spec import read_spec

RUNS = "runs"
"""In the server's kit: one folder per run, with its journal, its progress and its result."""


REMEDY = "see to its disk, then go on with `fedgrem sites resume STUDY`."
REFUSED = {ReturnCode.TASK_RESULT_FILTER_ERROR, ReturnCode.UNSAFE_JOB, ReturnCode.TASK_DATA_FILTER_ERROR}
"""The site's own policy stopped the job or the answer: asking again does not help."""


class CenterController(Controller):
    """Runs one fit. The same job submitted again goes on where its journal ends."""

    def __init__(
        self, spec: dict[str, Any], sites: list[str], run: str, rules: dict[str, Any], transport: str = "push"
    ) -> None:
        super().__init__(task_check_period=0.02)
        if transport not in WAYS:
            raise InputError(f"the job's transport is {transport!r}, expected one of {', '.join(WAYS)}.")
        self._spec, self._sites, self._run, self._rules, self._way = spec, sites, run, rules, transport

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Fit; whatever stops it is told in the run's folder, in words for the operator."""
        folder = run_folder(Path(fl_ctx.get_workspace().get_root_dir()), self._run)
        diary = Diary(folder)
        diary.write(kind="started", job=str(fl_ctx.get_job_id()))
        try:
            transport = WAYS[self._way](self, fl_ctx.get_engine(), abort_signal)
            fit_over_network(read_spec(self._spec), self._sites, transport, folder, Rules(**self._rules))
        except PausedError as error:
            diary.write(kind="paused", message=str(error))
        except FedGrEMError as error:
            diary.write(kind="failed", message=str(error))
        except OSError as error:
            what = f"{error.strerror or error}: {error.filename or folder}"
            diary.write(kind="paused", message=f"paused: the server cannot write ({what}); {REMEDY}")
        except Exception as error:
            diary.write(kind="failed", message=f"{type(error).__name__}: {error}; the server's log has the details.")
            raise

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to tidy."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late is not used."""


def run_folder(kit: Path, run: str) -> Path:
    """Where a run is kept; a name that leads elsewhere is refused."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", run):
        raise InputError(f"{run[:70]!r} is no name of a run; use small letters, digits and hyphens.")
    return kit / RUNS / run


class Push:
    """Sends each order straight to the site's worker: a round takes as long as the slowest site and the wire."""

    def __init__(self, controller: Controller, server_engine: Any, abort: Signal) -> None:
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


WAYS: dict[str, Any] = {"push": Push, "poll": Poll}


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
    return Answer(letter.fields, letter.exchange, letter.declined, place=letter.place[:16])


def _check_running(abort: Signal) -> None:
    if abort.triggered:
        raise PausedError("paused: the job was stopped; go on with `fedgrem sites resume STUDY`.")
