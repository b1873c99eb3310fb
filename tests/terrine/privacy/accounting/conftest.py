"""Reference values shared by the tests of accounting."""

import pytest

from tests.terrine.privacy.accounting.helpers import Golden


@pytest.fixture(scope="module")
def golden(shared_folder):
    return Golden(shared_folder)
