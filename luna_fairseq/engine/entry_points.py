"""What fairseq's commands do first and last: import the plugin, end with an error."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable

from luna_fairseq.engine.mend import Mend
from luna_fairseq.errors import InputError, one_line_in_commands

ONE_PLUGIN = Mend(
    "one-plugin",
    what="takes one folder by two names for what it is, and names both places of a plugin that is there "
    "twice",
    why='it compares paths as they are written, and says "not globally unique"',
)

ONE_LINE_ERRORS = Mend(
    "one-line-errors",
    what="ends its commands with one line for bad input (an option value, a file, a checkpoint), and status "
    "1",
    why="a traceback hides it. (In a program of one's own the traceback stays)",
)


@ONE_PLUGIN.around("fairseq.utils:import_user_module")
def _import_once(import_user_module: Callable[..., Any], args: Any) -> Any:
    import fairseq

    wanted = getattr(args, "user_dir", None) or ""
    there = sys.modules.get(Path(wanted).name) if wanted else None
    places = [Path(place) for place in getattr(there, "__path__", ())]
    beside = Path(fairseq.__file__).parent
    # Where fairseq looks, in its order.
    folders = (Path(wanted), beside / wanted, beside.parent / wanted) if places else ()
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        return import_user_module(args)
    if any(place.samefile(found) for place in places):
        return import_user_module(Namespace(user_dir=str(places[0])))
    raise InputError(
        f"--user-dir {wanted} is another copy of {places[0]}, which this process has imported already: "
        "give that one, or uninstall it"
    )


@ONE_LINE_ERRORS.around(
    "fairseq.options:parse_args_and_arch",
    "fairseq.distributed.utils:call_main",
    # These two have no call_main around their work.
    "fairseq_cli.generate:main",
    "fairseq_cli.preprocess:main",
    # fairseq-hydra-train imports a plugin inside of call_main and of main, so what main does next is taken by
    # itself: Hydra prints what reaches it, and sys.excepthook never sees it.
    "fairseq.tasks:setup_task",
    "fairseq.models:build_model",
    "fairseq.criterions:build_criterion",
    "fairseq.trainer:Trainer.__init__",
    "fairseq.checkpoint_utils:load_checkpoint",
    "fairseq_cli.train:train",
)
def _in_one_line(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with one_line_in_commands():
        return work(*args, **kwargs)
