"""A job as NVFlare takes it: three JSON files that name two classes of this package, and plain values."""

import json
from pathlib import Path
from typing import Any

from fedgrem.engines.flare.kit import CONTROLLER, EXECUTOR, GUARD
from fedgrem.engines.remote.declaration import TASKS
from fedgrem.engines.remote.roster import Rules
from fedgrem.fit.spec import FitSpec


def write_job(
    folder: Path,
    spec: FitSpec,
    sites: list[str],
    run: str,
    rules: Rules,
    *,
    transport: str = "push",
    guard: bool = False,
) -> Path:
    """Write the job into an empty folder; returns it. The center and the sites each get their own part only.

    With ``guard`` the job itself asks for the guard: the simulator has no kits, whose own policy does so.
    """
    plain = spec.as_plain()
    center = {"spec": plain, "sites": sites, "run": run, "rules": rules._asdict(), "transport": transport}
    guards = [{"tasks": list(TASKS), "filters": [{"path": GUARD, "args": {}}]}] if guard else []
    executor = {"id": "site", "path": EXECUTOR, "args": {"spec": plain, "run": run}}
    nothing: dict[str, Any] = {"components": [], "task_data_filters": [], "task_result_filters": []}
    files: dict[str, Any] = {
        "meta.json": {
            "name": run,
            "resource_spec": {},
            "min_clients": min(rules.min_sites, len(sites)),
            "deploy_map": {"center": ["server"], "site": sites},
        },
        "center/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "fit", "path": CONTROLLER, "args": center}],
            **nothing,
        },
        "site/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": list(TASKS), "executor": executor}],
            **nothing,
            "task_result_filters": guards,
        },
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder
