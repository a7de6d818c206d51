"""The site's own launcher: a worker that dies by a signal is started again, and rejoins the running job."""

import threading
import time
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher

MOST_RESTARTS = 5
SETTLE = 1.0
"""Seconds between the death of a worker and its next life."""


class RestartingHandle(JobHandleSpec):
    """A worker process that may have several lives; NVFlare sees one that goes on."""

    def __init__(self, launch: Any) -> None:
        super().__init__()
        self._launch = launch
        self._lock = threading.Lock()
        self._worker = launch()
        self._stopped = False
        self._over = False
        self._restarts = 0

    def terminate(self) -> None:
        """End the worker for good."""
        with self._lock:
            self._stopped = True
            self._worker.terminate()

    def poll(self) -> Any:
        """How the worker ended; unknown while it lives or is about to live again."""
        return self._worker.poll() if self._over else JobReturnCode.UNKNOWN

    def wait(self) -> None:
        """Until the worker has ended for good."""
        while True:
            self._worker.wait()
            if not self._died_by_signal() or self._restarts >= MOST_RESTARTS:
                break
            time.sleep(SETTLE)
            with self._lock:
                if self._stopped:
                    break
                self._restarts += 1
                self._worker = self._launch()
        self._over = True

    def _died_by_signal(self) -> bool:
        code = self._worker.adapter.poll()
        return not self._stopped and code is not None and code < 0


class RestartingLauncher(ClientProcessJobLauncher):
    """Starts workers as NVFlare does, and again if they are killed."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the worker of a job."""
        start = super().launch_job
        return RestartingHandle(lambda: start(job_meta, fl_ctx))
