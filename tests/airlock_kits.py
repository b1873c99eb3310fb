"""Airlock kits of a small release, and changes to them that verification must find."""

import base64
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tasks.config.params import validate
from tasks.desk.airlock import build_kit
from tasks.desk.kit import verify
from tasks.reports.statement_page import render_technical_page
from tasks.runtime.accounts import site_signing_file
from tasks.runtime.run import Run
from tasks.serving.attestations import sign_for_tools
from tasks.serving.pages import write_pages
from tasks.serving.verification import verify_statement
from terrine.deployment.manifest import check_seal
from terrine.deployment.signature import Signature, public_pem, sign, sign_approval, signing_key, write_signature
from terrine.files import file_digest
from tests.student_folders import make_statement, make_student

STRANGER = Ed25519PrivateKey.from_private_bytes(b"stranger" * 4)
STEWARD = Ed25519PrivateKey.from_private_bytes(b"stewards" * 4)


def approve(key: Ed25519PrivateKey = STEWARD, **changes: Any) -> dict[str, Any]:
    """Return an approval of the release of a kit."""
    about = {"run": "clinic", "releases": ["01"], "decision": "approved", "role": "data steward", "signer": "person"}
    return asdict(sign_approval(key, {**about, "subject": "ab", "signed": "2026-02-03T10:00:00+00:00", **changes}))


def make_signed_run(root: Path, *, sign_it: bool = True, **changes: Any) -> Run:
    """Return a run that has a student, a statement with `changes`, pages in two languages, and signatures."""
    data = {"name": "npz", "path": "people.npz", "size": 8, "channels": 1}
    run = Run(root, "clinic", validate({"data": data, "ledger": {"account": "people", "epsilon": 8}}))
    release = run.folders.release
    content = make_statement(make_student(release / "student"), **{"approval": approve(), **changes})
    (release / "statement.html").write_text(
        render_technical_page(content, check_seal(release / "student")["class_names"])
    )
    if sign_it:
        write_pages(release, ["en", "de"], signing_key(site_signing_file(run)))
        sign_for_tools(release, site_signing_file(run))
    return run


def kit_of(run: Run, target: Path) -> Path:
    """Sign the release of a run, build its kit, and return the kit's folder after verification."""
    write_pages(run.folders.release, ["en"], signing_key(site_signing_file(run)))
    sign_for_tools(run.folders.release, site_signing_file(run))
    kit = build_kit(run, target)
    outcomes = [(name, holds) for holds, name, _ in verify.verify(str(kit.folder), kit.key.replace(" ", ""))]
    assert [name for name, _ in outcomes] == ["files", "signature", "signer", "approval", "ε"]
    assert False not in [holds for _, holds in outcomes]
    assert not [check for check in verify_statement(kit.folder, kit.key) if check.holds is False]
    return kit.folder


def make_kit(root: Path, **changes: Any) -> tuple[Path, str]:
    """Return a new kit and the fingerprint of its key."""
    kit = build_kit(make_signed_run(root, **changes), root / "kit")
    return kit.folder, kit.key


def sign_again(kit: Path, key: Ed25519PrivateKey) -> None:
    """Sign a kit as it is now with another key, statement and all."""
    public = public_pem(key.public_key()).decode()
    signature = json.loads((kit / "signature.json").read_text())
    named = {name: file_digest(kit / name) for name in signature["files"]}
    content = {
        **{name: value for name, value in signature.items() if name not in ("public_key", "signature")},
        **{"files": named, "student": file_digest(kit / "student" / "manifest.json")},
    }
    write_signature(kit / "signature.json", sign(key, content))
    assert Signature(**json.loads((kit / "signature.json").read_text())).public_key == public
    listing = json.loads((kit / "kit.json").read_text())
    listing["files"] = {
        path.relative_to(kit).as_posix(): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in sorted(kit.rglob("*"))
        if path.is_file() and path.name not in ("kit.json", "kit.sig")
    }
    seal_listing(kit, json.dumps(listing).encode(), key)


def seal_listing(kit: Path, listing: bytes, key: Ed25519PrivateKey) -> None:
    (kit / "kit.json").write_bytes(listing)
    (kit / "kit.sig").write_bytes(base64.b64encode(key.sign(b"terrine airlock kit\n" + listing)))


def change_digit(kit: Path) -> None:
    path = kit / "privacy.json"
    text, count = re.subn(
        r'("epsilon": [\d.]*)(\d)', lambda found: found[1] + str((int(found[2]) + 1) % 10), path.read_text()
    )
    assert count == 1
    path.write_text(text)


def change_byte(name: str) -> Callable[[Path], None]:
    def change(kit: Path) -> None:
        content = bytearray((kit / name).read_bytes())
        content[len(content) // 2] ^= 1
        (kit / name).write_bytes(content)

    return change


def replace_key(kit: Path) -> None:
    signature = json.loads((kit / "signature.json").read_text())
    signature["public_key"] = public_pem(STRANGER.public_key()).decode()
    (kit / "signature.json").write_text(json.dumps(signature))


def change_kit_signature(kit: Path) -> None:
    value = bytearray(base64.b64decode((kit / "kit.sig").read_text()))
    value[3] ^= 1
    (kit / "kit.sig").write_bytes(base64.b64encode(value))


def swap_signature(kit: Path) -> None:
    """Take the statement's signature of another run, which the same site signed."""
    other = json.loads((kit / "signature.json").read_text())
    site = signing_key(kit.parent / "data" / "private" / "ledger" / "signing.pem")
    content = {name: value for name, value in other.items() if name not in ("public_key", "signature")}
    write_signature(kit / "signature.json", sign(site, {**content, "release": "02"}))


def swap_and_list_it(kit: Path) -> None:
    """As `swap_signature`, and list it: the site's key signs the listing as well."""
    swap_signature(kit)
    listing = json.loads((kit / "kit.json").read_text())
    path = kit / "signature.json"
    listing["files"]["signature.json"] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    seal_listing(
        kit, json.dumps(listing).encode(), signing_key(kit.parent / "data" / "private" / "ledger" / "signing.pem")
    )


def remove(name: str) -> Callable[[Path], None]:
    return lambda kit: (kit / name).unlink()


def add_file(kit: Path) -> None:
    (kit / "student" / "more.bin").write_bytes(b"more")


def change_listing(kit: Path) -> None:
    path = kit / "kit.json"
    path.write_text(path.read_text().replace('"run": "clinic"', '"run": "clinic2"'))


def link(kit: Path) -> None:
    """Replace a file by a symbolic link to another file outside."""
    outside = kit.parent / "outside.txt"
    outside.write_text("outside")
    (kit / "model-card.md").unlink()
    (kit / "model-card.md").symlink_to(outside)


def listed_again(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the listing and sign it with the site's key."""

    def changed(kit: Path) -> None:
        listing = json.loads((kit / "kit.json").read_text())
        new = change(listing) or listing
        content = new if isinstance(new, bytes) else json.dumps(new).encode()
        seal_listing(kit, content, signing_key(kit.parent / "data" / "private" / "ledger" / "signing.pem"))

    return changed


def lead_outside(listing: dict[str, Any]) -> None:
    listing["files"]["../outside.txt"] = {"bytes": 0, "sha256": ""}


def twice(listing: dict[str, Any]) -> bytes:
    return (
        json.dumps(listing)
        .replace('{"files"', '{"files": {}, "files"', 1)
        .replace('"kit": 1', '"files": 0', 1)
        .encode()
    )


def infinite(listing: dict[str, Any]) -> bytes:
    return json.dumps({**listing, "more": float("nan")}).encode()


def sign_as_stranger(kit: Path) -> None:
    sign_again(kit, STRANGER)


def restated(**changes: Any) -> Callable[[Path], None]:
    """Let the site itself sign a changed statement."""

    def change(kit: Path) -> None:
        path = kit / "privacy.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        sign_again(kit, signing_key(kit.parent / "data" / "private" / "ledger" / "signing.pem"))

    return change


def remove_approval(kit: Path) -> None:
    path = kit / "privacy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "approval": None}))


def reorder_ledger(kit: Path) -> None:
    path = kit / "ledger.json"
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items())), indent=2) + "\n")


def rename(kit: Path) -> None:
    (kit / "ledger.json").rename(kit / "book.json")


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "digit": (change_digit, "privacy.json was changed"),
    "byte of the student": (change_byte("student/head.safetensors"), "student/head.safetensors was changed"),
    "page": (change_byte("statement-de.html"), "statement-de.html was changed"),
    "verifier": (change_byte("verify.html"), "verify.html was changed"),
    "key": (replace_key, "kit.json, kit.sig or the key was changed"),
    "signature": (change_kit_signature, "kit.json, kit.sig or the key was changed"),
    "statement's signature": (change_byte("signature.json"), "signature.json"),
    "signature of another run": (swap_signature, "signature.json was changed"),
    "signature of another run, listed": (swap_and_list_it, "signature.json is for another release than privacy.json"),
    "removed file": (remove("model-card.md"), "model-card.md is missing"),
    "removed signature": (remove("kit.sig"), "kit.sig"),
    "added file": (add_file, "student/more.bin was added"),
    "listing": (change_listing, "kit.json, kit.sig or the key was changed"),
    "symbolic link": (link, "model-card.md"),
    "path outside": (listed_again(lead_outside), "../outside.txt, which leads outside the kit"),
    "duplicate keys": (listed_again(twice), "kit.json is not valid JSON: a key occurs twice"),
    "not a number": (listed_again(infinite), "kit.json is not valid JSON"),
    "other signer": (sign_as_stranger, "Signed with the key "),
    "epsilon too small": (restated(epsilon=1.3564, epsilon_guaranteed=1.3564), "epsilon is printed as "),
    "removed approval": (remove_approval, "privacy.json was changed"),
    "approval by another key": (
        restated(approval={**approve(STRANGER), "public_key": approve()["public_key"]}),
        "The approval was changed after it was signed",
    ),
    "approval by another key as the site's": (
        restated(approval=approve(STRANGER, signer="site")),
        "The approval is not signed with the site's key",
    ),
    "approval of another run": (restated(approval=approve(releases=["02"])), "The approval is for another release"),
    "refusal": (restated(approval=approve(decision="refused")), "The approval is for another release, or a refusal"),
    "later role": (restated(approval={**approve(), "role": "director"}), "The approval was changed after"),
    "damaged approval": (restated(approval=3), "The approval is damaged"),
    "reordered ledger": (reorder_ledger, "ledger.json was changed"),
    "renamed file": (rename, "book.json was added"),
}
"""Changes to a kit by name, with a part of the message that must name them."""


def copy_of(kit: Path, target: Path) -> Path:
    """Return a copy of a kit, with the site's key at the same place beside it."""
    shutil.copytree(kit, target / "kit")
    shutil.copytree(kit.parent / "data" / "private" / "ledger", target / "data" / "private" / "ledger")
    return target / "kit"


assert os.path.basename(verify.__file__) == "verify.py"
