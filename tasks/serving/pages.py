"""Pages and archive of a release, drawn from its privacy.json and signed on request.

privacy.json         statement, for programs
statement.html       technical page (stage `aggregate`)
statement-de.html    page for approval, by language; .pdf for printing
model-card.md        description of the student, for registries
signature.json       digests of these files and of the student, signed by the site
attestation.json     the same for other tools, like model.sig and model-key.pem (`tasks.serving.attestations`)
student.zip          all of it, with the accuracy and the student
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.reports.language import LANGUAGES
from tasks.reports.pages import render
from tasks.reports.statement_page import (
    TECHNICAL,
    SignatureMark,
    mechanism_texts,
    render_pdf,
    render_statement_page,
    render_technical_page,
)
from tasks.runtime.store import atomic_file, write_text
from terrine.deployment.manifest import MANIFEST, check_seal
from terrine.errors import ArtefactError, TerrineError, named
from terrine.files import file_digest
from terrine.privacy.facts import sentences
from terrine.privacy.statement import read_statement

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FIGURES, CARD, SIGNATURE = "privacy.json", "model-card.md", "signature.json"
ATTESTATION, MODEL_SIGNATURE, MODEL_KEY = "attestation.json", "model.sig", "model-key.pem"
SIGNATURES = (SIGNATURE, ATTESTATION, MODEL_SIGNATURE, MODEL_KEY)
ARCHIVE, ACCURACY, STUDENT = "student.zip", "accuracy.json", "student"
MODEL = "model"
"""Folder of a model that another library trained (`tasks.desk.imports`)."""
LARGEST = 2**35
"""Largest size of a received archive when unpacked, in bytes."""
STATEMENT = (FIGURES, TECHNICAL)
"""Names of the files that every release has."""
_PAGE = re.compile(r"statement-([a-z]+)\.(html|pdf)")


@dataclass(frozen=True)
class Written:
    """Result of `write_pages`: names of files, fingerprint of the signing key, and why there is no PDF."""

    files: list[str]
    key: str | None
    no_pdf: str | None


def pages_in(folder: Path) -> list[str]:
    """Return the names of the pages in a folder."""
    found = (path.name for path in folder.iterdir() if path.is_file())
    return sorted(name for name in found if name in (TECHNICAL, CARD) or _PAGE.fullmatch(name))


def draw_page(
    name: str, statement: dict[str, Any], classes: Sequence[str] | None, mark: SignatureMark | None
) -> str | None:
    """Return the content of a page by its file name.

    Args:
        name: File name.
        statement: Content of privacy.json.
        classes: Class names of the student; None: unknown.
        mark: The signature; None: not signed.

    Returns:
        None for PDF files, and for pages that need the class names if these are unknown.
    """
    page = _PAGE.fullmatch(name)
    if page is not None and page[2] == "html" and page[1] in LANGUAGES:
        return render_statement_page(statement, page[1], mark)
    if classes is None:
        return None
    if name == TECHNICAL:
        return render_technical_page(statement, classes)
    return model_card(statement, classes) if name == CARD else None


def model_card(statement: dict[str, Any], classes: Sequence[str]) -> str:
    """Return the student's model card, Markdown."""
    texts = {section: sentences(statement, section) for section in ("files", "outside", "limits")}
    values = {"statement": statement, "run": statement["run"], "classes": classes, "texts": texts}
    return render("model_card.md", values | mechanism_texts(statement))


def guarantee(student: Path) -> dict[str, Any] | None:
    """Return the main fields of the statement next to the folder `student`, with its digest; None if it is missing.

    `epsilon` is the guaranteed ε.

    Raises:
        ArtefactError: The statement is inconsistent, or describes a release other than the student's.
    """
    path = student.parent / FIGURES
    if not path.is_file():
        return None
    statement = read_statement(path)
    made_from = check_seal(student).get("release")
    if made_from != statement["release_id"]:
        raise ArtefactError(
            f"{path} is about another release than the student in {student} (made from {str(made_from)[:16]}). Get "
            "both again from where they were published, or run the stage 'student' again."
        )
    found = {name: statement[name] for name in ("run", "epsilon", "delta", "unit", "noise", "private", "summary")}
    if statement["epsilon_guaranteed"] is not None:
        found["epsilon"] = statement["epsilon_guaranteed"]
    return {**found, "statement_sha256": file_digest(path)}


def student_classes(folder: Path) -> list[str] | None:
    """Return the class names of the student in a release's folder; None if there is no student.

    Raises:
        ArtefactError: The student is damaged, or does not belong to the statement's release.
    """
    student = folder / STUDENT
    if not student.is_dir():
        return None
    guarantee(student)
    return list(check_seal(student)["class_names"])


def write_pages(folder: Path, codes: Sequence[str], key: Ed25519PrivateKey | None = None) -> Written:
    """Write the statement's pages, as PDF too if possible, and sign them; earlier pages and signatures are removed.

    Args:
        folder: The release's folder.
        codes: Languages.
        key: Private key of the site; None: do not sign.

    Raises:
        ArtefactError: Statement or student is damaged, they do not belong together, or the existing technical page
            differs from what this version draws, so that verification of the signed page would fail.
    """
    from terrine.deployment.signature import fingerprint, sign, write_signature

    statement, classes = read_statement(folder / FIGURES), student_classes(folder)
    technical = draw_page(TECHNICAL, statement, classes, None)
    there = (folder / TECHNICAL).read_bytes() if TECHNICAL in pages_in(folder) else None
    if key is not None and None not in (there, technical) and there != str(technical).encode():
        raise ArtefactError(
            f"{folder / TECHNICAL} differs from what this version of Terrine draws from {FIGURES}: it was changed, or "
            f"drawn by another version. Write it again, free of charge: terrine run {statement['run']}"
        )
    now = datetime.now(UTC).replace(microsecond=0)
    mark = None if key is None else SignatureMark(now, fingerprint(key.public_key()))
    pages = [(f"statement-{code}.html", render_statement_page(statement, code, mark)) for code in codes]
    no_pdf, papers = None, []
    try:
        papers = [(Path(name).with_suffix(".pdf").name, render_pdf(page)) for name, page in pages]
    except TerrineError as error:
        no_pdf = str(error)
    if classes is not None:
        pages.append((CARD, model_card(statement, classes)))
    clear_pages(folder)
    for name, page in pages:
        write_text(folder / name, page)
    for name, paper in papers:
        with atomic_file(folder / name) as file:
            file.write(paper)
    written = [name for name, _ in (*pages, *papers)]
    if key is not None and mark is not None:
        content = {
            "release": statement["release_id"],
            "files": {name: file_digest(folder / name) for name in (FIGURES, *pages_in(folder))},
            "student": None if classes is None else file_digest(folder / STUDENT / MANIFEST),
            "terrine": version("terrine"),
            "signed": now.isoformat(),
        }
        write_signature(folder / SIGNATURE, sign(key, content))
        written.append(SIGNATURE)
    return Written(written, None if mark is None else mark.key, no_pdf)


def clear_pages(folder: Path) -> None:
    """Remove the signatures and all pages except the technical one, which is written with the statement."""
    for name in (*SIGNATURES, *pages_in(folder)):
        if name != TECHNICAL:
            (folder / name).unlink(missing_ok=True)


def write_single_page(folder: Path, code: str, html: Path | None, pdf: Path | None) -> None:
    """Write the page in one language to other files, marked as signed if the release's statement is.

    Args:
        folder: The release's folder.
        code: Language.
        html: HTML file to write.
        pdf: PDF file to write.
    """
    from terrine.deployment.signature import read_signature

    mark = None
    if (folder / SIGNATURE).is_file():
        signature = read_signature(folder / SIGNATURE)
        if signature.files.get(FIGURES) == file_digest(folder / FIGURES):
            mark = SignatureMark(signature.when, signature.key)
    page = render_statement_page(read_statement(folder / FIGURES), code, mark)
    if html is not None:
        write_text(html, page)
    if pdf is not None:
        with atomic_file(pdf) as file:
            file.write(render_pdf(page))


def pack(release: Path, archive: Path) -> None:
    """Write the publishable files of a release into one archive.

    The archive has no timestamps, so equal files give equal bytes.
    """
    beside = (release / name for name in (FIGURES, *pages_in(release), *SIGNATURES, ACCURACY))
    files = [*(path for path in beside if path.is_file()), *sorted((release / STUDENT).rglob("*"))]
    with atomic_file(archive) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            if file.is_file():
                packed.writestr(zipfile.ZipInfo(str(file.relative_to(release))), file.read_bytes())


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the folder of a received release or proposal: `path` itself, or an archive unpacked temporarily.

    Raises:
        ArtefactError: The archive is damaged or too large.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="terrine-") as temporary:
        try:
            with zipfile.ZipFile(path) as packed:
                # Extraction stops at the sizes in the archive's directory.
                if sum(part.file_size for part in packed.infolist()) > LARGEST:
                    raise ArtefactError(f"{path} would take more than {LARGEST >> 30} GiB. Do not unpack it.")
                packed.extractall(temporary)  # never writes outside the folder
        except (zipfile.BadZipFile, OSError, RuntimeError, ValueError) as error:
            raise ArtefactError(f"{path} is damaged ({error}). Get it again from its sender.") from error
        with named(temporary, path):
            yield Path(temporary)
