"""What every test gets: one thread per matrix product, and fixed examples."""

import gc
import os
from pathlib import Path

# The few tests that need JAX (densities of one's own) compile small programs once for all workers and all runs. Set
# before JAX starts, and inherited by the processes that tests start.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import scipy.linalg  # noqa: F401  # loads its BLAS, which the limit below must find
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

LONGEST = (
    "tests/engines/flare/test_end_to_end.py",
    "tests/test_examples.py",
    "tests/engines/remote/test_engine.py",
    "tests/estimators/test_sklearn_checks.py",
    "tests/engines/flare/test_simulator.py",
    "tests/report/test_model.py",
    "tests/test_cli.py",
    "tests/conformance/test_fits.py",
    "tests/studies/test_page.py",
    "tests/studies/test_real_page.py",
)
"""Files whose tests take longest, the longest first."""

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


def pytest_collection_finish():
    """What was imported stays until the end: the garbage collector need not go through it, nor come so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
