"""A fit without a server on NVFlare: every site in a process of its own, on messages between their jobs.

NVFlare starts the job and brings letters from site to site; the center's side is run by every site. On the simulator
sites hand in what they found; real ones work behind their guards, and hand in what all of them found together.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedgrem.data.federation import Federation
from fedgrem.data.units import Census, take_census
from fedgrem.engines.decentralized import PRECISION
from fedgrem.engines.flare.center import answer_from, run_folder
from fedgrem.engines.flare.kit import NEIGHBOUR, NEIGHBOURS
from fedgrem.engines.flare.messages import Letter, envelope
from fedgrem.engines.flare.processes import check_flare
from fedgrem.engines.flare.simulator import RUN, play, write_sites
from fedgrem.engines.flare.site import decline, guard_for, settings_of
from fedgrem.engines.remote.declaration import check_over_network
from fedgrem.engines.remote.delivery import Answer
from fedgrem.engines.remote.fields import AMONG
from fedgrem.engines.remote.neighbours import PATIENCE, Guarded, fit_at_one_site
from fedgrem.engines.remote.progress import Diary
from fedgrem.engines.remote.result import RESULT, Finished, read_result, write_result
from fedgrem.engines.remote.site import REASONS, DeclinedError, read_rows
from fedgrem.engines.remote.wire import decode
from fedgrem.errors import FedGrEMError, MessageError, SitesError
from fedgrem.fit.spec import FitSpec, read_spec
from fedgrem.fit.units import with_census
from fedgrem.types import Array, FitResult

TOPIC, TASK = "fedgrem.letter", AMONG
CONTROLLER, EXECUTOR = (
    f"fedgrem.engines.flare.neighbours.{name}" for name in ("NeighboursController", "NeighbourExecutor")
)
ATTEMPT = 5.0
"""Seconds in which a letter is to be acknowledged; it is sent again until it is."""


class PeerPost:
    """Letters as messages between the jobs of two sites. Each is acknowledged before the next: order is kept."""

    def __init__(self, client_engine: Any) -> None:
        self._engine = client_engine
        self._boxes: dict[str, Queue[bytes]] = {}
        self._outgoing: dict[str, Queue[bytes]] = {}
        self._last: dict[str, int] = {}
        self._lock = threading.Lock()
        client_engine.register_aux_message_handler(TOPIC, self._arrived)

    def send(self, neighbour: str, letter: bytes) -> None:
        """Leave a letter to the thread that sends all that go to this neighbour."""
        if neighbour not in self._outgoing:
            self._outgoing[neighbour] = Queue()
            threading.Thread(target=self._deliver, args=(neighbour,), daemon=True).start()
        self._outgoing[neighbour].put(letter)

    def receive(self, neighbour: str, timeout: float) -> bytes | None:
        """The next letter from a neighbour."""
        try:
            return self._box(neighbour).get(timeout=timeout)
        except Empty:
            return None

    def wait_until_sent(self, most: float) -> None:
        """Do not leave while neighbours still wait for letters."""
        end = time.monotonic() + most
        while time.monotonic() < end and any(queue.unfinished_tasks for queue in self._outgoing.values()):
            time.sleep(0.02)

    def _box(self, name: str) -> "Queue[bytes]":
        with self._lock:
            return self._boxes.setdefault(name, Queue())

    def _arrived(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        name, number, letter = str(fl_ctx.get_peer_context().get_identity_name()), request["number"], request["letter"]
        if self._last.get(name, -1) < number:  # else it has come before, and the answer was lost
            self._last[name] = number
            self._box(name).put(letter)
        return make_reply(ReturnCode.OK)

    def _deliver(self, neighbour: str) -> None:
        number, queue = 0, self._outgoing[neighbour]
        while True:
            letter = queue.get()
            end = time.monotonic() + PATIENCE
            while not self._acknowledged(neighbour, letter, number):
                if time.monotonic() > end:
                    return
                time.sleep(0.1)
            number += 1
            queue.task_done()

    def _acknowledged(self, neighbour: str, letter: bytes, number: int) -> bool:
        with self._engine.new_context() as ctx:
            replies = self._engine.send_aux_request(
                targets=[neighbour], topic=TOPIC, request=Shareable({"letter": letter, "number": number}),
                timeout=ATTEMPT, fl_ctx=ctx, optional=True,
            )  # fmt: skip
        reply = (replies or {}).get(neighbour)
        return reply is not None and reply.get_return_code(ReturnCode.OK) == ReturnCode.OK


class NeighbourExecutor(Executor):
    """Runs the whole fit at one site, as soon as it is told to begin."""

    def __init__(self, spec: dict[str, Any], sites: list[str], links: list[list[int]], precision: float) -> None:
        super().__init__()
        self._spec, self._sites, self._links, self._precision = spec, sites, links, precision
        self._post: PeerPost | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Be ready for letters before anybody begins."""
        if event_type == EventType.START_RUN:
            self._post = PeerPost(fl_ctx.get_engine())

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Fit; the answer is the site's own result, or why there is none."""
        assert self._post is not None
        try:
            name, settings = settings_of(fl_ctx)
            spec, names = read_spec(self._spec), tuple(self._sites)
            rows = read_rows(name, settings)
            result = fit_at_one_site(rows, spec, self._graph(), names, self._post, precision=self._precision)
            self._post.wait_until_sent(PATIENCE)
            with TemporaryDirectory() as folder:
                write_result(Path(folder), Finished(result, {}))
                return Shareable({"result": (Path(folder) / RESULT).read_bytes(), "message": ""})
        except FedGrEMError as error:
            return Shareable({"result": b"", "message": str(error)})
        except Exception as error:
            logging.getLogger(__name__).exception("the fit failed")
            return Shareable({"result": b"", "message": f"{type(error).__name__}: {error}"})

    def _graph(self) -> Array:
        """Who is linked with whom."""
        graph = np.zeros((len(self._sites), len(self._sites)), dtype=bool)
        for one, other in self._links:
            graph[one, other] = graph[other, one] = True
        return graph


class NeighboursController(Controller):
    """Tells the sites to begin, and keeps what each of them found."""

    def __init__(self, sites: list[str], run: str) -> None:
        super().__init__(task_check_period=0.1)
        self._sites, self._run = sites, run

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Wait until all have ended."""
        folder = run_folder(Path(fl_ctx.get_workspace().get_root_dir()), self._run)
        diary = Diary(folder)
        task = Task(name=TASK, data=Shareable())
        self.broadcast_and_wait(task, fl_ctx, self._sites, min_responses=len(self._sites), abort_signal=abort_signal)
        messages = {}
        for one in task.client_tasks:
            place = folder / one.client.name
            place.mkdir()
            if isinstance(one.result, Shareable) and one.result.get("result"):
                (place / RESULT).write_bytes(one.result["result"])
            else:
                messages[one.client.name] = str((one.result or {}).get("message", "no answer"))
        told = "; ".join(f"{name}: {message}" for name, message in messages.items())
        diary.write(kind="failed" if len(messages) == len(self._sites) else "finished", message=told)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to tidy."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late is not used."""


class Outcome(NamedTuple):
    """What a real site hands in."""

    result: Array
    """The bytes of a result."""


class GuardedExecutor(NeighbourExecutor):
    """The same behind the guard of a site's kit, which logs what is added to every sum before it is sent."""

    def __init__(
        self, spec: dict[str, Any], sites: list[str], links: list[list[int]], precision: float, run: str
    ) -> None:  # fmt: skip
        super().__init__(spec, sites, links, precision)
        self._run = run

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Fit; the answer is what all sites found together, and the site's own stays in its kit."""
        assert self._post is not None
        try:
            guard, names = guard_for(fl_ctx, self._spec, self._run), tuple(self._sites)
            place = names.index(str(fl_ctx.get_identity_name()))
            fit = Guarded(guard, self._graph(), names, place, self._post, self._precision)
            result = fit.run()
            self._post.wait_until_sent(PATIENCE)
            with TemporaryDirectory() as folder:
                write_result(Path(folder), Finished(result, {}))
                raw = np.frombuffer((Path(folder) / RESULT).read_bytes(), dtype=np.uint8)
            return envelope(Letter(0, guard.release(Outcome(raw), result.center)))
        except DeclinedError as error:
            return decline(0, error.code, error)
        except Exception as error:  # nothing that happens here may reach the coordinator in its own words
            return decline(0, "failed", error)


class StudyController(NeighboursController):
    """Tells real sites to begin, and keeps what they found together."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Wait until all have ended, or most and then no other for some time."""
        folder = run_folder(Path(fl_ctx.get_workspace().get_root_dir()), self._run)
        diary = Diary(folder)
        diary.write(kind="started", job=str(fl_ctx.get_job_id()))
        task, most = Task(name=TASK, data=Shareable()), len(self._sites) // 2 + 1
        self.broadcast_and_wait(task, fl_ctx, self._sites, most, round(2 * PATIENCE), abort_signal)
        answers = {one.client.name: answer_from(one.result) for one in task.client_tasks}
        found, out = {}, {}
        for site in self._sites:
            answer = answers.get(site, Answer(None, trouble="no answer"))
            try:
                found[site] = decode(answer.fields, Outcome(np.zeros(0, dtype=np.uint8))).result.tobytes()
            except MessageError as error:
                out[site] = REASONS.get(answer.declined, answer.trouble or str(error))
        told = "; ".join(f"{site}: {why}" for site, why in out.items())
        if len(found) < most:
            diary.write(
                kind="failed", message=f"too few sites have come to an end of the fit without a server: {told}."
            )
            return
        with TemporaryDirectory() as place:
            results = []
            for raw in found.values():
                (Path(place) / RESULT).write_bytes(raw)
                results.append(read_result(Path(place)).result)
        if any(not np.array_equal(one.center, results[0].center) for one in results):
            diary.write(kind="failed", message="the sites end with different centers.")
            return
        result = results[0]
        counted = {"messages": sum(one.cost["messages"] for one in results)}
        about = {
            "events": [], "out": out, "away": [], "columns": list(read_spec(self._spec).columns or ()), "n_rows": {},
            "seconds_per_round": None,
        }  # fmt: skip
        write_result(folder, Finished(result._replace(cost={**result.cost, **counted}), about))
        diary.write(kind="finished", rounds=result.n_rounds, converged=result.converged)

    def __init__(self, sites: list[str], run: str, spec: dict[str, Any]) -> None:
        super().__init__(sites, run)
        self._spec = spec


def fit_among_neighbours(spec: FitSpec, federation: Federation, links: Array, precision: float) -> FitResult:
    """Fit a federation with every site in its own process, which hears its neighbours in ``links`` (K, K) only."""
    check_flare()
    check_over_network(spec)
    names = list(federation.names)
    with TemporaryDirectory(prefix="fedgrem-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        write_sites(place / "workspace" / "local", place, federation, [CONTROLLER, EXECUTOR])
        told = {"spec": spec.as_plain(), "sites": names, "links": np.argwhere(np.triu(links)).tolist()}
        run = play(place, write_job(place / "job", told | {"precision": precision}), names)
        found = [read_result(run / name).result if (run / name / RESULT).exists() else None for name in names]
    return _together(spec, federation, found)


def write_study_job(folder: Path, spec: FitSpec, sites: list[str], links: list[list[int]], run: str) -> Path:
    """Write the job of a fit by the sites of a study; returns its folder."""
    told = {"spec": spec.as_plain(), "sites": sites, "links": links, "precision": PRECISION, "run": run}
    return write_job(folder, told, NEIGHBOURS, NEIGHBOUR)


def write_job(folder: Path, told: dict[str, Any], controller: str = CONTROLLER, executor: str = EXECUTOR) -> Path:
    """Write the job that tells the sites the arguments of their executor; returns its folder."""
    sites: list[str] = told["sites"]
    nothing: dict[str, Any] = {"components": [], "task_data_filters": [], "task_result_filters": []}
    begun = {"sites": sites, "run": told.get("run", RUN)} | ({"spec": told["spec"]} if "run" in told else {})
    center = {"id": "fit", "path": controller, "args": begun}
    site = {"tasks": [TASK], "executor": {"path": executor, "args": told}}
    deployed = {"center": ["server"], "site": sites}
    files: dict[str, Any] = {
        "meta.json": {"name": begun["run"], "resource_spec": {}, "min_clients": len(sites), "deploy_map": deployed},
        "center/config/config_fed_server.json": {"format_version": 2, "workflows": [center], **nothing},
        "site/config/config_fed_client.json": {"format_version": 2, "executors": [site], **nothing},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return folder


def _together(spec: FitSpec, federation: Federation, found: list[FitResult | None]) -> FitResult:
    """What every site found, as one result: in the simulator all rows are here anyway."""
    ended = [one for one in found if one is not None]
    first = ended[0]
    if any(np.any(one.center != first.center) for one in ended):
        raise SitesError("the sites end with different centers; no site may be in two parts of a graph.")

    def merged(get: Callable[[FitResult], Array]) -> Array:
        whole = get(first).copy()
        for k, one in enumerate(found):
            whole[k] = np.nan if one is None else get(one)[k]
        return whole

    influence = first.influence._replace(
        weight=merged(lambda one: one.influence.weight), threshold=merged(lambda one: one.influence.threshold)
    )
    census = [take_census(site) for site in federation.sites]
    together = Census(*(np.stack(leaves) for leaves in zip(*census, strict=True)))
    counted = {name: sum(one.cost[name] for one in ended) for name in ("messages", "numbers", "messages_per_sum")}
    counted["messages_per_round"] = sum(one.cost["messages_per_round"] for one in ended)
    result = first._replace(
        weights=merged(lambda one: one.weights), theta=merged(lambda one: one.theta),
        noise=None if first.noise is None else merged(lambda one: np.asarray(one.noise)),
        distance=merged(lambda one: one.distance), n_rows=merged(lambda one: one.n_rows),
        influence=influence, cost={**first.cost, **counted},
    )  # fmt: skip
    return with_census(result, together, spec.units.constant(together.deviation))
