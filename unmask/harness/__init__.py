"""lm-evaluation-harness with our model and our tasks: `unmask lm-eval ...` is lm-eval's own command line, with both registered."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

from unmask.errors import UserError

FOLDER = Path(__file__).parent / "tasks"  # the YAML files; `TaskManager(include_path=FOLDER)` from Python


def run(arguments: list[str]) -> None:
    """lm-eval's command line with these arguments."""
    try:
        import lm_eval
        from lm_eval.__main__ import HarnessCLI, setup_logging
    except ImportError as error:
        raise UserError(f'lm-eval cannot be imported ({error}): pip install "unmask[lm-eval]"') from None
    sys.argv = ["lm-eval", *arguments]  # where its parser looks
    setup_logging()
    cli = HarnessCLI()
    args = cli.parse_args()
    checked(args)
    register(only_ours=all(task.startswith("unmask_") for task in getattr(args, "tasks", None) or [""]))
    try:
        cli.execute(args)
    except (ValueError, KeyError) as error:  # how lm-eval refuses input; errors elsewhere keep their traceback
        if Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(Path(lm_eval.__file__).parent):
            raise UserError(
                f"lm-eval: {str(error.args[0] if error.args else error).strip().splitlines()[0]}"
            ) from error
        raise


def register(only_ours: bool = False) -> None:
    """Make lm-eval know the model `unmask` and our tasks. Reading all of its own 14,000 tasks takes it many seconds, so
    where only ours are asked for it reads only ours."""
    import lm_eval.tasks
    from lm_eval.tasks.manager import TaskManager

    import unmask.harness.model  # noqa: F401 (importing it registers it)

    class Tasks(TaskManager):
        def __init__(self, *, include_path: Any = None, **settings: Any):
            given = include_path if isinstance(include_path, (list, tuple)) else [include_path] if include_path else []
            super().__init__(include_path=[FOLDER, *given], **{"include_defaults": not only_ours, **settings})

    lm_eval.tasks.TaskManager = Tasks  # type: ignore[misc]


def checked(args: argparse.Namespace) -> None:
    """lm-eval caches prepared requests by task name alone: other rows or generation settings would be ignored."""
    if not getattr(args, "cache_requests", None):
        return
    if args.gen_kwargs:
        raise UserError(
            "--cache_requests would bring back the first run's --gen_kwargs; put the settings in --model_args"
        )
    if any(task.startswith("unmask_") for task in args.tasks or ()):
        raise UserError(
            "unmask's tasks make their requests in a moment, and afresh for the data given; leave out --cache_requests"
        )
