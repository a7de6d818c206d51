"""Where compiled programs are kept between sessions."""

import os
from pathlib import Path

import jax
import pytest

import fedgrem
from fedgrem import compiled
from fedgrem.compiled import cache_folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedgrem" / "compiled"


@pytest.fixture
def no_cache():
    """JAX without a cache of programs, as in a new session; afterwards as it was."""
    names = list(compiled.settings(Path("unused")))
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_cache_is_where_the_user_keeps_caches(place):
    assert cache_folder() == place


def test_no_place_for_a_cache_is_no_failure(tmp_path, monkeypatch, no_cache):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache_folder() is None
    fedgrem.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_programs_are_kept_when_asked_for(place, no_cache):
    fedgrem.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == str(place)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0


def test_a_cache_that_the_user_has_set_up_stays(place):
    before = jax.config.jax_compilation_cache_dir
    assert before is not None
    fedgrem.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == before


def test_programs_used_longest_ago_are_forgotten_first(place, no_cache, monkeypatch):
    monkeypatch.setattr(compiled, "MOST_BYTES", 25)
    place.mkdir(parents=True)
    for day, name in enumerate(("oldest", "older", "old", "new")):
        (place / name).write_bytes(b"x" * 10)
        os.utime(place / name, (day, day))
    fedgrem.keep_compiled_programs()
    assert sorted(path.name for path in place.iterdir()) == ["new", "old"]
