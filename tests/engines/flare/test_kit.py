"""Kits as they are made: who may do what, and which classes a job may name."""

import json
import stat
from datetime import UTC, datetime

import pytest

pytest.importorskip("nvflare", reason="needs fedgrem[flare]")

from cryptography import x509

from fedgrem.engines.flare.job import write_job
from fedgrem.engines.flare.kit import (
    EXECUTOR,
    GUARD,
    LAUNCHER,
    REPLACED,
    REVOKED,
    ROLES,
    add_site,
    check_certificate,
    hand_over,
    init_study,
    read_replaced,
    read_study,
    remove_site,
    renew_kit,
    server_address,
    site_of,
    validity,
)
from fedgrem.engines.remote.roster import Rules
from fedgrem.errors import InputError, SitesError
from tests.engines.remote.studies import spec_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return init_study(tmp_path_factory.mktemp("kits") / "study", ["south", "north"], "coord.example.org", 8100)


def local(kit, name):
    return json.loads((kit / "local" / name).read_text())


def test_every_site_has_a_kit_for_itself_and_the_server(made):
    assert made.sites == ("north", "south")
    assert read_study(made.folder) == made
    for name in made.sites:
        assert site_of(made.kit(name)) == name
        assert server_address(made.kit(name)) == "coord.example.org:8100"
        connection = json.loads((made.kit(name) / "startup" / "fed_client.json").read_text())["client"]
        assert connection["connection_security"] == "mtls"


def test_a_site_runs_exactly_our_classes_and_nobody_brings_code(made):
    resources = local(made.kit("north"), "resources.json")
    assert resources["class_allow_list"] == [EXECUTOR, GUARD]
    assert resources["class_list_enforcement_mode"] == "enforce"
    launchers = [c["path"] for c in resources["components"] if c["id"] == "process_launcher"]
    assert launchers == [LAUNCHER]
    for kit in (made.kit("north"), made.server):
        permissions = local(kit, "authorization.json")["permissions"]
        assert set(permissions) == set(ROLES)
        assert all(rights["byoc"] == rights["shell_commands"] == "none" for rights in permissions.values())


def test_no_log_leaves_a_site_and_every_answer_passes_the_guard(made):
    resources = local(made.kit("north"), "resources.json")
    assert resources["allow_log_streaming"] is False
    assert not any("log" in component["path"].lower() for component in resources["components"])
    policy = local(made.kit("north"), "privacy.json")
    (scope,) = policy["scopes"]
    assert policy["default_scope"] == scope["name"]
    assert [f["path"] for f in scope["task_result_filters"]] == [GUARD]


def test_private_keys_are_private(made):
    keys = [*made.folder.rglob("*.key"), *made.folder.glob("authority/**/cert.json")]
    assert len(keys) == 5
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)


def test_a_job_names_our_classes_and_sends_each_its_own_part(tmp_path):
    job = write_job(tmp_path, spec_of(), ["north"], "run-1", Rules())
    files = sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file())
    assert files == ["center/config/config_fed_server.json", "meta.json", "site/config/config_fed_client.json"]
    site = json.loads((job / files[2]).read_text())
    assert [e["executor"]["path"] for e in site["executors"]] == [EXECUTOR]
    assert json.loads((job / "meta.json").read_text())["deploy_map"] == {"center": ["server"], "site": ["north"]}


def test_sites_come_go_and_get_new_certificates(tmp_path):
    study = init_study(tmp_path / "study", ["north", "south"], "localhost", 8100)
    certificate = {n: (study.kit(n) / "startup" / "client.crt").read_bytes() for n in study.sites}
    authority = (study.kit("north") / "startup" / "rootCA.pem").read_bytes()
    number = {n: x509.load_pem_x509_certificate(raw).serial_number for n, raw in certificate.items()}

    grown = add_site(study, "west")
    assert grown.sites == ("north", "south", "west")
    assert (grown.kit("west") / "startup" / "rootCA.pem").read_bytes() == authority
    assert (grown.kit("north") / "startup" / "client.crt").read_bytes() == certificate["north"]

    kit = renew_kit(grown, "north")
    assert (kit / "startup" / "client.crt").read_bytes() != certificate["north"]
    assert (kit / "startup" / "rootCA.pem").read_bytes() == authority
    assert local(kit, "resources.json")["class_allow_list"] == [EXECUTOR, GUARD]
    assert read_replaced(study.server / REPLACED) == [number["north"]], "what the server refuses from then on"
    assert validity(kit)[1] >= validity(grown.kit("south"))[1]
    for who in ("server", "coordinator"):
        renew_kit(grown, who)

    removed = x509.load_pem_x509_certificate((grown.kit("west") / "startup" / "client.crt").read_bytes())
    assert remove_site(grown, "west").sites == ("north", "south")
    assert read_replaced(study.server / REPLACED) == sorted([number["north"], removed.serial_number])
    assert read_study(study.folder).sites == ("north", "south")
    with pytest.raises(InputError, match="'west' was removed from this study, and its certificate is refused"):
        add_site(read_study(study.folder), "west")
    revoked = json.loads((study.server / REVOKED).read_text())
    assert revoked == {"disabled_clients": ["west"]}, "what NVFlare's server reads when it starts"
    (study.kit("east")).mkdir()
    with pytest.raises(InputError, match="is left from a site of that name; move it away first"):
        add_site(read_study(study.folder), "east")


def test_the_coordinator_keeps_no_key_of_a_site_that_has_its_kit_and_no_file_for_others(made):
    kept = (made.folder / "authority" / "fedgrem" / "state" / "cert.json").read_text()
    assert not any(name in json.loads(kept) for name in made.sites)
    hand_over(made, "south")
    for key in made.folder.rglob("*.key"):
        assert "south" not in str(key)
    with pytest.raises(InputError, match="'west' is not a site of this study"):
        hand_over(made, "west")
    assert made.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("begins", "ends", "message"),
    [
        (2019, 2020, r"of north ended on 2020-01-01, .* clock says .* `fedgrem sites renew STUDY north`"),
        (2998, 2999, r"of north is good from 2998-01-01 00:00 UTC on, .* clock says .*: set the clock"),
    ],
)
def test_a_certificate_that_is_not_good_now_is_named_with_what_to_do(made, monkeypatch, begins, ends, message):
    dates = datetime(begins, 1, 1, tzinfo=UTC), datetime(ends, 1, 1, tzinfo=UTC)
    monkeypatch.setattr("fedgrem.engines.flare.kit.validity", lambda kit: dates)
    with pytest.raises(SitesError, match=message):
        check_certificate(made.kit("north"), "north")


@pytest.mark.parametrize(
    ("sites", "host", "message"),
    [
        (["north"], "localhost", r"got 1 site\(s\); a federation needs at least two"),
        (["north", "north"], "localhost", "a site is named more than once"),
        (["north", "../south"], "localhost", r"'../south' cannot be the name of a site"),
        (["north", "server"], "localhost", "'server' cannot be the name of a site"),
        (["north", "south"], "not a host", "'not a host' is no host name"),
    ],
)
def test_bad_names_are_refused_before_anything_is_made(tmp_path, sites, host, message):
    with pytest.raises(InputError, match=message):
        init_study(tmp_path / "study", sites, host, 8100)
    assert not (tmp_path / "study" / "study.json").exists()


def test_a_study_is_not_made_over_another(made, tmp_path):
    with pytest.raises(InputError, match="is a study already; add a site with `fedgrem sites add`"):
        init_study(made.folder, ["a", "b"], "localhost", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="exists and is not empty"):
        init_study(tmp_path, ["a", "b"], "localhost", 1)


def test_what_is_not_a_study_or_a_kit_is_named(made, tmp_path):
    with pytest.raises(InputError, match="is no study; make one with"):
        read_study(tmp_path)
    with pytest.raises(InputError, match="is no kit of a site"):
        site_of(made.server)
    with pytest.raises(InputError, match="'west' is not a site of this study; the sites are north, south"):
        remove_site(made, "west")
    with pytest.raises(InputError, match="renew one of server, coordinator, north, south"):
        renew_kit(made, "west")
    with pytest.raises(InputError, match="'north' is a site of this study already"):
        add_site(made, "north")
