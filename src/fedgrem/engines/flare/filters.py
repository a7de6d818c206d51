"""The guard as NVFlare sees it: a filter in the site's own privacy policy, which no job can take away."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedgrem.engines.flare.messages import Letter, envelope, opened
from fedgrem.engines.remote.guard import LOG, Guard
from fedgrem.engines.remote.site import REASONS, DeclinedError, read_settings
from fedgrem.errors import FedGrEMError, MessageError
from fedgrem.fit.spec import read_spec

SITE_CONFIG = "config_fed_client.json"


class OutgoingGuard(Filter):
    """Checks every answer of the site; one that is not as declared is replaced by a word that says so."""

    def __init__(self) -> None:
        super().__init__()
        self._guards: dict[str, Guard] = {}
        self._lock = threading.Lock()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The answer, rebuilt from what was checked so that nothing else can ride along, or a refusal."""
        exchange = -1
        try:
            letter = opened(shareable)
            exchange = letter.exchange
            if letter.declined:
                code = letter.declined if letter.declined in REASONS and not letter.fields else "guard"
                return envelope(Letter(exchange, {}, code))
            job = str(fl_ctx.get_job_id())
            task = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
            released = self._guard(job, fl_ctx).release(task, letter.fields, job=job, exchange=exchange)
            return envelope(Letter(exchange, released))
        except DeclinedError as error:
            return self._refuse(exchange, error.code, error)
        except (FedGrEMError, MessageError, OSError, ValueError) as error:
            return self._refuse(exchange, "guard", error)

    def _refuse(self, exchange: int, code: str, error: Exception) -> Shareable:
        logging.getLogger(type(self).__name__).error("refused exchange %s (%s): %s", exchange, code, error)
        return envelope(Letter(exchange, {}, code))

    def _guard(self, job: str, fl_ctx: FLContext) -> Guard:
        with self._lock:
            if job not in self._guards:
                workspace, name = fl_ctx.get_workspace(), str(fl_ctx.get_identity_name())
                settings = read_settings(Path(workspace.get_site_config_dir()), name)
                spec = read_spec(_spec_of(Path(workspace.get_app_dir(job)) / "config" / SITE_CONFIG))
                self._guards[job] = Guard(settings, spec, Path(workspace.get_root_dir()) / LOG)
            return self._guards[job]


def _spec_of(path: Path) -> Any:
    """The spec in a job as it was deployed: the guard does not take the executor's word for it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["executors"][0]["executor"]["args"]["spec"]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise MessageError(f"{path} holds no spec.") from error
