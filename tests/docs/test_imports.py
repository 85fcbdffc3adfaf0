import subprocess
import sys


def _python(code: str) -> str:
    """A fresh interpreter: what other tests imported does not count."""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    return done.stdout


def test_bounds_import_neither_jax_nor_data_sets():
    loaded = _python('import sys, oneshot.bounds; print(*sys.modules)').split()
    for heavy in ('jax', 'jaxlib', 'flax', 'optax', 'tensorflow', 'tensorflow_datasets'):
        assert heavy not in loaded


def test_bounds_import_no_slow_part_of_scipy():
    """`import scipy` loads its parts on first use; that is what keeps the import short."""
    loaded = _python('import sys, oneshot.bounds; print(*sys.modules)').split()
    for slow in ('scipy.special', 'scipy.optimize', 'scipy.stats', 'matplotlib', 'rich'):
        assert slow not in loaded


def test_all_names_of_bounds_are_there():
    from oneshot import bounds

    assert sorted(bounds.__all__) == bounds.__all__
    for name in bounds.__all__:
        assert callable(getattr(bounds, name))
        assert getattr(bounds, name).__doc__
