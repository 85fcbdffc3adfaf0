import hypothesis
import jax
import pytest

# The same examples on every machine; a found failure is printed with its input.
hypothesis.settings.register_profile('oneshot', derandomize=True, deadline=None)
hypothesis.settings.load_profile('oneshot')


@pytest.fixture
def quick_compilation():
    """Half the time to compile large models, where what is computed is looked at, not how fast.

    Runs from end to end are compiled as they are for users (test_train.py, test_loops.py).
    """
    jax.config.update('jax_disable_most_optimizations', True)
    yield
    jax.config.update('jax_disable_most_optimizations', False)
