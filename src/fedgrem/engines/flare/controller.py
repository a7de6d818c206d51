"""The center's side of a job: NVFlare starts it, the fit runs in it, and its folder has all that came of it."""

import re
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedgrem.engines.flare.transport import Poll, Push
from fedgrem.engines.remote.engine import Transport
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import Diary, fit_over_network
from fedgrem.errors import FedGrEMError, InputError, PausedError
from fedgrem.fit.spec import read_spec

RUNS = "runs"
"""In the server's kit: one folder per run, with its journal, its progress and its result."""


class CenterController(Controller):
    """Runs one fit. The same job submitted again goes on where its journal ends."""

    def __init__(
        self, spec: dict[str, Any], sites: list[str], run: str, rules: dict[str, Any], transport: str = "push"
    ) -> None:
        super().__init__(task_check_period=0.02)
        self._spec, self._sites, self._run, self._rules, self._way = spec, sites, run, rules, transport

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Fit; whatever stops it is told in the run's folder, in words for the operator."""
        folder = run_folder(Path(fl_ctx.get_workspace().get_root_dir()), self._run)
        diary = Diary(folder)
        diary.write(kind="started", job=str(fl_ctx.get_job_id()))
        try:
            transport = self._transport(fl_ctx, abort_signal)
            fit_over_network(read_spec(self._spec), self._sites, transport, folder, Rules(**self._rules))
        except PausedError as error:
            diary.write(kind="paused", message=str(error))
        except FedGrEMError as error:
            diary.write(kind="failed", message=str(error))
        except Exception as error:
            diary.write(kind="failed", message=f"{type(error).__name__}: {error}; the server's log has the details.")
            raise

    def _transport(self, fl_ctx: FLContext, abort_signal: Signal) -> Transport:
        engine = fl_ctx.get_engine()
        if self._way == "push":
            return Push(engine, abort_signal)
        if self._way == "poll":
            return Poll(self, engine, abort_signal)
        raise InputError(f"the job's transport is {self._way!r}, expected 'push' or 'poll'.")

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
