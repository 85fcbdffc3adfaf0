"""Entry point: python -m oneshot.main --config=configs/digits_wb.py [--workdir=DIR].

Kept short on purpose: flags, config, one call. Any value of the config can be
set from the command line: --config.seed=1 --config.audit.m=5000.
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

from oneshot import train

_CONFIG = config_flags.DEFINE_config_file('config', None, 'The run, a file of configs/.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where the results go; only printed without it.')
flags.mark_flag_as_required('config')


def main(argv: list[str]) -> None:
    """Checks, then runs."""
    if len(argv) > 1:
        raise app.UsageError(f'No arguments are taken beside the flags, but {argv[1:]} were given.')
    logging.set_verbosity(logging.WARNING)  # JAX tells of every backend that is not there
    try:
        prepared = train.prepare(_CONFIG.value, _WORKDIR.value)
    except (ValueError, OSError) as error:
        sys.exit(f'oneshot: {error}')
    train.run(prepared)


if __name__ == '__main__':
    app.run(main)
