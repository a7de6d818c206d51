"""A study that runs for the length of a module, on a free port, and leaves no process behind."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from tests.engines.remote.studies import NAMES, write_site

UNABLE = None
if find_spec("nvflare") is None:
    UNABLE = "nvflare is not installed: pip install 'fedgrem[flare]'"
elif not sys.platform.startswith("linux"):
    UNABLE = "NVFlare's processes are run on Linux only"


@pytest.fixture(scope="session")
def flare():
    """Skips where NVFlare cannot run; its processes share what they compile."""
    if UNABLE:
        pytest.skip(UNABLE)
    from fedgrem.engines.flare.processes import keep_bytecode

    keep_bytecode()


@pytest.fixture(scope="module")
def study(flare, tmp_path_factory):
    """A server and three sites that are connected to it."""
    from fedgrem.cli.sites_demo import coordinating, free_port
    from fedgrem.engines.flare.kit import init_study
    from fedgrem.engines.flare.processes import start_server, start_site, stop
    from fedgrem.engines.remote.site import write_settings

    folder = tmp_path_factory.mktemp("study")
    made = init_study(folder / "study", NAMES, "localhost", free_port())
    try:
        start_server(made.server)
        for name in NAMES:
            write_settings(write_site(folder, name), made.kit(name) / "local")
            start_site(made.kit(name), name)
        with coordinating(made):
            pass
        yield SimpleNamespace(study=made, folder=folder)
    finally:
        stop(*(made.kit(name) for name in NAMES), made.server)
