import pytest

from oneshot.audit import misuse


@pytest.fixture(autouse=True)
def _unused_coins():
    """Tests share coins, runs must not."""
    misuse.USED_COINS.clear()
