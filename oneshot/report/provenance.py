"""Which code and which libraries made a result."""

import functools
import importlib.metadata
import pathlib
import platform
import shutil
import subprocess
from typing import Any

_PACKAGES = ('oneshot', 'jax', 'jaxlib', 'flax', 'optax', 'dp-accounting', 'numpy', 'scipy')


@functools.cache
def provenance() -> dict[str, Any]:
    """Which code and which libraries made a result."""
    commit = None
    if shutil.which('git'):
        line = ['git', 'describe', '--always', '--dirty', '--abbrev=12']
        folder = pathlib.Path(__file__).parent
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        commit = done.stdout.strip() or None  # None where this is not a checkout
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {'git': commit, 'versions': versions | {'python': platform.python_version()}}
