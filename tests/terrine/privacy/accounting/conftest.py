"""What several tests of accounting compare with."""

import pytest
from privacy_votes_help import Golden


@pytest.fixture(scope="module")
def golden(shared_folder):
    return Golden(shared_folder)
