"""People of an account: no second budget for the same people, and no publication of private records."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from hypothesis import given
from hypothesis import strategies as st

from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import GaussianEvent, LaplaceEvent, RepeatedEvent, compose
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.people import (
    HELD_OUT,
    NO_NAME,
    PUBLIC,
    TAUGHT,
    Mention,
    People,
    PeopleStore,
    private_before,
)
from terrine.privacy.ledger.site_registry import SiteRegistry
from terrine.privacy.ledger.snapshot import LedgerSnapshot
from tests.terrine.privacy.ledger.helpers import ANSWER, DATASET, KEY, Draw, Place, ask

DIGESTS, STRANGERS = (np.random.default_rng(seed).integers(1, 2**63, 1000).astype(np.uint64) for seed in (1, 2))
PEOPLE, OTHERS = People.of(DIGESTS), People.of(STRANGERS)
PART = People.of(DIGESTS[10:])
REFUSED = "of these records were part of releases under another account"


@pytest.fixture
def ledger(any_place: Place) -> Ledger:
    ledger = any_place.open()
    for name in (DATASET, "second"):
        ledger.register(name, 2.0, 1e-5, "release")
    ask(ledger, "a", Draw(), data=PEOPLE)
    return ledger


@pytest.mark.parametrize(
    "case",
    {
        "the same": DIGESTS,
        "one record less": DIGESTS[:-1],
        "one record more": np.append(DIGESTS, STRANGERS[:1]),
        "a half": DIGESTS[::2],
        "one among others": np.append(STRANGERS, DIGESTS[7]),
        "in another order": DIGESTS[::-1],
    }.items(),
    ids=lambda case: case[0],
)
def test_the_same_people_under_a_second_account_are_refused(case: tuple[str, np.ndarray], ledger: Ledger) -> None:
    data = People.of(case[1])
    draw, rows = Draw(), ledger.rows()
    with pytest.raises(LedgerError, match=REFUSED):
        ask(ledger, "b", draw, dataset="second", data=data)
    assert draw.drawn == []
    assert ledger.rows() == rows
    assert not ask(ledger, "b", Draw(), data=data).reused, "their own account goes on"
    ledger.verify()


def test_equal_rows_of_tables_in_which_rows_repeat_may_belong_to_others(ledger: Ledger) -> None:
    repeated = np.concatenate([STRANGERS, STRANGERS[:3]])
    rows = People.of(np.concatenate([DIGESTS[:4], repeated]), columns=("age",))
    ledger.register("third", 2.0, 1e-5, "release")
    ask(ledger, "c", Draw(), dataset="third", data=People.of(np.append(DIGESTS[500:], DIGESTS[500]), columns=("age",)))
    with pytest.raises(LedgerError, match=REFUSED):
        ask(ledger, "b", Draw(), dataset="second", data=People.of(DIGESTS[500:506], columns=("age",)))
    other = People.of(np.concatenate([DIGESTS[500:502], repeated]), columns=("age",))
    with pytest.raises(LedgerError, match=REFUSED):
        ask(ledger, "b", Draw(), dataset="second", data=replace(other, columns=()))
    assert not rows.distinct


def test_what_was_released_comes_back_whatever_the_data_are_now(ledger: Ledger) -> None:
    ask(ledger, "b", Draw(), dataset="second", data=OTHERS)
    assert ask(ledger, "a", Draw(), data=OTHERS).reused
    assert ask(ledger, "d", Draw()).event == ANSWER, "data that are not known have no digests"


def test_stored_digests_are_keyed_and_closed_to_others(any_place: Place, ledger: Ledger) -> None:
    account = ledger.account(DATASET)
    assert account is not None
    ((file, role),) = account.people
    assert role == "taught"
    path = any_place.store / "people" / f"{file}.npz"
    stored = People.load(path)
    assert len(np.unique(stored.contents)) == 1000
    assert not np.isin(stored.contents, DIGESTS).any()
    assert not path.stat().st_mode & 0o077
    again, another = PEOPLE.keyed(KEY), PEOPLE.keyed(bytes(32))
    np.testing.assert_array_equal(again.contents, PEOPLE.keyed(KEY).contents)
    assert not np.isin(again.contents, another.contents).any()
    named = replace(PEOPLE, names=DIGESTS.astype(np.int64), groups=DIGESTS.astype(np.int64)).keyed(KEY)
    assert not np.isin(named.names, named.groups).any(), "a name and a group of one text are different"
    assert (PEOPLE.keyed(KEY).names == NO_NAME).all()


@pytest.mark.parametrize("damage", ["deleted", "changed", "exchanged"])
def test_digests_that_were_changed_or_deleted_are_missed(damage: str, any_place: Place, ledger: Ledger) -> None:
    account = ledger.account(DATASET)
    assert account is not None
    path = any_place.store / "people" / f"{account.people[0].file}.npz"
    if damage == "deleted":
        path.unlink()
    else:
        PEOPLE.keyed(bytes(32)).save(path) if damage == "exchanged" else path.write_bytes(path.read_bytes()[:-40])
    fresh = any_place.open()
    with pytest.raises(LedgerError, match="missing or were changed by hand"):
        fresh.verify()
    with pytest.raises(LedgerError, match="missing or were changed by hand"):
        ask(fresh, "b", Draw(), dataset="second", data=OTHERS)


def _dataset(sides: dict[int, int], **known: Any) -> People:
    """Return digests of records by number, whose contents and names are a function of the number."""
    numbers = np.array(sorted(sides))
    contents = np.stack([DIGESTS[numbers], STRANGERS[numbers]], axis=1)
    blank = np.full(len(numbers), NO_NAME, np.int64)
    side = np.array([sides[number] for number in sorted(sides)], np.uint8)
    return replace(People(contents, side, numbers.astype(np.int64), blank), **known)


FIRST = {number: TAUGHT if number < 60 else HELD_OUT if number < 80 else PUBLIC for number in range(100)}


def test_a_record_that_was_private_is_never_published_and_a_published_one_stays_public(any_place: Place) -> None:
    ledger = any_place.open()
    ledger.register(DATASET, 9.0, 1e-5, "release")
    ledger.publish(DATASET, _dataset(FIRST))
    ask(ledger, "a", Draw(), data=_dataset(FIRST))
    rows = len(ledger.rows())
    ledger.publish(DATASET, _dataset(FIRST))
    assert len(ledger.rows()) == rows, "the same again changes nothing"
    assert ledger.published(DATASET) == 20
    assert ledger.published(DATASET, _dataset({**FIRST, 99: TAUGHT})) == 1
    ledger.publish(DATASET, _dataset({**FIRST, 70: PUBLIC}))
    assert ledger.published(DATASET) == 21, "no release protects a held-out record unless its accuracy is released"
    settings = {"data.public_fraction": 0.5}
    with pytest.raises(LedgerError, match=r"1 of the 21 records .* had other values in that run: data.public_fraction"):
        ledger.publish(DATASET, _dataset({**FIRST, 3: PUBLIC}, settings=settings))
    with pytest.raises(LedgerError, match=r"1 of the 21 records .* the data changed"):
        ledger.check_people(DATASET, _dataset({**FIRST, 3: PUBLIC}))
    # Published, then private, then published again: nothing new is published.
    ask(ledger, "b", Draw(), data=_dataset({**FIRST, 90: TAUGHT}))
    ledger.publish(DATASET, _dataset(FIRST))
    ask(ledger, "accuracy", Draw(), data=_dataset(FIRST), tests=True)
    with pytest.raises(LedgerError, match="1 of the 21 records"):
        ledger.publish(DATASET, _dataset({**FIRST, 71: PUBLIC}))
    ledger.verify()


@pytest.mark.parametrize("changed", ["name", "contents", "size"])
def test_neither_another_name_nor_other_contents_make_a_record_public(changed: str, place: Place) -> None:
    ledger = place.open()
    ledger.register(DATASET, 9.0, 1e-5, "release")
    ask(ledger, "a", Draw(), data=_dataset(FIRST))
    now = _dataset({**FIRST, 3: PUBLIC})
    if changed == "name":
        now.names[3] = 12345
    elif changed == "contents":
        now.contents[3] = 1, 2
    else:  # the stored image differs, but is equal at the run's size
        now.contents[3, 0], now.names[3] = 1, 12345
    with pytest.raises(LedgerError, match="1 of the 21 records"):
        ledger.publish(DATASET, now)
    now.contents[3], now.names[3] = (1, 2), 12345
    ledger.publish(DATASET, now)


def test_linked_accounts_protect_each_others_people_and_a_group_is_protected_whole(place: Place) -> None:
    ledger = place.open()
    for name in (DATASET, "second"):
        ledger.register(name, 9.0, 1e-5, "release")
    ask(ledger, "a", Draw(), data=_dataset(FIRST, groups=np.arange(100) // 2))
    ledger.link(DATASET, "second")
    with pytest.raises(LedgerError, match="1 of the 1 records"):
        ledger.publish("second", _dataset({3: PUBLIC}))
    # A further record of a person whose others are private.
    new = replace(_dataset({99: PUBLIC}), names=np.array([777]), contents=np.array([[5, 6]], np.uint64))
    with pytest.raises(LedgerError, match="1 of the 1 records"):
        ledger.publish(DATASET, replace(new, groups=np.array([1])))
    ledger.publish(DATASET, replace(new, groups=np.array([4711])))


def test_from_the_second_edition_on_records_have_ids_or_groups(place: Place) -> None:
    ledger = place.open()
    ledger.register(DATASET, 9.0, 1e-5, "release")
    bare = {"names": np.full(100, NO_NAME)}
    ask(ledger, "a", Draw(), data=_dataset(FIRST, **bare))
    ask(ledger, "b", Draw(), data=_dataset(FIRST, **bare))
    draw = Draw()
    with pytest.raises(LedgerError, match=r"edition 2 of the data, .* edition 1\. Without ids"):
        ask(ledger, "c", draw, data=_dataset(FIRST, edition="2", **bare))
    with pytest.raises(LedgerError, match="Without ids"):
        ledger.publish(DATASET, _dataset(FIRST, edition="2", **bare))
    assert draw.drawn == []
    ask(ledger, "c", draw, data=_dataset(FIRST, edition="2"))
    ask(ledger, "d", draw, data=_dataset(FIRST, edition="3", groups=np.arange(100), **bare))


def test_a_table_whose_columns_are_gone_publishes_nothing_unless_its_rows_have_ids(place: Place) -> None:
    ledger = place.open()
    ledger.register(DATASET, 9.0, 1e-5, "release")
    table = _dataset(FIRST, columns=("age", "crp"), names=np.full(100, NO_NAME))
    ask(ledger, "a", Draw(), data=table)
    fewer = replace(table, columns=("age",), contents=table.contents[:, ::-1].copy())
    with pytest.raises(LedgerError, match=r"columns of an earlier run .* are missing \(crp\)"):
        ledger.publish(DATASET, replace(fewer, on=lambda columns: None))
    ledger.publish(DATASET, replace(fewer, on=lambda columns: table.contents[:, 0]))
    moved = replace(fewer, sides=_dataset({**FIRST, 3: PUBLIC}).sides)
    with pytest.raises(LedgerError, match="1 of the 21 records"):
        ledger.publish(DATASET, replace(moved, on=lambda columns: table.contents[:, 0]))


def test_images_and_rows_about_the_same_people_are_told_apart_by_names_and_groups_alone(place: Place) -> None:
    """One account may have both; a row's columns are not looked for among images."""
    ledger = place.open()
    for name in (DATASET, "second"):
        ledger.register(name, 9.0, 1e-5, "release")
    images, on = _dataset(FIRST), {("age",): DIGESTS[:100]}.__getitem__
    table = _dataset(FIRST, columns=("age",), on=on)
    table = replace(table, contents=table.contents + np.uint64(1))
    ledger.publish(DATASET, images)
    ask(ledger, "a", Draw(), data=images)
    ask(ledger, "b", Draw(), dataset="second", data=table)
    ledger.publish(DATASET, replace(images, edition="2"))
    ledger.publish("second", table)
    rows = replace(table, sides=_dataset({**FIRST, 3: PUBLIC}).sides, contents=table.contents + np.uint64(5))
    with pytest.raises(LedgerError, match="1 of the 21 records"):
        ledger.publish(DATASET, rows)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([TAUGHT, PUBLIC])), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([TAUGHT, PUBLIC])), min_size=1, max_size=8),
)
def test_of_equal_rows_one_is_refused_exactly_if_a_private_one_is_missing_and_a_public_one_is_new(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """Against counting by hand, in tables with equal rows and without; records have no names."""

    def rows(side: list[tuple[int, int]]) -> People:
        contents = np.array([[content + 1] for content, _ in side], np.uint64)
        return replace(People.of(contents, columns=("age",)), sides=np.array([one for _, one in side], np.uint8))

    one, two = rows(first), rows(second)
    stored = {"one": one}

    class Store(PeopleStore):
        def __init__(self) -> None:
            self.read = stored.__getitem__  # type: ignore[assignment]

    refused, _ = private_before(two, Store(), [Mention("one", "published"), Mention("one", "taught")])
    for (content, side), no in zip(second, refused, strict=True):
        before, public = first.count((content, TAUGHT)), first.count((content, PUBLIC))
        if one.distinct:
            wanted = side == PUBLIC and before > 0 and not public
        else:
            fewer = second.count((content, TAUGHT)) < before
            wanted = side == PUBLIC and fewer and second.count((content, PUBLIC)) > public
        assert no == wanted


def test_a_cohort_is_found_again_in_an_archive_a_thousand_times_as_large() -> None:
    """A site stores only a sketch of another ledger's records."""
    digests = np.random.default_rng(4).integers(1, 2**63, 400_000).astype(np.uint64)
    archive = People.of(digests).sketch()
    assert len(archive) == 2**14
    found = [
        np.isin(People.of(digests[start : start + 100]).sketch(), archive).any() for start in range(0, 40_000, 400)
    ]
    assert sum(found) >= 95


def test_linked_accounts_add_up_and_each_budget_holds_for_both(ledger: Ledger) -> None:
    ask(ledger, "b", Draw(), dataset="second")
    alone = ledger.spent(DATASET, 1e-5)
    ledger.link("second", DATASET)
    both = price(RepeatedEvent(ANSWER, 2), 1e-5)
    assert ledger.spent(DATASET, 1e-5) == ledger.spent("second", 1e-5) == pytest.approx(both, rel=1e-12)
    assert both > alone
    last = ask(ledger, "c", Draw(), dataset="second", data=PEOPLE)
    assert last.epsilon_total == ledger.spent(DATASET, 1e-5) == pytest.approx(price(RepeatedEvent(ANSWER, 3), 1e-5))
    ledger.set_budget(DATASET, last.epsilon_total * 1.001)
    for name, words in (("second", "linked account"), (DATASET, "would bring the account")):
        with pytest.raises(BudgetError, match=words):
            ask(ledger, "d", Draw(), dataset=name, data=PEOPLE)
    tight, wide = ledger.account(DATASET), ledger.account("second")
    assert tight is not None
    assert wide is not None
    assert [len(ledger.together(name)) for name in (DATASET, "second", "nobody")] == [2, 2, 0]
    assert wide.left(tight) == tight.left(wide) == tight.left()
    assert wide.left() > 10 * tight.left()
    ledger.verify()
    with pytest.raises(LedgerError, match="identical or already linked"):
        ledger.link(DATASET, "second")


def test_links_join_whole_groups_and_keep_what_is_open_at_its_worst(place: Place) -> None:
    """Accounts may use different measures: one began with Laplace noise."""
    ledger, laplace = place.open(), LaplaceEvent(0.1, 1.0)
    for name in "wxyz":
        ledger.register(name, 4.0, 1e-5, "release")
    ask(ledger, "1", Draw(laplace), dataset="w", worst_case=laplace)
    ask(ledger, "2", Draw(), dataset="x")
    with pytest.raises(ZeroDivisionError):
        ask(ledger, "3", lambda: 1 / 0, dataset="y", worst_case=RepeatedEvent(ANSWER, 3))
    ledger.link("w", "x")
    ledger.link("y", "z")
    ledger.link("x", "z")
    worst = price(compose(laplace, RepeatedEvent(ANSWER, 4)), 1e-5)
    assert [ledger.spent(name, 1e-5) for name in "wxyz"] == pytest.approx([worst] * 4, rel=1e-9)
    ask(ledger, "3", Draw(), dataset="y", worst_case=RepeatedEvent(ANSWER, 3))
    ask(ledger, "4", Draw(), dataset="z")
    spent = price(compose(laplace, RepeatedEvent(ANSWER, 3)), 1e-5)
    assert [ledger.spent(name, 1e-5) for name in "wxyz"] == pytest.approx([spent] * 4, rel=1e-9)
    accounts = LedgerSnapshot.of(ledger.rows()).accounts
    assert all(set(account.linked) == set("wxyz") - {name} for name, account in accounts.items())
    whole = [account.total() for account in accounts.values()]
    assert all(total >= spent * (1 - 1e-9) for total in whole)
    large = GaussianEvent(mu_of(4.0, 1e-5) * 0.995, 1.0)  # the whole budget of any, but for what the others spent
    for name in "wxyz":
        with pytest.raises(BudgetError):
            ask(ledger, "5", Draw(), dataset=name, worst_case=large)
    ledger.verify()


def test_accounts_of_two_units_do_not_add_up(place: Place) -> None:
    ledger = place.open()
    for name, unit in (("x", "record"), ("y", "group")):
        ledger.register(name, 4.0, 1e-5, "release", unit=unit)
    with pytest.raises(LedgerError, match="protects each record, the other each group"):
        ledger.link("x", "y")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


def _begun(place: Place, site: Path, key: bytes = KEY) -> Ledger:
    ledger = Ledger(place.url, place.store, key, site=site)
    ledger.register(DATASET, 2.0, 1e-5, "release")
    return ledger


def _elsewhere(place: Place, tmp_path: Path) -> Place:
    return replace(place, url=f"sqlite:///{tmp_path}/other/ledger.db", store=tmp_path / "other" / "releases")


@pytest.mark.parametrize("key", [KEY, bytes(32)], ids=["same key", "another key"])
def test_another_ledger_of_the_site_is_no_second_budget(
    key: bytes, any_place: Place, site: Path, tmp_path: Path
) -> None:
    ask(_begun(any_place, site), "a", Draw(), data=PEOPLE)
    other, draw = _begun(_elsewhere(any_place, tmp_path), site, key), Draw()
    with pytest.raises(LedgerError, match=r"through another ledger of this site, .*othing was released"):
        ask(other, "b", draw, data=PART)
    assert draw.drawn == []
    assert not ask(other, "c", draw, data=OTHERS).reused
    assert not ask(_begun(any_place, site), "d", draw, data=PART).reused
    assert not [path for path in (site, *site.iterdir()) if path.stat().st_mode & 0o077]


def test_a_ledger_that_was_moved_is_the_same_one(place: Place, site: Path, tmp_path: Path) -> None:
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    moved = _elsewhere(place, tmp_path)
    moved.store.parent.mkdir()
    shutil.move(str(sql.make_url(place.url).database), moved.store.parent / "ledger.db")
    shutil.move(place.store, moved.store)
    assert not ask(_begun(moved, site), "b", Draw(), data=PEOPLE).reused


def test_a_copy_of_the_ledger_is_no_second_one(place: Place, site: Path, tmp_path: Path) -> None:
    """It has the same first row, key and releases; but the site saw the first go on."""
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    copy = _elsewhere(place, tmp_path)
    shutil.copytree(Path(str(sql.make_url(place.url).database)).parent, copy.store.parent)
    shutil.copytree(place.store, copy.store)
    ask(_begun(place, site), "b", Draw(), data=PEOPLE)
    draw = Draw()
    with pytest.raises(LedgerError, match="it is an old copy"):
        ask(_begun(copy, site), "c", draw, data=PEOPLE)
    assert draw.drawn == []


def test_a_ledger_begun_anew_in_the_same_place_is_another_one(place: Place, site: Path) -> None:
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    Path(str(sql.make_url(place.url).database)).unlink()
    shutil.rmtree(place.store)
    fresh = Ledger(place.url, place.store, KEY, site=site)
    fresh.register("another name", 9.0, 1e-5, "release")
    with pytest.raises(LedgerError, match="another ledger of this site"):
        ask(fresh, "b", Draw(), dataset="another name", data=PEOPLE)


def test_a_claim_goes_with_the_release_that_was_refused(place: Place, site: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError):
        ask(_begun(place, site), "a", Draw(), data=PEOPLE, worst_case=GaussianEvent(1.0, 0.1))
    other = _begun(_elsewhere(place, tmp_path), site)
    assert not ask(other, "a", Draw(), data=PEOPLE).reused
    with pytest.raises(LedgerError, match="another ledger"):
        ask(_begun(place, site), "b", Draw(), data=PEOPLE)


def test_a_memory_that_cannot_be_read_releases_nothing(place: Place, site: Path) -> None:
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    (site / "site.db").write_text("no database\n" * 999)
    draw: Any = Draw()
    with pytest.raises(LedgerError, match="The site registry"):
        ask(_begun(place, site), "b", draw, data=PEOPLE)
    assert draw.drawn == []
    with pytest.raises(LedgerError, match="cannot be used"), SiteRegistry(site).claim("x", "y", OTHERS):
        pass
