"""What there is to know of an interpreter before torch_npu can run in it. Run as a script by that interpreter too, so
it imports nothing of ours, and not torch either."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import sysconfig


def facts() -> dict[str, object]:
    """Version, tags, torch and the packages that torch_npu imports."""
    try:
        torch: str | None = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    short = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return {
        "implementation": platform.python_implementation(),
        "python": platform.python_version(),
        "python_tag": short,
        "abi_tag": short + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
        "system": platform.system(),
        "machine": platform.machine(),
        "torch": torch if folders else None,
        "torch_folder": folders[0] if folders else None,
        "is_cuda_build": any(os.path.exists(os.path.join(one, "lib", "libtorch_cuda.so")) for one in folders),
        "missing": [name for name in ("numpy", "yaml") if importlib.util.find_spec(name) is None],
        "has_pip": importlib.util.find_spec("pip") is not None,
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
