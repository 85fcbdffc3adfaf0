import os
import shutil
import tempfile

# Programs that several tests or processes compile are compiled once in a session. Set before
# JAX is imported, and inherited by the workers and by every process that a test starts.
_OWN_CACHE = 'JAX_COMPILATION_CACHE_DIR' not in os.environ
if _OWN_CACHE:
    os.environ['JAX_COMPILATION_CACHE_DIR'] = tempfile.mkdtemp(prefix='oneshot-programs-')
    os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.1'

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# The same examples on every machine; a found failure is printed with its input.
hypothesis.settings.register_profile('oneshot', derandomize=True, deadline=None)
hypothesis.settings.load_profile('oneshot')


def pytest_unconfigure():
    if _OWN_CACHE:
        shutil.rmtree(os.environ['JAX_COMPILATION_CACHE_DIR'], ignore_errors=True)


@pytest.fixture
def quick_compilation():
    """Half the time to compile large models, where what is computed is looked at, not how fast.

    Runs from end to end are compiled as they are for users (test_training.py, test_loops.py).
    """
    jax.config.update('jax_disable_most_optimizations', True)
    yield
    jax.config.update('jax_disable_most_optimizations', False)
