"""A dataset added as in CONTRIBUTING.md is private unless its code declares it public."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

import tasks.config.params
from tasks.artefacts import records
from tasks.config.params import Params, validate
from tasks.config.values import merge
from tasks.pipeline.dataset import prepare_dataset
from tasks.runtime.accounts import release_at_price
from tasks.runtime.releases import identity_in_ledger
from tasks.runtime.run import Run
from tasks.runtime.task import load_task
from terrine.data import public
from terrine.data.source import SOURCES, ImageSource
from terrine.data.sources.digits import Digits
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.noise import SecureNoise

VALUES = {"data": {"name": "clinic", "size": 8}, "aggregation": {"mechanism": "histogram", "sigma": 20}}
BUDGET = {"ledger": {"account": "clinic-2026", "epsilon": 8}}


class Clinic(ImageSource):
    """A source without a declaration: private by default."""

    name: Literal["clinic", "mnist"] = "clinic"

    def read(self, at=None, seed=0, progress=None):
        return replace(Digits(size=8).read(), name="clinic", public_benchmark=False, declared=False)


@pytest.fixture(autouse=True)
def clinic(monkeypatch):
    """The parameters of a process that started with the package of `Clinic` installed."""

    class WithClinic(Params):
        data: SOURCES.union() = Digits()

    monkeypatch.setattr(tasks.config.params, "Params", WithClinic)


@pytest.mark.parametrize(
    ("ledger", "missing"),
    [({}, "ledger.epsilon"), ({"epsilon": 8}, "ledger.account"), ({"account": "clinic-2026"}, "ledger.epsilon")],
)
def test_a_run_on_it_without_account_and_budget_is_refused(ledger, missing):
    with pytest.raises(SettingError, match=f"{missing} is missing: data.name=clinic is not a public benchmark"):
        validate(merge(VALUES, {"ledger": ledger}))


def test_with_both_it_is_prepared_and_its_figures_stay_at_home(tmp_path):
    run = Run(tmp_path, "trial", validate(merge(VALUES, BUDGET)))
    prepare_dataset.fn(run)
    assert run.folders.dataset_manifest()["public_benchmark"] is False
    assert run.params.data.public_benchmark is False
    assert run.params.tracking.private_metrics is False


def test_its_classes_are_those_of_its_first_release_whichever_labels_occur(tmp_path, monkeypatch):
    first, later = (Run(tmp_path, name, validate(merge(VALUES, BUDGET))) for name in ("first", "later"))
    prepare_dataset.fn(first)
    names = load_task(first).names
    event = GaussianEvent(0.1, 1.0)
    release_at_price(first, identity_in_ledger(first, "answers"), event, SecureNoise(), dict, task=load_task(first))

    def without_nines(*_):
        whole = Digits(size=8).read()
        kept, tested = whole.train_labels < 9, whole.test_labels < 9
        splits = {"train_images": whole.train_images[kept], "train_labels": whole.train_labels[kept]}
        splits |= {"test_images": whole.test_images[tested], "test_labels": whole.test_labels[tested]}
        splits |= {"train_names": None, "test_names": None, "class_names": names[:9]}
        return replace(whole, name="clinic", public_benchmark=False, declared=False, **splits)

    monkeypatch.setattr(Clinic, "read", without_nines)
    prepare_dataset.fn(later)
    assert load_task(later).names == names
    assert identity_in_ledger(later, "answers") == identity_in_ledger(first, "answers")
    monkeypatch.setattr(Clinic, "read", lambda *_: replace(without_nines(), class_names=(*names[:8], "other")))
    with pytest.raises(InputError, match="these data contain 'other'"):
        prepare_dataset.fn(later)


def test_parameters_cannot_call_it_public():
    with pytest.raises(SettingError, match=r"public_benchmark=true does not go with data\.name=clinic"):
        validate(merge(VALUES, {"data": {"public_benchmark": True}}))


def test_a_source_from_elsewhere_is_private_whatever_its_name():
    assert Clinic(name="mnist").public_benchmark is False
    assert SOURCES.of("mnist") is not Clinic
    with pytest.raises(ValueError, match=r"public_benchmark=true does not go with data\.name=mnist"):
        Clinic(name="mnist", public_benchmark=True)


def test_a_name_on_the_list_whose_source_does_not_say_so_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(public, "PUBLIC_BENCHMARKS", (*public.PUBLIC_BENCHMARKS, "clinic"))
    monkeypatch.setattr(Clinic, "__module__", "terrine.data.sources.clinic")
    run = Run(tmp_path, "trial", validate(VALUES))
    assert run.params.data.public_benchmark
    with pytest.raises(SettingError, match="is not a public source"):
        prepare_dataset.fn(run)
    assert not list(tmp_path.iterdir())


def test_every_name_on_the_list_is_a_source_of_terrines_and_those_of_own_data_are_not():
    for name in public.PUBLIC_BENCHMARKS:
        assert SOURCES.of(name)(name=name).public_benchmark
    assert not {"npz", "folder", "table"} & set(public.PUBLIC_BENCHMARKS)


def test_images_alone_are_not_protected_where_whose_they_are_decides_what_the_pool_is(tmp_path):
    number = np.arange(90)
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=number % 2, groups=number // 3)
    values = {
        "data": {"name": "npz", "path": "own.npz", "size": 8, "channels": 1, "pool": "test", "test_fraction": 0.5},
        "queries": {"sources": {"pool": 1}},
        "aggregation": VALUES["aggregation"],
        "ledger": BUDGET["ledger"],
    }
    with pytest.raises(SettingError, match=r"could become public\. Set privacy\.unit=group"):
        records.load_dataset(Run(tmp_path, "pool", validate(values)))
    assert len(
        records.load_dataset(Run(tmp_path, "pool", validate(values | {"privacy": {"unit": "group"}}))).pool_images
    )
