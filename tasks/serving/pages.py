"""What is written about a release for people beside its privacy.json, signed or not, and drawn again to be compared.

privacy.json         what all of it follows from
statement.html       the technical page (stage `aggregate`)
statement-de.html    the page for an ethics board, by language; .pdf the same on paper
model-card.md        the student in a page, for registries
signature.json       what the site signed: digests of these, and of the student
student.zip          all of it in one file that may be mailed, with the accuracy and the student
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

from tasks.reports.board_page import Mark, board_page, pdf_of
from tasks.reports.pages import render
from tasks.reports.statement_page import guarantee, languages, read_statement, render_statement, statement_texts
from tasks.runtime.store import atomic_file, write_text
from terrine.deployment.manifest import MANIFEST, check_seal
from terrine.errors import ArtefactError, TerrineError, named
from terrine.files import file_digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FIGURES, TECHNICAL, CARD, SIGNATURE = "privacy.json", "statement.html", "model-card.md", "signature.json"
ARCHIVE, ACCURACY, STUDENT = "student.zip", "accuracy.json", "student"
LARGEST = 2**35
"""Most bytes that a received archive may unpack to: a small file can unpack to any size."""
STATEMENT = (FIGURES, TECHNICAL)
"""What every release has."""
_BOARD = re.compile(r"statement-([a-z]+)\.(html|pdf)")


@dataclass(frozen=True)
class Written:
    """What was written: names of files, the fingerprint of the key that signed them, and why there is no PDF."""

    files: list[str]
    key: str | None
    no_pdf: str | None


def pages_in(folder: Path) -> list[str]:
    """Return the names of the pages that lie in a folder."""
    found = (path.name for path in folder.iterdir() if path.is_file())
    return sorted(name for name in found if name in (TECHNICAL, CARD) or _BOARD.fullmatch(name))


def drawn(name: str, statement: dict[str, Any], classes: Sequence[str] | None, mark: Mark | None) -> str | None:
    """Return what the file of this name says of a statement; None where that cannot be told: of a PDF, or without the
    names of the classes where the page has them."""
    board = _BOARD.fullmatch(name)
    if board is not None and board[2] == "html" and board[1] in languages():
        return board_page(statement, board[1], mark)
    if classes is None:
        return None
    if name == TECHNICAL:
        return render_statement(statement, classes)
    return model_card(statement, classes) if name == CARD else None


def model_card(statement: dict[str, Any], classes: Sequence[str]) -> str:
    """Return the student's model card, Markdown."""
    return render(
        "model_card.md",
        {
            "statement": statement,
            "run": statement["run"],
            "classes": classes,
            **statement_texts(statement),
        },
    )


def class_names(folder: Path) -> list[str] | None:
    """Return the classes of the student in a folder, its seal checked, as the statement's; None where there is none.

    Raises ArtefactError for a student that is damaged, or of another release than the statement in the folder.
    """
    student = folder / "student"
    if not student.is_dir():
        return None
    guarantee(student)
    return list(check_seal(student)["class_names"])


def write_pages(folder: Path, codes: Sequence[str], key: Ed25519PrivateKey | None = None) -> Written:
    """Write the pages of the statement in `folder`, in these languages, and sign them where there is a key; PDF where
    that can be made. Pages and a signature of before give way.

    Raises ArtefactError where the statement or the student is damaged, they do not belong together, or the technical
    page, which is there already, is not what this version draws, and would be found not to be.
    """
    from terrine.deployment.signature import fingerprint, sign, write_signature

    statement, classes = read_statement(folder / FIGURES), class_names(folder)
    technical = drawn(TECHNICAL, statement, classes, None)
    there = (folder / TECHNICAL).read_bytes() if TECHNICAL in pages_in(folder) else None
    if key is not None and None not in (there, technical) and there != str(technical).encode():
        raise ArtefactError(
            f"{folder / TECHNICAL} is not what this Terrine draws of {FIGURES}: another version did, or somebody "
            f"changed it. Make the run again, which charges nothing: terrine run --preset {statement['run']}"
        )
    now = datetime.now(UTC).replace(microsecond=0)
    mark = None if key is None else Mark(now, fingerprint(key.public_key()))
    pages = [(f"statement-{code}.html", board_page(statement, code, mark)) for code in codes]
    no_pdf, papers = None, []
    try:
        papers = [(Path(name).with_suffix(".pdf").name, pdf_of(page)) for name, page in pages]
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
            "student": None if classes is None else file_digest(folder / "student" / MANIFEST),
            "terrine": version("terrine"),
            "signed": now.isoformat(),
        }
        write_signature(folder / SIGNATURE, sign(key, content))
        written.append(SIGNATURE)
    return Written(written, None if mark is None else mark.key, no_pdf)


def clear_pages(folder: Path) -> None:
    """Remove the signature of a release and all pages but the technical one, which comes with its statement."""
    for name in (SIGNATURE, *pages_in(folder)):
        if name != TECHNICAL:
            (folder / name).unlink(missing_ok=True)


def write_single(folder: Path, code: str, html: Path | None, pdf: Path | None) -> None:
    """Write one page about the statement in `folder` to files elsewhere, signed as those in the folder are."""
    from terrine.deployment.signature import read_signature

    mark = None
    if (folder / SIGNATURE).is_file():
        signature = read_signature(folder / SIGNATURE)
        if signature.files.get(FIGURES) == file_digest(folder / FIGURES):
            mark = Mark(signature.when, signature.key)
    page = board_page(read_statement(folder / FIGURES), code, mark)
    if html is not None:
        write_text(html, page)
    if pdf is not None:
        with atomic_file(pdf) as file:
            file.write(pdf_of(page))


def pack(release: Path, archive: Path) -> None:
    """Write what lies in a release's folder, and may leave it, into one file. The same is the same file: it has no
    times in it."""
    beside = (release / name for name in (FIGURES, *pages_in(release), SIGNATURE, ACCURACY))
    files = [*(path for path in beside if path.is_file()), *sorted((release / STUDENT).rglob("*"))]
    with atomic_file(archive) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            if file.is_file():
                packed.writestr(zipfile.ZipInfo(str(file.relative_to(release))), file.read_bytes())


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the folder of a release that was handed on: the one that is named, or what a file holds, for as long as the
    block lasts.

    Raises ArtefactError for a file that is damaged or would fill the disk.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="terrine-student-") as temporary:
        try:
            with zipfile.ZipFile(path) as packed:
                if unpacked_size(packed) > LARGEST:
                    raise ArtefactError(f"{path} would take more than {LARGEST >> 30} GiB. It is no student's.")
                packed.extractall(temporary)  # which keeps to the folder, whatever names it holds
        except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
            raise ArtefactError(f"{path} is damaged ({error}). Get it again from who handed it on.") from error
        with named(temporary, path):
            yield Path(temporary)


def unpacked_size(packed: zipfile.ZipFile) -> int:
    """Return how many bytes all that an archive holds takes, by its own directory, past which nothing is unpacked."""
    return sum(part.file_size for part in packed.infolist())
