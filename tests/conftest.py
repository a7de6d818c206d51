"""What every test gets: double precision in a scope, a compilation cache shared by the workers, fixed examples."""

import os
from itertools import count
from pathlib import Path

# Programs here are compiled often and run briefly: spend less on optimizing them (the second flag alone saves half of
# the time of all tests), in one thread, as workers share the cores. One program per shape is compiled once for all
# workers and all runs, however small it is. Set before JAX starts, and inherited by the processes that tests start.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_multi_thread_eigen=false",
)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest
import scipy.linalg  # noqa: F401  # loads its BLAS, which the limit below must find
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

MAPS = Path("/proc/self/maps")
LONGEST = (
    "tests/test_examples.py",
    "tests/engines/flare/test_end_to_end.py",
    "tests/engines/flare/test_engine.py",
    "tests/estimators/test_estimators.py",
    "tests/estimators/test_sklearn_checks.py",
    "tests/estimators/test_covariances.py",
    "tests/test_cli.py",
    "tests/algorithms/test_rivals.py",
    "tests/engines/flare/test_simulator.py",
    "tests/conformance/test_engines.py",
    "tests/algorithms/test_uncertainty.py",
)
"""Files whose tests take from five minutes to 40 seconds together, the longest first."""
MANY_MAPS = 40_000
"""A loaded program takes dozens of memory maps, of which Linux allows a process 65,530: beyond that JAX crashes."""
EVERY = 10
"""Tests after which they are counted: that takes a while, too."""
finished = count(1)

# Workers share the cores: threads inside small matrix products only get in each other's way.
threadpool_limits(1)

# The same examples on every run: a failure is a change of the code, not of the dice.
settings.register_profile(
    "fedgrem",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("fedgrem")


def pytest_xdist_auto_num_workers(config):
    """One more than there are cores: some tests wait for other processes."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items):
    """The longest files first, so that no worker begins one when all others are done."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.split("::")[0], len(LONGEST)))


@pytest.fixture(autouse=True)
def _few_programs():
    """Unload compiled programs before there are too many; they are still on disk."""
    yield
    if next(finished) % EVERY == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def _double_precision():
    """Kernels are called as the package calls them: in a scope of 64-bit floats."""
    with jax.enable_x64(True):
        yield
