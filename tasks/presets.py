from tasks.config.presets import *  # noqa
from tasks.config.presets import shown_assignment, DERIVED_NAME  # noqa
