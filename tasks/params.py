from tasks.config.aggregation import *  # noqa
from tasks.config.backbone import *  # noqa
from tasks.config.params import *  # noqa
from tasks.config.queries import *  # noqa
from tasks.config.privacy import *  # noqa
from tasks.config.runner import *  # noqa
from tasks.config.values import *  # noqa
