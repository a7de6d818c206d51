"""The site's side of a job: NVFlare hands it each task, the site at work answers."""

import threading
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedgrem.engines.flare.messages import Letter, envelope, opened
from fedgrem.engines.remote.site import DeclinedError, SiteAtWork, read_settings
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import FedGrEMError, MessageError
from fedgrem.fit.spec import read_spec


class SiteExecutor(Executor):
    """Runs the local steps of one site for the length of a job.

    Whatever goes wrong, the center gets a word from a fixed list; the details, which may quote rows, go to the site's
    own log and nowhere else.
    """

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
            reply = self._at_work(fl_ctx).answer(task_name, letter.fields)
            return envelope(Letter(exchange, encode(reply)))
        except DeclinedError as error:
            return self._decline(exchange, error.code, error)
        except MessageError as error:
            return self._decline(exchange, "order", error)
        except Exception as error:  # nothing that happens here may reach the center in its own words
            return self._decline(exchange, "failed", error)

    def _at_work(self, fl_ctx: FLContext) -> SiteAtWork:
        with self._lock:
            if self._site is None:
                name = str(fl_ctx.get_identity_name())
                try:
                    spec = read_spec(self._spec)
                    settings = read_settings(Path(fl_ctx.get_workspace().get_site_config_dir()), name)
                except FedGrEMError as error:
                    raise DeclinedError("order", str(error)) from error
                self._site = SiteAtWork(name, settings, spec)
            return self._site

    def _decline(self, exchange: int, code: str, error: Exception) -> Shareable:
        # The plain logger: NVFlare's own would also fire an event, which others may pass on.
        self.logger.error("does not answer exchange %s (%s): %s: %s", exchange, code, type(error).__name__, error)
        return envelope(Letter(exchange, {}, code))
