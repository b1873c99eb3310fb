"""The site's key, and identities made with it."""

import inspect
import stat
from pathlib import Path

import pytest

from terrine.errors import LedgerError
from terrine.privacy.ledger.site_key import canonical_json, keyed_digest, load_or_create_key, release_identity
from tests.processes import CONTEXT, process

KEY = bytes(range(32))


def identity(**changes: object) -> str:
    arguments: dict = {
        "key": KEY,
        "account": "a",
        "edition": "1",
        "release": "answers",
        "parameters": {"aggregation": {"sigma": 40.0}, "teachers": {"ridge": 0.1}},
        "noise": {"kind": "secure"},
    }
    return release_identity(**(arguments | changes))


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / "key"
    key = load_or_create_key(path)
    assert len(key) == 32
    assert load_or_create_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert load_or_create_key(tmp_path / "other") != key
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602])
def test_a_key_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    load_or_create_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(LedgerError, match=rf"has mode {mode:04o}, so other .*chmod 600 {tmp_path}/key"):
        load_or_create_key(tmp_path / "key")


def _report_key(path: Path, barrier, queue) -> None:
    barrier.wait()
    queue.put(load_or_create_key(path))


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    barrier, queue = CONTEXT.Barrier(6), CONTEXT.Queue()
    processes = [process(_report_key, tmp_path / "key", barrier, queue) for _ in range(6)]
    for one in processes:
        one.start()
    keys = {queue.get(timeout=120) for _ in processes}
    for one in processes:
        one.join()
    assert len(keys) == 1


def test_a_key_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(LedgerError, match="5 bytes instead of 32"):
        load_or_create_key(tmp_path / "key")
    with pytest.raises(LedgerError, match="neither read nor created"):
        load_or_create_key(tmp_path / "key" / "below-a-file")


def test_equal_releases_have_equal_identities_whatever_the_order_of_their_settings() -> None:
    assert identity() == identity(parameters={"teachers": {"ridge": 0.1}, "aggregation": {"sigma": 40.0}})
    assert len(identity()) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"key": bytes(32)},
        {"account": "b"},
        {"edition": "2"},
        {"release": "averages 1"},
        {"parameters": {"aggregation": {"sigma": 40.1}, "teachers": {"ridge": 0.1}}},
        {"noise": {"kind": "replay", "seed": 1}},
    ],
)
def test_whatever_changes_a_release_changes_its_identity(change: dict) -> None:
    assert identity(**change) != identity()


def test_an_identity_takes_nothing_that_is_computed_from_private_data() -> None:
    assert set(inspect.signature(release_identity).parameters) == {
        *("key", "account", "edition", "release", "parameters", "noise"),
    }


def test_parts_of_a_keyed_digest_cannot_be_shifted_into_each_other() -> None:
    assert keyed_digest(KEY, "p", b"ab", b"c") != keyed_digest(KEY, "p", b"a", b"bc")
    assert keyed_digest(KEY, "p", b"a") != keyed_digest(KEY, "pa")


def test_canonical_json_is_one_text_for_equal_values_and_refuses_what_is_not_json() -> None:
    assert canonical_json({"b": 1, "a": [2.5, None]}) == b'{"a":[2.5,null],"b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})
