"""Interruption, resuming and several processes under fairseq's trainer; importing this mends them in fairseq.

fairseq's own loop, trainer and options stay in charge: each module here changes one thing that they lack.
"""

from luna_fairseq.training.newest_checkpoint import copy_checkpoints_whole, go_on_from_the_newest
from luna_fairseq.training.processes import mend_processes
from luna_fairseq.training.resumed_state import keep_state_when_resumed
from luna_fairseq.training.termination import stop_when_terminated

copy_checkpoints_whole()
go_on_from_the_newest()
keep_state_when_resumed()
stop_when_terminated()
mend_processes()
