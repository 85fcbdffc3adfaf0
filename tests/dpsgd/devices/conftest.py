import jax
import pytest


@pytest.fixture(autouse=True, scope='session')
def _eight_devices():
    """`tests/dpsgd/test_sharding.py` runs these tests, in a process with 8 devices."""
    assert jax.device_count() == 8, 'JAX_NUM_CPU_DEVICES=8 pytest tests/dpsgd/devices'
