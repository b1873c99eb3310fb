"""`terrine params`: every setting that a run takes, with its default and its meaning."""

from tasks.config.listing import list_settings
from tasks.config.params import FAMILIES, Params
from tasks.config.values import flat

SETTINGS = list(list_settings((Params,), FAMILIES))


def test_every_setting_of_a_run_is_listed_once_for_each_meaning_it_has():
    listed = [setting.key for setting in SETTINGS]
    assert set(flat(Params().model_dump(mode="json"))) <= {
        *listed,
        "backbone.deformations",
        "pretraining.images",
        "transcription",
    } | {key for key in flat(Params().model_dump(mode="json")) if key.startswith("queries.sources")}
    by_kinds = {(setting.key, setting.kinds) for setting in SETTINGS}
    assert len(by_kinds) == len(listed)


def test_every_setting_says_what_it_means_and_what_it_takes():
    for setting in SETTINGS:
        assert setting.meaning, setting.key
        assert setting.meaning.endswith((".", ")")), setting.key
        assert setting.values, setting.key


def test_a_number_that_is_counted_says_what_it_counts():
    units = {setting.key: setting.unit for setting in SETTINGS}
    assert units["queries.batch"] == "images"
    assert units["collaboration.deadline"] == "seconds"
