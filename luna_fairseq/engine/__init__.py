"""Changes to fairseq's own behaviour; importing this makes them.

fairseq's own loop, trainer and options stay in charge: each module here changes one thing that they lack.
"""

import luna_fairseq.engine.compat  # noqa: F401
from luna_fairseq.engine.newest_checkpoint import copy_checkpoints_whole, go_on_from_the_newest
from luna_fairseq.engine.processes import mend_processes
from luna_fairseq.engine.resumed_state import keep_state_when_resumed
from luna_fairseq.engine.termination import stop_when_terminated

copy_checkpoints_whole()
go_on_from_the_newest()
keep_state_when_resumed()
stop_when_terminated()
mend_processes()
