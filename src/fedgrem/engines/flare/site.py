"""The site's side of a job: NVFlare hands it each task, the site at work answers, and the guard lets the answer out.

The guard is a filter in the site's own privacy policy, which no job can take away. Whatever goes wrong, the center gets
a word from a fixed list; the details, which may quote rows, go to the site's own log and nowhere else.
"""

import logging
import threading
import uuid
from hashlib import sha256
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedgrem.engines.flare.messages import Letter, envelope, opened
from fedgrem.engines.remote.guard import Guard
from fedgrem.engines.remote.log import LOG, Log, read_log
from fedgrem.engines.remote.site import REASONS, DeclinedError, Settings, SiteAtWork, read_settings
from fedgrem.engines.remote.sums import OWN, secret_in, secret_of_fit
from fedgrem.errors import FedGrEMError, MessageError
from fedgrem.fit.spec import read_spec

_GUARDS: dict[tuple[str, str], Guard] = {}
"""By site and job: the executor's guard is the one that the filter asks."""
_LOCK = threading.Lock()


class SiteExecutor(Executor):
    """Runs the local steps of one site for the length of a job, all of them through its guard."""

    def __init__(self, spec: dict[str, Any], run: str) -> None:
        super().__init__()
        self._spec, self._run = spec, run

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one task."""
        exchange = -1
        try:
            letter = opened(shareable)
            exchange = letter.exchange
            released = guard_for(fl_ctx, self._spec, self._run).answer(task_name, letter.fields, exchange=exchange)
            return envelope(Letter(exchange, released))
        except DeclinedError as error:
            return decline(exchange, error.code, error)
        except MessageError as error:
            return decline(exchange, "order", error)
        except Exception as error:  # nothing that happens here may reach the center in its own words
            return decline(exchange, "failed", error)


def guard_for(fl_ctx: FLContext, plain: dict[str, Any], run: str) -> Guard:
    """The guard of a job at a site: one for executor and filter."""
    with _LOCK:
        place = place_of(fl_ctx)
        if place not in _GUARDS:
            try:
                name, settings = settings_of(fl_ctx)
                spec, kit = read_spec(plain), Path(fl_ctx.get_workspace().get_root_dir())
                secret = secret_of_fit(secret_in(kit), run) if spec.secure_sums else None
                site = SiteAtWork(name, settings, spec, secret=secret, keep=kit / OWN)
            except FedGrEMError as error:
                raise DeclinedError("order", str(error)) from error
            path = kit / LOG
            _GUARDS[place] = Guard(site, Log(path), lambda: read_log(path), run=run, job=place[1])
        return _GUARDS[place]


class OutgoingGuard(Filter):
    """Lets out what the guard has released, and nothing else; as the site's own policy, which no job can take away."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The answer, rebuilt so that nothing else can ride along, or a refusal."""
        exchange = -1
        try:
            letter = opened(shareable)
            exchange = letter.exchange
            if letter.declined:
                code = letter.declined if letter.declined in REASONS and not letter.fields else "guard"
                return envelope(Letter(exchange, {}, code, _place_hash(fl_ctx)))
            guard = _GUARDS.get(place_of(fl_ctx))
            if guard is None or not guard.was_released(exchange, letter.fields):
                raise DeclinedError("guard", "the answer is not one that the guard has released.")
            return envelope(Letter(exchange, letter.fields, place=_place_hash(fl_ctx)))
        except DeclinedError as error:
            return decline(exchange, error.code, error)
        except (FedGrEMError, OSError, ValueError) as error:
            return decline(exchange, "guard", error)


def place_of(fl_ctx: FLContext) -> tuple[str, str]:
    """Which site's guard, of which job."""
    return str(fl_ctx.get_identity_name()), str(fl_ctx.get_job_id())


def _place_hash(fl_ctx: FLContext) -> str:
    """Tells two copies of a kit apart, and nothing else."""
    words = f"{uuid.getnode()} {Path(fl_ctx.get_workspace().get_root_dir()).resolve()}"
    return sha256(words.encode()).hexdigest()[:8]


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
