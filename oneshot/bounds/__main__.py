"""python -m oneshot.bounds: the command line of `oneshot.scores`, which starts from counts too.

It is started, not imported: theorems know nothing of the rooms that use them.
"""

import runpy

runpy.run_module('oneshot.scores', run_name='__main__', alter_sys=True)
