"""Compiled programs are kept between runs, so that the second run of a kind starts at once."""

import os
from pathlib import Path
from typing import Any

MOST_BYTES = 256 * 2**20


def cache_folder() -> Path | None:
    """Where they are kept: a folder in the user's cache, or None if it cannot be written."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(root) / "fedgrem" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def settings(folder: Path) -> dict[str, str | float | int]:
    """JAX's options for keeping every program, however small, in a folder."""
    return {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }


def keep_compiled_programs() -> None:
    """Keep what JAX compiles on disk, for later sessions of Python: a first fit compiles for many seconds.

    The command line does this by itself. In Python it is asked for, since it is a setting of JAX and so holds for all
    of the session. Nothing is changed if JAX has been given a place for it already, or if there is none; no more than
    256 MiB are kept, in ``fedgrem/compiled`` of the user's cache folder.
    """
    import jax

    config: Any = jax.config
    folder = cache_folder()
    if config.jax_compilation_cache_dir is not None or folder is None:
        return
    for name, value in settings(folder).items():
        config.update(name, value)
    _prune(folder)


def _prune(folder: Path) -> None:
    """Forget the programs used longest ago, so that the folder does not grow for ever."""
    try:
        files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.iterdir())
        excess = sum(size for _, size, _ in files) - MOST_BYTES
        for _, size, path in files:
            if excess <= 0:
                break
            path.unlink()
            excess -= size
    except OSError:
        return  # another run is at it, or the disk is
