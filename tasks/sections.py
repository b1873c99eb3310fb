from terrine.settings import AtHome, Settings as Section  # noqa
