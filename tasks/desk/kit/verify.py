#!/usr/bin/env python3
"""Verify an airlock kit with the Python standard library only: files, signatures and ε.

    python3 -I verify.py [FOLDER] --key "FINGERPRINT"

Nothing in the kit is imported or executed. Exit status: 0 if no check fails, 1 if one fails, 2 if there is no kit.
If all pass and the key is the site's, every file is the one that the site put into the kit, and the printed ε follows
from the mechanisms in privacy.json. The verification does not prove that the site did what it states. A changed kit may
contain a changed copy of this file: take it from Terrine if you do not trust the sender. Requires Python 3.9 or later.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import hashlib
import json
import math
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

LARGEST = 2**24  # size in bytes of the largest JSON file that is read
DEEPEST = 64  # deepest nesting of compositions
OUTCOME_DEPENDENT = ("confident", "interactive")  # outcomes decide how many answers there are, so the budget counts
_SPKI = bytes.fromhex("302a300506032b6570032100")


class Wrong(Exception):
    """A check failed. The message is for the reader."""


def list_files(folder: str) -> Iterator[str]:
    """Yield the names of all files below a folder, with "/" between parts; refuse symbolic links and special files."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(os.path.join(folder, prefix)) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name + "/")
                elif entry.is_file(follow_symlinks=False):
                    yield name
                else:
                    raise Wrong(f"{name} is a symbolic link or neither a file nor a folder.")


def read_file(folder: str, name: str, most: int) -> Iterator[bytes]:
    """Yield the blocks of a regular file; symbolic links are not followed."""
    flags = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    with os.fdopen(os.open(os.path.join(folder, *name.split("/")), flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Wrong(f"{name} is not a regular file.")
        if os.fstat(file.fileno()).st_size > most:
            raise Wrong(f"{name} was changed: it has more than {most:,} bytes.")
        while block := file.read(2**20):
            yield block


def read_small(folder: str, name: str) -> bytes:
    """Return the content of a JSON or signature file, which must be small."""
    return b"".join(read_file(folder, name, LARGEST))


def parse_json(content: bytes, name: str) -> dict[str, Any]:
    """Return a JSON object. Duplicate keys, NaN and infinities are errors."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            raise ValueError("a key occurs twice")
        return dict(items)

    def number(text: str) -> float:
        value: float = int(text) if text.strip("-").isdigit() and len(text) < 300 else float(text)
        if not math.isfinite(value):
            raise ValueError("a number is not finite")
        return value

    hooks: dict[str, Any] = {"parse_float": number, "parse_int": number, "parse_constant": number}
    try:
        found = json.loads(content.decode("utf-8"), object_pairs_hook=pairs, **hooks)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{name} is not valid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise Wrong(f"{name} is not a JSON object.")
    return found


def check_files(folder: str, found: set[str], listed: Any) -> str:
    """Compare the files that were found with those that kit.json lists with size in bytes and SHA-256."""
    if not isinstance(listed, dict) or not all(
        isinstance(entry, dict) and type(entry.get("bytes")) is int for entry in listed.values()
    ):
        raise Wrong("kit.json lists no files with size and digest.")
    for name in listed:
        if "\\" in name or ":" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise Wrong(f"kit.json names {name}, which leads outside the kit.")
    for name in sorted(found ^ set(listed)):
        raise Wrong(f"{name} is missing." if name in listed else f"{name} was added: kit.json does not list it.")
    for name, entry in sorted(listed.items()):
        digest = hashlib.sha256()
        for block in read_file(folder, name, entry["bytes"]):
            digest.update(block)
        if digest.hexdigest() != entry.get("sha256"):
            raise Wrong(f"{name} was changed: it differs from the file that kit.json lists.")
    return f"All {len(listed)} files are as listed in kit.json, and no file was added."


P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D, _ROOT = -121665 * pow(121666, P - 2, P) % P, pow(2, (P - 1) // 4, P)
Point = tuple[int, int, int, int]  # extended coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x y = T/Z
ZERO = (0, 1, 1, 0)


def add(one: Point, other: Point) -> Point:
    """Return the sum of two points (RFC 8032, section 5.1.4)."""
    a, b = (one[1] - one[0]) * (other[1] - other[0]), (one[1] + one[0]) * (other[1] + other[0])
    c, d = 2 * one[3] * other[3] * D % P, 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(times: int, point: Point) -> Point:
    """Return a multiple of a point."""
    total = ZERO
    while times:
        if times & 1:
            total = add(total, point)
        point, times = add(point, point), times >> 1
    return total


def decode_point(encoded: bytes) -> Point | None:
    """Return the point with this canonical encoding, or None if it is invalid (section 5.1.3)."""
    y = int.from_bytes(encoded, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * _ROOT % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    x = x if x & 1 == sign else P - x
    return x, y, 1, x * y % P


def encode_point(point: Point) -> bytes:
    """Return the encoding of a point (section 5.1.2)."""
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = decode_point(bytes.fromhex("58" + "66" * 31))


def verify_ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether a signature is valid (RFC 8032, 5.1.7), without cofactor, by a key not of small order."""
    if len(public) != 32 or len(signature) != 64:
        return False
    key, s = decode_point(public), int.from_bytes(signature[32:], "little")
    if BASE is None or key is None or s >= L or encode_point(multiply(8, key)) == encode_point(ZERO):
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    negative = P - key[0], key[1], 1, P - key[3]
    return encode_point(add(multiply(s, BASE), multiply(k, negative))) == signature[:32]


def public_key(pem: str) -> bytes:
    """Return the 32 bytes of an Ed25519 public key in PEM. Raises ValueError if it is not one."""
    lines = pem.strip().splitlines()
    if lines[:1] + lines[-1:] != ["-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"]:
        raise ValueError("no public key in PEM; for a certificate, use `terrine verify`")
    der = base64.b64decode("".join(lines[1:-1]), validate=True)
    if len(der) != 44 or not der.startswith(_SPKI):
        raise ValueError("not an Ed25519 key")
    return der[12:]


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of a key: the first 128 bits of its SHA-256, in groups."""
    digits = hashlib.sha256(_SPKI + public).hexdigest()
    return " ".join(digits[place : place + 4] for place in range(0, 32, 4))


def check_signed(name: str, purpose: str, content: Any) -> tuple[bytes, str]:
    """Check the signature and the date in a signed object; return its key and its date."""
    try:
        key, value = public_key(content["public_key"]), base64.b64decode(content["signature"], validate=True)
        date = datetime.datetime.fromisoformat(content["signed"])
        future = date.timestamp() > time.time() + 300
        signed = json.dumps({**content, "signature": ""}, sort_keys=True, separators=(",", ":")).encode()
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise Wrong(f"{name} is damaged ({error}).") from error
    if not verify_ed25519(key, f"{purpose}\n".encode() + signed, value):
        raise Wrong(f"{name} was changed after it was signed.")
    if future:
        raise Wrong(f"{name} is dated in the future.")
    return key, f"{date:%Y-%m-%d}"


def check_statement(signature: dict[str, Any], statement: dict[str, Any], listed: Any) -> None:
    """Check that signature.json signs this statement, its pages and this student, or an imported model."""
    check_signed("signature.json", "terrine statement", signature)
    try:
        named = {**signature["files"], "student/manifest.json": signature["student"]}
        model = {f"model/{name}": digest for name, digest in statement["mechanism"].get("files", {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"signature.json or privacy.json is damaged ({error}).") from error
    if signature.get("release") != statement.get("release_id") or "privacy.json" not in named:
        raise Wrong("signature.json is for another release than privacy.json.")
    for name, digest in sorted({**named, **model}.items()):
        if listed.get(name, {}).get("sha256") != digest:
            raise Wrong(f"{name} is not the file that {'privacy' if name in model else 'signature'}.json names.")


def check_approval(site: bytes, statement: dict[str, Any]) -> tuple[bool | None, str, str]:
    """Check the approval in privacy.json; return the outcome (None: there is none), "approval" and a sentence."""
    approval = statement.get("approval")
    if approval is None:
        return None, "approval", "privacy.json contains none."
    key, date = check_signed("The approval", "terrine approval", approval)
    covered = json.dumps(statement.get("release_id")) in json.dumps(approval.get("releases"))
    if approval.get("decision") != "approved" or not covered:
        raise Wrong("The approval is for another release, or a refusal.")
    personal = approval.get("signer") == "person"
    if not personal and key != site:
        raise Wrong(f"The approval is not signed with the site's key, but with {fingerprint(key)}.")
    whom = "the person's key" if personal else "the site's key, for that person"
    told = f"By the role '{approval.get('role')}' on {date}, {fingerprint(key)}: {whom}. Its owner was not checked."
    return True, "approval", told


def real(value: Any) -> float:
    """Return a value after checking that it is a number and not negative."""
    if type(value) not in (int, float) or value < 0:
        raise ValueError(f"{value!r} is no number, or negative")
    return float(value)


def mu_squared(event: Any, depth: int = 0) -> float:
    """Return μ² of a composition of Gaussian mechanisms: the sum of (sensitivity / sigma)²."""
    if depth > DEEPEST:
        raise ValueError("compositions are nested too deeply")
    if event["event"] == "gaussian":
        return (real(event["sensitivity"]) / real(event["sigma"])) ** 2
    if event["event"] == "repeated":
        return real(event["count"]) * mu_squared(event["of"], depth + 1)
    if event["event"] == "composed":
        return math.fsum(mu_squared(part, depth + 1) for part in event["of"])
    raise NotImplementedError(event["event"])


def mills(x: float) -> float:
    """Return Φ(−x)/φ(x): a series below 2.5, a continued fraction above; nothing underflows."""
    if x >= 2.5:
        value = x
        for number in range(100, 0, -1):
            value = x + number / value
        return 1 / value
    term = total = x
    for number in range(3, 400, 2):
        term *= x * x / number
        total += term
    return math.sqrt(math.pi / 2) * math.exp(x * x / 2) - total


def log_delta(mu: float, epsilon: float) -> float:
    """Return log δ(ε) of a μ-GDP mechanism, δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) (Balle and Wang 2018, Theorem 8)."""
    # With a = ε/μ − μ/2 and b = ε/μ + μ/2, e^ε φ(b) = φ(a), so δ = φ(a) (m(a) − m(b)) for the ratio m of `mills`.
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if a < -8:  # δ is above 1 - 1e-15
        return 0.0
    difference = mills(a) - mills(b)
    return -a * a / 2 - math.log(2 * math.pi) / 2 + math.log(difference) if difference > 0 else -math.inf


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε for which a μ-GDP mechanism is (ε, δ)-differentially private, by bisection."""
    if not (0 < delta < 1 and mu < math.inf):
        raise ValueError("δ or μ is out of range")
    target = math.log(delta)
    if mu == 0 or log_delta(mu, 0.0) <= target:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * target)
    for _ in range(2000):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if log_delta(mu, middle) > target else (low, middle)
    return high


def check_epsilon(statement: dict[str, Any]) -> tuple[bool | None, str, str]:
    """Recompute ε from the events of privacy.json; return the outcome (None: not possible), "ε" and a sentence."""
    if statement.get("schema_version") != 1:
        raise Wrong("privacy.json has another version than 1. Use `terrine verify`.")
    promised = tuple(statement.get(name) for name in ("private", "noise", "partition_disjoint"))
    if promised not in ((True, "secure", True), (True, "not observed", None)):  # the latter for imported models
        raise Wrong("privacy.json guarantees nothing: it is NOT PRIVATE.")
    try:
        names = ("delta", "epsilon", "epsilon_guaranteed", "epsilon_budget")
        delta, printed, guaranteed, budget = (real(statement[name]) for name in names)
        for name in ("epsilon", "epsilon_added")[: 1 + ("event_added" in statement)]:
            given, squared = real(statement[name]), mu_squared(statement[name.replace("epsilon", "event")])
            value = epsilon_of(math.sqrt(squared), delta)
            slack = 1e-9 * (1 + value)  # rounding of two computations; printed figures are rounded up to 4 decimals
            if not value - slack <= given <= value + 1e-4 + slack or round(given, 4) != given:
                raise Wrong(f"{name} is printed as {given}, but its events cost {value:.6f}.")
        bounded = statement["mechanism"].get("mechanism") in OUTCOME_DEPENDENT
    except NotImplementedError as error:
        return None, "ε", f"Not recomputed: this file prices Gaussian mechanisms, not {error}. Use `terrine verify`."
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise Wrong(f"privacy.json is damaged: {error}.") from error
    if guaranteed != (budget if bounded else printed) or budget < printed:
        raise Wrong(f"The guaranteed ε {guaranteed} does not follow from ε {printed} and the budget {budget}.")
    return True, "ε", f"{printed} at δ = {delta:g} follows from the events. Guaranteed: ε = {guaranteed}."


def expected_key(text: str) -> str:
    """Return the fingerprint that `--key` gives, without spaces: as text, or computed from a file's public key."""
    digits = "".join(text.lower().split())
    if len(digits) == 32 and not set(digits) - set("0123456789abcdef"):
        return digits
    with open(text, encoding="ascii") as file:
        return fingerprint(public_key(file.read(LARGEST))).replace(" ", "")


def verify(folder: str, key: str | None) -> Iterator[tuple[bool | None, str, str]]:
    """Yield the outcome, name and sentence of each check up to the first failure, given the fingerprint of the key."""
    part = "files"
    try:
        found = set(list_files(folder)) - {"kit.json", "kit.sig"}
        part, kit = "signature", read_small(folder, "kit.json")
        signature = parse_json(read_small(folder, "signature.json"), "signature.json")
        sealed = read_small(folder, "kit.sig").strip()
        try:
            public, value = public_key(signature["public_key"]), base64.b64decode(sealed, validate=True)
        except (KeyError, ValueError, AttributeError) as error:
            raise Wrong(f"kit.sig or the key in signature.json is damaged ({error}).") from error
        if not verify_ed25519(public, b"terrine airlock kit\n" + kit, value):
            raise Wrong("kit.json, kit.sig or the key was changed: kit.sig is not this key's signature of kit.json.")
        signer = fingerprint(public)
        if key is not None and signer.replace(" ", "") != key:
            raise Wrong(f"Signed with the key {signer}, not with the one you gave, {key}.")
        part, listed = "files", parse_json(kit, "kit.json").get("files")
        yield True, part, check_files(folder, found, listed)
        part, statement = "signature", parse_json(read_small(folder, "privacy.json"), "privacy.json")
        check_statement(signature, statement, listed)
        yield True, part, f"Kit, statement, pages and model were signed with the key {signer}."
        yield bool(key) or None, "signer", "It is the key you gave." if key else "NOT checked: --key was not given."
        part = "approval"
        yield check_approval(public, statement)
        part = "ε"
        yield check_epsilon(statement)
    except Wrong as error:
        yield False, part, str(error)
    except OSError as error:
        yield False, part, f"{os.path.basename(error.filename or folder)} cannot be read: {error.strerror}."


def main(arguments: list[str] | None = None) -> int:
    """Print the checks and return the exit status."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    parser = argparse.ArgumentParser(description="Verify an airlock kit.")
    parser.add_argument("folder", nargs="?", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--key", help="Fingerprint of the site's key, or a file with its public key (PEM).")
    given = parser.parse_args(arguments)
    try:
        key = None if given.key is None else expected_key(given.key)
    except (OSError, ValueError) as error:
        print(f"--key {given.key} is neither a fingerprint nor a file with a public key ({error}).")
        return 2
    if not os.path.isfile(os.path.join(given.folder, "kit.json")):
        print(f"{given.folder} is no kit: kit.json is missing. Name the unpacked folder.")
        return 2
    status, passed = 0, "No check failed." if key else "No check failed, but the signer was not checked."
    for holds, name, told in verify(given.folder, key):
        # Names in a kit may contain control characters, which a terminal would obey.
        shown = re.sub(r"[^\x20-\x7e\xa1-\uffff]", "?", told[:1000])
        print({True: "ok   ", False: "WRONG", None: "-    "}[holds], f"{name:10}", shown)
        status |= holds is False
    print("Do not rely on this kit. Request it again from the site." if status else passed)
    return status


if __name__ == "__main__":
    sys.exit(main())
