"""Kits: certificates and settings for the coordinator's server and for every site, hardened as they are made.

A study is a folder of the coordinator's: ``server`` and ``coordinator`` are its own kits, ``kits`` holds those to hand
to the sites, and ``authority`` the keys that signed them all, which must never leave the coordinator.
"""

import contextlib
import io
import json
import re
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.errors import InputError, SitesError

CONTROLLER = "fedgrem.engines.flare.center.CenterController"
EXECUTOR = "fedgrem.engines.flare.site.SiteExecutor"
GUARD = "fedgrem.engines.flare.site.OutgoingGuard"
LAUNCHER = "fedgrem.engines.flare.launcher.RestartingLauncher"
REFUSES = "fedgrem.engines.flare.certificates.RefusesReplaced"
"""What a job, a kit's policy and its resources name: the only classes of ours that NVFlare makes."""
STUDY = "study.json"
REVOKED = "disabled_clients.json"
"""In the server's kit: the sites that NVFlare's server lets in no more, whatever certificate they show."""
REPLACED = "replaced_certificates.json"
"""In the server's kit: serial numbers of certificates of sites that have a later one, or were removed."""
PROJECT, ORGANIZATION, OPERATOR = "fedgrem", "fedgrem", "coordinator@fedgrem.org"
ROLES = ("project_admin", "org_admin", "lead", "member")
STREAMERS = ("site_log_streamer", "log_receiver")
"""Components of NVFlare's own kits that carry a site's error log, tracebacks and all, to the server."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
RESERVED = ("server", "coordinator", "center", "all")
BUILDERS: list[dict[str, Any]] = [
    {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder", "args": {}},
    {
        "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
        "args": {"config_folder": "config", "scheme": "grpc"},
    },
    {"path": "nvflare.lighter.impl.cert.CertBuilder", "args": {}},
    {"path": "nvflare.lighter.impl.signature.SignatureBuilder", "args": {}},
]


class Study(NamedTuple):
    """A coordinator's folder."""

    folder: Path
    host: str
    port: int
    sites: tuple[str, ...]

    @property
    def server(self) -> Path:
        """The kit of the server, where its runs are kept as well."""
        return self.folder / "server"

    @property
    def coordinator(self) -> Path:
        """The kit with which the coordinator talks to the server."""
        return self.folder / "coordinator"

    def kit(self, site: str) -> Path:
        """The kit to hand to a site."""
        return self.folder / "kits" / site


def init_study(folder: Path, sites: Iterable[str], host: str, port: int) -> Study:
    """Make certificates and a kit for the server, the coordinator and every site."""
    names = sorted(sites)
    if (folder / STUDY).exists():
        raise InputError(f"{folder} is a study already; add a site with `fedgrem sites add`, or give another folder.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; give a new folder for the study.")
    if len(names) < 2:
        raise InputError(f"got {len(names)} site(s); a federation needs at least two: --site north --site south.")
    for name in names:
        check_site_name(name)
    if len(set(names)) < len(names):
        raise InputError(f"a site is named more than once among {', '.join(names)}; give every site its own name.")
    _check_host(host)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    study = Study(folder.resolve(), host, port, tuple(names))
    made = _provision(study)
    shutil.move(made / host, study.server)
    shutil.move(made / OPERATOR, study.coordinator)
    for name in names:
        _take_kit(study, made, name)
    harden_server(study.server)
    _tidy(study, made)
    _write_study(study)
    return study


def add_site(study: Study, name: str) -> Study:
    """Make a kit for one more site; the others keep theirs."""
    check_site_name(name)
    if name in study.sites:
        raise InputError(f"{name!r} is a site of this study already; renew its kit with `fedgrem sites renew`.")
    if name in _revoked(study):
        raise InputError(f"{name!r} was removed from this study, and its certificate is refused; give another name.")
    if study.kit(name).exists():
        raise InputError(f"{study.kit(name)} is left from a site of that name; move it away first.")
    grown = study._replace(sites=tuple(sorted((*study.sites, name))))
    made = _provision(grown)
    _take_kit(grown, made, name)
    _tidy(grown, made)
    _write_study(grown)
    return grown


def renew_kit(study: Study, name: str) -> Path:
    """Make a new certificate for a site, the server ("server") or the coordinator; returns the kit it is in."""
    subjects = {"server": study.host, "coordinator": OPERATOR} | {site: site for site in study.sites}
    if name not in subjects:
        raise InputError(f"{name!r} is not of this study; renew one of {', '.join(subjects)}.")
    if name in study.sites:
        check_kept(study, name)
        _replace(study, name)
    else:
        _forget_certificates(study, (subjects[name],))
    made = _provision(study)
    kit = study.server if name == "server" else study.coordinator if name == "coordinator" else study.kit(name)
    shutil.rmtree(kit / "startup", ignore_errors=True)
    shutil.copytree(made / subjects[name] / "startup", kit / "startup")
    _tidy(study, made)
    return kit


def remove_site(study: Study, name: str) -> Study:
    """Take a site out of the study: no job is sent to it, and the server lets it in no more from its next start on."""
    if name not in study.sites:
        raise InputError(f"{name!r} is not a site of this study; the sites are {', '.join(study.sites)}.")
    left = study._replace(sites=tuple(site for site in study.sites if site != name))
    _write(study.server / REVOKED, {"disabled_clients": sorted({*_revoked(study), name})})
    if study.kit(name).exists():
        _replace(study, name)
    _write_study(left)
    return left


def hand_over(study: Study, name: str) -> None:
    """Delete the private key of a site, which has its kit: from then on only the site can be that site."""
    if name not in study.sites:
        raise InputError(f"{name!r} is not a site of this study; the sites are {', '.join(study.sites)}.")
    check_kept(study, name)
    (study.kit(name) / "startup" / "client.key").unlink(missing_ok=True)


def check_kept(study: Study, name: str) -> None:
    """Refuse where there is no kit of a site any more."""
    if not study.kit(name).exists():
        raise InputError(f"{study.kit(name)} is gone; make a kit under another name with `fedgrem sites add`.")


def _revoked(study: Study) -> list[str]:
    """Sites whose certificates the server refuses."""
    path = study.server / REVOKED
    return list(json.loads(path.read_text())["disabled_clients"]) if path.exists() else []


def _replace(study: Study, name: str) -> None:
    """From now on the server refuses the certificate that a site has."""
    path = study.server / REPLACED
    _write(path, {"serial_numbers": sorted({*read_replaced(path), _certificate(study.kit(name)).serial_number})})


def read_replaced(path: Path) -> list[int]:
    """Serial numbers that the server refuses."""
    return list(json.loads(path.read_text())["serial_numbers"]) if path.exists() else []


def _forget_certificates(study: Study, subjects: Iterable[str]) -> None:
    """Let the next kits of these names have certificates of their own, and keep no keys of theirs."""
    state = study.folder / "authority" / PROJECT / "state" / "cert.json"
    kept = json.loads(state.read_text())
    for subject in subjects:
        kept.pop(subject, None)
    state.write_text(json.dumps(kept))
    state.chmod(0o600)


def read_study(folder: Path) -> Study:
    """The study in a folder."""
    try:
        stored = json.loads((folder / STUDY).read_text(encoding="utf-8"))
        return Study(folder.resolve(), stored["host"], int(stored["port"]), tuple(stored["sites"]))
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} is no study; make one with `fedgrem sites init {folder} --site ... --host ...`."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / STUDY} cannot be read ({error}).") from error


def site_of(kit: Path) -> str:
    """The name of the site that a kit is for: that in its certificate."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    path = kit / "startup" / "client.crt"
    if not path.exists() or not (kit / "startup" / "fed_client.json").exists():
        raise InputError(
            f"{kit} is no kit of a site; give the folder that the coordinator made with `fedgrem sites init`."
        )
    subject = x509.load_pem_x509_certificate(path.read_bytes()).subject
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def check_certificate(kit: Path, who: str) -> None:
    """Refuse to go on with a certificate that has ended, or has not begun by this machine's clock."""
    (begins, ends), now = validity(kit), datetime.now(UTC)
    if ends < now:
        renewed = f"fedgrem sites renew STUDY {who}"
        raise SitesError(
            f"the certificate of {who} ended on {ends:%Y-%m-%d}, and this machine's clock says {now:%Y-%m-%d}; the "
            f"coordinator renews it: `{renewed}`."
        )
    if now < begins:
        raise SitesError(
            f"the certificate of {who} is good from {begins:%Y-%m-%d %H:%M} UTC on, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M}: set the clock, or no connection can be made."
        )


def validity(kit: Path) -> tuple[datetime, datetime]:
    """From when to when the certificate of a kit is good."""
    certificate = _certificate(kit)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _certificate(kit: Path) -> Any:
    from cryptography import x509

    names = ("client.crt", "server.crt")
    path = next((p for p in (kit / "startup" / name for name in names) if p.exists()), None)
    if path is None:
        raise InputError(f"{kit / 'startup'} holds no certificate; put the one back that was made for it.")
    return x509.load_pem_x509_certificate(path.read_bytes())


def server_address(kit: Path) -> str:
    """``host:port`` of the server that a site's kit connects to."""
    stored = json.loads((kit / "startup" / "fed_client.json").read_text())
    return str(stored["servers"][0]["service"]["target"])


# -- hardening


def harden_site(kit: Path) -> None:
    """Allow one class in jobs and none from elsewhere, guard what leaves, keep the logs, restart killed workers."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    components = [c for c in resources["components"] if c["id"] not in (*STREAMERS, "process_launcher")]
    components.append({"id": "process_launcher", "path": LAUNCHER, "args": {}})
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [EXECUTOR, GUARD],
        "allow_log_streaming": False,
        "components": components,
    }
    guards = [{"path": GUARD, "args": {}}]
    scope = {"name": "guarded", "properties": {}, "task_data_filters": [], "task_result_filters": guards}
    _write(local / "resources.json", resources)
    _write(local / "privacy.json", {"scopes": [scope], "default_scope": "guarded"})
    _write(local / "authorization.json", _permissions(operate="none"))
    _quiet_logs(local)


def harden_server(kit: Path) -> None:
    """The same for the server; what it stores, it stores in its own kit."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    storage = {"path": "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"}
    root = {"root_dir": str(kit / "store" / "snapshots"), "uri_root": "/"}
    components = [c for c in resources["components"] if c["id"] not in STREAMERS]
    components.append({"id": "refuses_replaced", "path": REFUSES, "args": {}})
    for component in components:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "store" / "jobs")
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [CONTROLLER],
        "components": components,
    }
    resources["snapshot_persistor"]["args"]["storage"] = storage | {"args": root}
    _write(local / "resources.json", resources)
    _write(local / "authorization.json", _permissions(operate="any"))
    _quiet_logs(local)


def _permissions(operate: str) -> dict[str, Any]:
    """One role may submit jobs and look after its own; nobody may bring code or read files."""
    nothing = dict.fromkeys(
        ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc"), "none"
    )
    lead = nothing | {"submit_job": "any", "manage_job": "n:submitter", "download_job": "n:submitter", "view": "any"}
    permissions = {role: nothing for role in ROLES} | {"lead": lead | {"operate": operate}}
    return {"format_version": "1.0", "permissions": permissions}


def _quiet_logs(local: Path) -> None:
    """Warnings and errors only: by default every round writes some 6 KB at every site."""
    source = local / "log_config.json.default"
    config = json.loads(source.read_text())
    kept = ["logFileHandler", "errorFileHandler"]
    config["handlers"] = {name: config["handlers"][name] for name in kept}
    config["loggers"] = {"root": {"level": "WARNING", "handlers": kept}}
    _write(local / "log_config.json", config)


# -- making


def _provision(study: Study) -> Path:
    """Let NVFlare make all kits; those that exist keep their certificates. Returns the folder they are in."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    participants: list[dict[str, Any]] = [
        {"name": study.host, "type": "server", "org": ORGANIZATION, "fed_learn_port": study.port},
        *({"name": site, "type": "client", "org": ORGANIZATION} for site in study.sites),
        {"name": OPERATOR, "type": "admin", "org": ORGANIZATION, "role": "lead"},
    ]
    project = {"api_version": 3, "name": PROJECT, "description": "", "participants": participants, "builders": BUILDERS}
    authority = study.folder / "authority"
    authority.mkdir(mode=0o700, exist_ok=True)
    words = io.StringIO()
    with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
        context = Provisioner(str(authority), prepare_builders(project)).provision(prepare_project(project))
    made = context.get("current_prod_dir")
    if not made or context.get("build_error"):
        raise SitesError(f"the kits could not be made: {' '.join(words.getvalue().split()[-60:])}")
    return Path(made)


def _take_kit(study: Study, made: Path, name: str) -> None:
    study.kit(name).parent.mkdir(mode=0o700, exist_ok=True)
    shutil.move(made / name, study.kit(name))
    harden_site(study.kit(name))


def _tidy(study: Study, made: Path) -> None:
    shutil.rmtree(made, ignore_errors=True)
    _forget_certificates(study, study.sites)
    for path in study.folder.rglob("*"):  # NVFlare opens its scripts to everybody
        path.chmod(path.stat().st_mode & 0o700)


def check_site_name(name: str) -> None:
    """Refuse a name that cannot be in a certificate and be the name of a folder."""
    if not NAME.fullmatch(name) or name.lower() in RESERVED:
        raise InputError(
            f"{name!r} cannot be the name of a site; use up to 63 letters, digits, '-', '_' and '.', and none of "
            f"{', '.join(RESERVED)}."
        )


def _check_host(host: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
        raise InputError(f"{host!r} is no host name; give the name by which the sites reach the server.")


def _write_study(study: Study) -> None:
    _write(study.folder / STUDY, {"host": study.host, "port": study.port, "sites": list(study.sites)})


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
