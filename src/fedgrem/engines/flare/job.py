"""A job as NVFlare takes it: three JSON files that name two classes of this package, and plain values."""

import json
from pathlib import Path
from typing import Any

from fedgrem.engines.flare.declaration import TASKS
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.roster import Rules

CONTROLLER = "fedgrem.engines.flare.controller.CenterController"
EXECUTOR = "fedgrem.engines.flare.executor.SiteExecutor"
GUARD = "fedgrem.engines.flare.filters.OutgoingGuard"
LAUNCHER = "fedgrem.engines.flare.launcher.RestartingLauncher"


def write_job(
    folder: Path, recipe: Recipe, sites: list[str], run: str, rules: Rules, *, transport: str = "push"
) -> Path:
    """Write the job into an empty folder; returns it. The center and the sites each get their own part only."""
    plain = recipe.as_plain()
    files: dict[str, Any] = {
        "meta.json": {
            "name": run,
            "resource_spec": {},
            "min_clients": min(rules.min_sites, len(sites)),
            "deploy_map": {"center": ["server"], "site": sites},
        },
        "center/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [
                {
                    "id": "fit",
                    "path": CONTROLLER,
                    "args": {
                        "recipe": plain, "sites": sites, "run": run, "rules": rules._asdict(), "transport": transport
                    },
                }
            ],
            "components": [],
            "task_data_filters": [],
            "task_result_filters": [],
        },
        "site/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": list(TASKS), "executor": {"id": "site", "path": EXECUTOR, "args": {"recipe": plain}}}],
            "components": [],
            "task_data_filters": [],
            "task_result_filters": [],
        },
    }  # fmt: skip
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder
