"""The site's side of a job: NVFlare hands it each task, the site at work answers, and the guard lets the answer out.

The guard is a filter in the site's own privacy policy, which no job can take away. Whatever goes wrong, the center gets
a word from a fixed list; the details, which may quote rows, go to the site's own log and nowhere else.
"""

import json
import logging
import threading
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedgrem.engines.flare.messages import Letter, envelope, opened
from fedgrem.engines.remote.guard import LOG, Guard
from fedgrem.engines.remote.site import REASONS, DeclinedError, Settings, SiteAtWork, read_settings
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import FedGrEMError, MessageError
from fedgrem.fit.spec import read_spec

SITE_CONFIG = "config_fed_client.json"


class SiteExecutor(Executor):
    """Runs the local steps of one site for the length of a job."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self._spec = spec
        self._lock = threading.Lock()
        self._site: SiteAtWork | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one task."""
        exchange = -1
        try:
            letter = opened(shareable)
            exchange = letter.exchange
            return envelope(Letter(exchange, encode(self._at_work(fl_ctx).answer(task_name, letter.fields))))
        except DeclinedError as error:
            return decline(exchange, error.code, error)
        except MessageError as error:
            return decline(exchange, "order", error)
        except Exception as error:  # nothing that happens here may reach the center in its own words
            return decline(exchange, "failed", error)

    def _at_work(self, fl_ctx: FLContext) -> SiteAtWork:
        with self._lock:
            if self._site is None:
                try:
                    name, settings = settings_of(fl_ctx)
                    self._site = SiteAtWork(name, settings, read_spec(self._spec))
                except FedGrEMError as error:
                    raise DeclinedError("order", str(error)) from error
            return self._site


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
            job, task = str(fl_ctx.get_job_id()), str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
            released = self._guard(job, fl_ctx).release(task, letter.fields, job=job, exchange=exchange)
            return envelope(Letter(exchange, released))
        except DeclinedError as error:
            return decline(exchange, error.code, error)
        except (FedGrEMError, OSError, ValueError) as error:
            return decline(exchange, "guard", error)

    def _guard(self, job: str, fl_ctx: FLContext) -> Guard:
        with self._lock:
            if job not in self._guards:
                workspace = fl_ctx.get_workspace()
                _, settings = settings_of(fl_ctx)
                spec = read_spec(_spec_of(Path(workspace.get_app_dir(job)) / "config" / SITE_CONFIG))
                self._guards[job] = Guard(settings, spec, Path(workspace.get_root_dir()) / LOG)
            return self._guards[job]


def settings_of(fl_ctx: FLContext) -> tuple[str, Settings]:
    """The name of the site, and what its kit says of its rows."""
    name = str(fl_ctx.get_identity_name())
    return name, read_settings(Path(fl_ctx.get_workspace().get_site_config_dir()), name)


def decline(exchange: int, code: str, error: Exception) -> Shareable:
    """One word for the center; the reason for the site's own log."""
    # The plain logger: NVFlare's own would also fire an event, which others may pass on.
    logging.getLogger(__name__).error(
        "no answer to exchange %s (%s): %s: %s", exchange, code, type(error).__name__, error
    )
    return envelope(Letter(exchange, {}, code))


def _spec_of(path: Path) -> Any:
    """The spec in a job as it was deployed: the guard does not take the executor's word for it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["executors"][0]["executor"]["args"]["spec"]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise MessageError(f"{path} holds no spec.") from error
