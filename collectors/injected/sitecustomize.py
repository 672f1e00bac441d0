"""Lets `ascend-perf collect` record a program that knows nothing of it.

Python imports a module of this name at its start; `ascend-perf collect` puts this folder first on PYTHONPATH, which
every process of the command inherits, those of torchrun too. It loads the user's own sitecustomize as well, and does
nothing where the variable is not set.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _activate() -> None:
    if os.environ.get("ASCEND_PERF_ONE_RANK") == "1":
        from ascend_perf.collectors import one_rank

        one_rank.activate()
    settings = os.environ.get("ASCEND_PERF_COLLECT")
    if not settings:
        return
    told = os.path.dirname(settings)
    try:
        with open(os.path.join(told, "python-seen"), "a"):
            pass
        from ascend_perf.collectors import _activation

        _activation.activate(settings)
    except Exception as error:  # whatever it is, the program must start
        import json

        what = f"the hook could not be loaded into {sys.executable}: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            what = f"the Python of the program has no {(error.name or 'ascend_perf').partition('.')[0]}"
        line = {"event": "problem", "pid": os.getpid(), "what": what, "hint": "pip install ascend-perf into it"}
        try:
            with open(os.path.join(told, f"told-{os.getpid()}.jsonl"), "a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass


def _load_own() -> None:
    """The sitecustomize that would have been loaded without us."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_activate()
_load_own()
