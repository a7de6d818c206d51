"""Downloads against a server on this machine: whole, broken, resumed, wrong, and none at all."""

import gzip
import hashlib
import socket
from pathlib import Path

import pytest

from fedgrem.studies.download import DownloadError, cache_folder, fetch
from tests.studies.server import Server

UNPACKED = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(UNPACKED).hexdigest()
CONTENT = gzip.compress(UNPACKED, 0, mtime=0)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        server.files["data.bin"] = CONTENT
        yield server


@pytest.fixture
def nobody(monkeypatch):
    """An address where nobody listens."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{place.getsockname()[1]}"


def parts(folder):
    return sorted(folder.glob("*.part"))


def test_a_file_is_fetched_once_and_progress_ends_at_its_size(server, tmp_path):
    told = []
    path = tmp_path / "new" / "data.bin"
    for _ in range(2):
        got = fetch(f"{server.url}/data.bin", path, sha256=SHA256, on_progress=lambda *done: told.append(done))
    assert got == path
    assert path.read_bytes() == CONTENT
    assert parts(path.parent) == []
    assert len(server.asked) == 1
    assert told[0] == ("data.bin", 0, len(CONTENT))
    assert told[-1] == ("data.bin", len(CONTENT), len(CONTENT))


def test_a_broken_download_is_kept_and_resumed_where_it_stopped(server, tmp_path):
    server.breaks = 300_000
    path = tmp_path / "data.bin"
    with pytest.raises(DownloadError, match=rf"broke off after 300,000 of {len(CONTENT):,} bytes .*run the same"):
        fetch(f"{server.url}/data.bin", path, sha256=SHA256)
    assert not path.exists()
    assert [part.stat().st_size for part in parts(tmp_path)] == [300_000]
    server.breaks = None
    told = []
    fetch(f"{server.url}/data.bin", path, sha256=SHA256, on_progress=lambda *done: told.append(done))
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] == ("/data.bin", "bytes=300000-")
    assert told[0] == ("data.bin", 300_000, len(CONTENT))
    assert parts(tmp_path) == []


def test_a_server_that_ignores_ranges_makes_the_download_start_over(server, tmp_path):
    server.breaks = 1000
    path = tmp_path / "data.bin"
    with pytest.raises(DownloadError, match="broke off"):
        fetch(f"{server.url}/data.bin", path)
    server.breaks, server.ranges = None, False
    assert fetch(f"{server.url}/data.bin", path).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_makes_the_download_start_over(server, tmp_path):
    server.breaks = 1000
    path = tmp_path / "data.bin"
    with pytest.raises(DownloadError, match="broke off"):
        fetch(f"{server.url}/data.bin", path)
    server.breaks, server.files["data.bin"] = None, b"short"
    assert fetch(f"{server.url}/data.bin", path).read_bytes() == b"short"


def test_a_wrong_check_sum_names_both_sums_and_removes_the_file(server, tmp_path):
    path = tmp_path / "data.bin"
    with pytest.raises(DownloadError, match=f"expected sha256 {'0' * 64}, got sha256 {SHA256}") as caught:
        fetch(f"{server.url}/data.bin", path, sha256="0" * 64)
    assert "was removed" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_gzip_file_is_checked_by_what_it_holds(server, tmp_path):
    for mtime in (1, 2):
        server.files["data.gz"] = gzip.compress(UNPACKED, mtime=mtime)
        fetch(f"{server.url}/data.gz", tmp_path / f"{mtime}.gz", sha256=SHA256)
    server.files["data.gz"] = b"<html>no such file</html>"
    with pytest.raises(DownloadError, match="got a file that cannot be unpacked"):
        fetch(f"{server.url}/data.gz", tmp_path / "3.gz", sha256=SHA256)


def test_a_file_that_has_moved_is_told_with_its_address(server, tmp_path):
    with pytest.raises(DownloadError, match=rf"{server.url}/gone.bin answered 404 .*give the folder that holds it"):
        fetch(f"{server.url}/gone.bin", tmp_path / "gone.bin")


def test_an_offline_machine_is_told_what_to_do(nobody, tmp_path):
    with pytest.raises(DownloadError, match=r"cannot be reached \(Connection refused\); is this machine online\?"):
        fetch(f"{nobody}/data.bin", tmp_path / "data.bin")


def test_an_unknown_host_is_told_without_the_resolvers_words(monkeypatch, tmp_path):
    def unknown(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DownloadError, match="its name is not known here"):
        fetch("http://data.invalid/data.bin", tmp_path / "data.bin")


def test_a_folder_that_cannot_be_written_is_not_blamed_on_the_network(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match=r"cannot be written .*FEDGREM_CACHE"):
        fetch(f"{server.url}/data.bin", tmp_path / "file" / "data.bin")


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.delenv("FEDGREM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/fedgrem")
    monkeypatch.setenv("FEDGREM_CACHE", "/here")
    assert cache_folder() == Path("/here")
