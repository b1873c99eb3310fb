"""Airlock kit: one folder with a release and all that an output checker needs to decide whether it may leave.

kit.json, kit.sig    name, size and SHA-256 of every file, and the site's signature of this list
index.html           what to check, on one screen
verify.py, .html     verification without Terrine: Python's standard library, or a browser without a network
privacy.json …       statement, pages, model card, released accuracy and signatures (`tasks.serving.pages`)
statement-1.json     JSON Schema of privacy.json
student/, model/     the student, or a model that another library trained
ledger.json          what the ledger charged for this run
audit.json           audit of the mechanism on synthetic data, if one ran
satre.yaml           controls of SATRE 2.0.1 to which the kit contributes
sbom.json            installed packages that Terrine depends on, as CycloneDX

Formal guarantee: only files of this list are copied, all of them from the public zones or computed from the statement.
Attack results are functions of private records. For private data they stay in the private zone, for checkers inside.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tasks.desk.kit.verify import check_epsilon, verify
from tasks.desk.sacro import membership_report
from tasks.reports.pages import render
from tasks.reports.statement_page import TECHNICAL, published_files
from tasks.runtime.accounts import ledger_before, site_signing_key
from tasks.runtime.approval import refuse_uncovered
from tasks.runtime.releases import AUDIT, list_releases
from tasks.runtime.run import Run
from tasks.runtime.store import atomic_file, atomic_folder, read_json, write_json, write_text
from tasks.serving.pages import ACCURACY, FIGURES, MODEL, SIGNATURE, SIGNATURES, STUDENT, pages_in
from tasks.serving.verification import refuse_wrong, verify_statement
from terrine.deployment.manifest import MANIFEST, check_seal
from terrine.deployment.signature import Approval, fingerprint
from terrine.errors import ArtefactError, InputError, TerrineError
from terrine.files import file_digest, files_below
from terrine.privacy.accounting.events import to_json
from terrine.privacy.statement import SCHEMA

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KIT, KIT_SIGNATURE = "kit.json", "kit.sig"
TOOLS = Path(__file__).with_name("kit")
ATTACKS = ("membership.json", "canaries.json")
"""Results of attacks on the run, in the private zone."""
REPORT = "report.json"
"""The membership results in SACRO-ML's format."""
_SIGNED = b"terrine airlock kit\n"


@dataclass(frozen=True)
class Kit:
    """A kit: folder, archive, fingerprint of the signing key, and the folder of attack results for checkers inside."""

    folder: Path
    archive: Path
    key: str
    inside: Path | None


def build_kit(run: Run, target: Path) -> Kit:
    """Write the kit of a run as a folder, and as a zip file beside it. Equal content gives equal bytes.

    Args:
        run: The run, whose release is private, signed and verified.
        target: Folder to write. An earlier kit is replaced.

    Raises:
        ArtefactError: The release is missing, unsigned or NOT PRIVATE, or its verification or the ledger's fails.
        InputError: `target` exists and is not a kit, or a required approval does not cover the statement.
    """
    release = run.folders.release
    key = _checked_key(run)
    if target.exists() and not (target / KIT).is_file():
        raise InputError(f"{target} exists and is no earlier kit. Give a new folder with --out, or remove it.")
    statement = read_json(run.folders.statement)
    attacks = [path for name in ATTACKS if (path := run.folders.private / name).is_file()]
    public = run.params.data.public_benchmark
    with atomic_folder(target) as folder:
        for name in (FIGURES, *SIGNATURES, *pages_in(release), ACCURACY):
            if (release / name).is_file():
                shutil.copyfile(release / name, folder / name)
        for name in _model_files(release, statement):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(release / name, folder / name)
        for path in (SCHEMA, TOOLS / "verify.py", TOOLS / "verify.html"):
            shutil.copyfile(path, folder / path.name)
        audit = run.folders.public / AUDIT
        if statement["audit_epsilon"] is not None and audit.is_file() and read_json(audit)["may_be_published"]:
            shutil.copyfile(audit, folder / AUDIT)
        write_json(folder / "ledger.json", ledger_excerpt(run, statement))
        write_json(folder / "sbom.json", package_list())
        if attacks and public:
            (folder / "attacks").mkdir()
            _write_attacks(folder / "attacks", attacks, statement)
        write_text(folder / "satre.yaml", satre_controls(statement, {*files_below(folder), KIT, "satre.yaml"}))
        names = sorted([*files_below(folder), "index.html"])
        values = {
            "statement": statement,
            "key": fingerprint(key.public_key()),
            "names": names,
            "absent": _published_elsewhere(statement, names),
            "priced": check_epsilon(statement)[0],
            "approval": statement["approval"] and Approval(**statement["approval"]),
            "page": min(pages_in(folder), key=lambda name: (name != TECHNICAL, name != "statement-en.html")),
        }
        write_text(folder / "index.html", render("airlock.html", values))
        _seal(folder, statement, key)
        failed = [told for holds, _, told in verify(str(folder), None) if holds is False]
        if failed:
            raise ArtefactError(f"The kit of run {run.name} does not verify: {failed[0]}")
    archive = target.with_name(f"{target.name}.zip")
    with atomic_file(archive) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, path in files_below(target).items():
            packed.writestr(zipfile.ZipInfo(f"{target.name}/{name}"), path.read_bytes(), zipfile.ZIP_DEFLATED)
    inside = None
    if attacks and not public:
        inside = run.folders.private / "airlock"
        with atomic_folder(inside) as folder:
            _write_attacks(folder, attacks, statement)
    return Kit(target, archive, fingerprint(key.public_key()), inside)


def _model_files(release: Path, statement: Mapping[str, Any]) -> list[str]:
    """Return the names of the student's files, or of those of an imported model, in a release's folder."""
    if "files" in statement["mechanism"]:
        return [f"{MODEL}/{name}" for name in statement["mechanism"]["files"]]
    return [f"{STUDENT}/{name}" for name in (MANIFEST, *check_seal(release / STUDENT)["digests"])]


def _published_elsewhere(statement: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the files of a run's release that the statement lists as published and a kit with these files lacks."""
    if "files" in statement["mechanism"]:
        return []
    listed = (name for row, _ in published_files(statement, signed=True) for name in row.split(", "))
    return [name for name in listed if not any(found.startswith(name.rstrip("*")) for found in names)]


def _checked_key(run: Run) -> Ed25519PrivateKey:
    """Return the site's key after checking that the run's release may leave."""
    release = run.folders.release
    if not run.folders.statement.is_file() or not ((release / STUDENT).is_dir() or (release / MODEL).is_dir()):
        raise ArtefactError(f"Run {run.name} has no released student. Make it first: terrine run {run.name}")
    if not (release / SIGNATURE).is_file():
        raise ArtefactError(f"Run {run.name} is not signed. Sign it first: terrine statement --sign --run {run.name}")
    key, statement = site_signing_key(run), read_json(run.folders.statement)
    refuse_uncovered(run, str(statement.get("release_id")), statement)
    try:
        refuse_wrong(verify_statement(release, fingerprint(key.public_key())))
    except TerrineError as error:
        raise ArtefactError(
            f"Run {run.name} does not verify, so there is no kit of it. {error} If an audit or a search changed the "
            f"statement since it was signed, sign it again: terrine statement --sign --run {run.name}"
        ) from error
    if not statement["private"]:
        raise ArtefactError(f"Run {run.name} guarantees nothing that a kit could document. {statement['warning']}")
    return key


def ledger_excerpt(run: Run, statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ledger's charges for the run's releases, after verifying the ledger.

    Other releases of the account appear only in the total that the statement contains: neither their names, numbers nor
    dates. Raises LedgerError if the ledger was changed.
    """
    ledger, charged = ledger_before(run), []
    # The ledger of a collaboration is the guardian's, which is at another site.
    if ledger is not None and ledger.account(statement["dataset"]) is not None:
        ledger.verify()
        costs = ledger.costs(statement["dataset"])
        known = {statement["release_id"]: "answers"}
        if run.params.transcription is None and run.params.aggregation.where != "parties" and not run.folders.imported:
            known |= {release.identity: release.kind for release in list_releases(run)}
        charged = [
            {"kind": kind, "release_id": identity, "event": to_json(costs[identity])}
            for identity, kind in known.items()
            if identity in costs
        ]
    return {
        "account": statement["dataset"],
        "delta": statement["delta"],
        "epsilon_of_all_releases": statement["epsilon_dataset"],
        "budget_of_the_account": statement["epsilon_account"],
        "releases_of_this_run": charged,
        "verified": bool(charged),
        "note": "Totals are those at the time of this release. The site verifies its whole ledger.",
    }


def package_list() -> dict[str, Any]:
    """Return the installed packages among Terrine's direct and indirect dependencies, as a CycloneDX 1.6 document.

    Other installed packages are left out: their names may be private to the site.
    """
    found: dict[str, str] = {}
    waiting = ["terrine"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found and any(metadata.distributions(name=name)):
            found[name] = metadata.version(name)
            waiting += [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in metadata.requires(name) or ()]
    own = found.pop("terrine")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "terrine", "version": own}},
        "components": [
            {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
            for name, version in sorted(found.items())
        ],
    }


def satre_controls(statement: Mapping[str, Any], names: set[str]) -> str:
    """Return satre.yaml: the controls whose evidence is in the kit, filled in from the statement."""
    content = yaml.safe_load((TOOLS / "satre.yaml").read_text(encoding="utf-8"))
    controls = []
    for control in content["controls"]:
        needed = control.pop("needs", None)
        if set(control["evidence"]) <= names and (needed is None or statement.get(needed)):
            controls.append({**control, "contribution": control["contribution"].format_map(statement)})
    own = {"run": statement["run"], "release_id": statement["release_id"], "controls": controls}
    return str(yaml.safe_dump({**content, **own}, sort_keys=False, allow_unicode=True, width=100))


def _write_attacks(folder: Path, attacks: list[Path], statement: Mapping[str, Any]) -> None:
    """Write results of attacks; those of membership inference also in SACRO-ML's format."""
    for path in attacks:
        shutil.copyfile(path, folder / path.name)
        if path.name == "membership.json":
            write_json(folder / REPORT, membership_report(read_json(path), statement, metadata.version("terrine")))


def _seal(folder: Path, statement: Mapping[str, Any], key: Ed25519PrivateKey) -> None:
    """Write kit.json and its signature."""
    listed = {
        name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for name, path in files_below(folder).items()
    }
    about = {"kit": 1, "run": statement["run"], "release_id": statement["release_id"]}
    text = json.dumps({**about, "terrine": metadata.version("terrine"), "files": listed}, indent=2, sort_keys=True)
    content = f"{text}\n".encode()
    (folder / KIT).write_bytes(content)
    (folder / KIT_SIGNATURE).write_bytes(base64.b64encode(key.sign(_SIGNED + content)) + b"\n")
