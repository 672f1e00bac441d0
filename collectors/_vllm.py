"""Profiling of a vLLM server by itself: what VLLM_TORCH_PROFILER_DIR does depends on the release.

Source: collector reference, section 7.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ascend_perf.device.compatibility import version_key
from ascend_perf.model.finding import Words

VARIABLE: Final = "VLLM_TORCH_PROFILER_DIR"
OPTION: Final = "--profiler-config"
GONE_SINCE: Final = "0.14.0rc1"
"""Release of vllm-ascend that dropped the variable."""
INSTEAD: Final = (
    f"""{OPTION} '{{"profiler":"torch","torch_profiler_dir":"./vllm_profile","torch_profiler_with_stack":false}}'"""
)


def is_gone(version: str) -> bool:
    """Whether a release of vllm-ascend reads the option alone."""
    return version_key(version) >= version_key(GONE_SINCE)


def variable_words(version: str | None) -> Words | None:
    """What is wrong with the variable in a release of vllm-ascend; None where it works. `version` None: not installed
    here."""
    if version is None:
        return Words(
            f"{VARIABLE} works before vllm-ascend {GONE_SINCE} only: later servers ignore it, and POST /start_profile "
            "answers 404",
            f"{VARIABLE} 仅在 vllm-ascend {GONE_SINCE} 之前有效：之后的服务会忽略它，POST /start_profile 返回 404",
        )
    if is_gone(version):
        return Words(
            f"{VARIABLE} is ignored by vllm-ascend {version}: nothing is profiled, and POST /start_profile answers 404",
            f"vllm-ascend {version} 忽略 {VARIABLE}：不会采集，POST /start_profile 返回 404",
        )
    return None


def option_words(version: str | None) -> str | None:
    """What is wrong with the option in a release of vllm-ascend; None where it works."""
    if version is None or is_gone(version):
        return None
    return f"vllm-ascend {version} does not know {OPTION}: it reads {VARIABLE}"


def notes_of(command: Sequence[str], variables: Mapping[str, str], version: str | None) -> list[str]:
    """What `ascend-perf collect` says of a command: the profiler of the server would be a second one."""
    is_server = "vllm" in [word.rsplit("/", 1)[-1] for word in command[:4]] or any(
        word.startswith("vllm.entrypoints") for word in command
    )
    has_option = any(word.partition("=")[0] == OPTION for word in command)
    second = "a profile that POST /start_profile starts would be in the way of this one"
    notes = []
    if VARIABLE in variables:
        words = variable_words(version)
        if words is not None:
            notes.append(f"{words.en} (hint: {OPTION} in its place)")
        if words is None or version is None:
            notes.append(f"{VARIABLE} is set: {second}")
    if is_server and has_option:
        notes.append(option_words(version) or f"the command has {OPTION}: {second}")
    return notes
