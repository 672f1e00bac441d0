"""Launch settings of a preset: refused before the launch when they are wrong.

Which variables exist and what they take is data of `ascend_perf/device/specs/launch_settings.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ascend_perf.device.launch_settings import Problem, check_environment
from ascend_perf.errors import UsageError

__all__ = ["Problem", "check_environment", "refuse_wrong"]


def refuse_wrong(variables: Mapping[str, str], kind: str) -> list[Problem]:
    """The problems that do not stop a launch: settings that spoil figures, and names that nobody knows.

    Raises:
        UsageError: a variable does not exist, or its value is not one that it takes; the hint is the right form.
    """
    problems = check_environment(variables, kind)
    errors = [problem for problem in problems if problem.level == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        right = [problem.right for problem in errors if problem.right]
        raise UsageError(errors[0].words.en + more, hint=f"write {'; '.join(right)}" if right else "")
    return problems
