"""python -m oneshot: the command `oneshot`, where it is not installed as one."""

import sys

from oneshot.cli import main

if __name__ == '__main__':
    sys.exit(main())
