"""Threads of the linear algebra below NumPy."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread_each() -> AbstractContextManager[Any]:
    """While it lasts, a matrix product runs in one thread: those of a fit are too small for more."""
    scope: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return scope
