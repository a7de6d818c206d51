"""Jobs on all cores: worker processes of one thread each, which end with their parent and leave Ctrl-C to it."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from fedgrem.errors import FedGrEMError

Job = TypeVar("Job")
Result = TypeVar("Result")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Workers share the cores: each computes in one thread, set before it loads NumPy."""


class InterruptedStudyError(FedGrEMError):
    """A worker died; what was finished is on disk."""


def in_processes(play: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Result]]:
    """Every job with its result, as they finish. Processes are spawned: threads do not survive a fork."""
    if not jobs:
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with environment(ONE_THREAD), ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker) as pool:
        try:
            with _interrupts_wait():
                futures = {pool.submit(play, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise InterruptedStudyError(
                "a worker process died, perhaps for want of memory; finished rows are kept. Run the same command "
                "again, with fewer --workers if need be."
            ) from error
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            # And wait for the pool's own thread, or it would close its pipe while Python, leaving, writes to it.
            pool.shutdown(cancel_futures=True)
            raise


def _begin_worker() -> None:
    """Ctrl-C is the parent's business; and a worker whose parent was killed has nobody left to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def leave_with_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back while workers are started: one that is cut off half way would complain on the screen.

    A job in the background of a shell ignores Ctrl-C, and goes on doing so.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings aside; also a decorator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def environment(wanted: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes started in this scope, and as they were after it."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
