"""Calls as many operators of torch and torch_npu as it can on the virtual NPU, and says which aclnn operators came.

    python benchmarks/call_operators.py [--output FILE] [--only TEXT]

Each schema with a kernel for the NPU is called with small made-up arguments, in several shapes. Most combinations are
refused by torch_npu's own checks; those that pass reach an aclnn operator, and the virtual NPU then compares the
arguments with signatures.csv. Prints the aclnn operators that were reached, and exits with 1 when one did not fit.
FILE gets their names, for docs/make_signatures.py --observed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ascend_perf.collectors.virtual_npu import Prepared, VirtualNpu, prepare, variables

SECONDS = 400
"""A process that hangs in one operator is ended after this."""

CHILD = '''
import faulthandler, itertools, os, sys
faulthandler.enable()
import torch, torch_npu
first, only = int(sys.argv[1]), sys.argv[2]
torch.npu.set_device(0)
names = sorted(
    (schema.name, schema.overload_name) for schema in torch._C._jit_get_all_schemas()
    if schema.name.split("::")[0] in ("aten", "npu") and only in schema.name
)
avoided = {"aten::_nested", "aten::_cudnn", "aten::_debug", "aten::_thnn_fused_gru"}
floats = {s: torch.ones(s, device="npu") for s in ((4, 4), (2, 3, 4, 4), (2, 4, 8), (8,), (2, 2, 4, 4, 4), ())}
whole = {s: torch.ones(s, device="npu", dtype=torch.int64) for s in floats}
halves = {s: torch.ones(s, device="npu", dtype=torch.float16) for s in floats}
flags = {s: torch.ones(s, device="npu", dtype=torch.bool) for s in floats}

def value(kind, name, shape, plan):
    if kind == "Tensor":
        words = ("ind", "target", "mask", "seq", "position", "table")
        integral = plan != "float" and any(word in name for word in words)
        if integral:
            return (flags if "mask" in name else whole)[shape]
        return {"float": floats, "mixed": floats, "half": halves, "whole": whole}[plan][shape]
    if kind == "List[Tensor]":
        return [value("Tensor", name, shape, plan)] * 2
    if kind == "List[Optional[Tensor]]":
        return [whole[shape]]
    if kind == "int":
        return 0 if "dim" in name or "axis" in name else 1
    if kind in ("List[int]",):
        return {"kernel_size": [2, 2], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "dim": [0],
                "normalized_shape": [shape[-1]] if shape else [1]}.get(name, list(shape))
    return {"float": 0.5, "number": 1, "bool": False, "str": "mean", "List[float]": [1.0], "List[bool]": [True] * 3,
            "ScalarType": torch.float32, "Device": torch.device("npu"), "Layout": torch.strided}.get(kind)

for index, (name, overload) in enumerate(names):
    if index < first or any(name.startswith(one) for one in avoided):
        continue
    try:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{name}.{overload}".rstrip("."), "PrivateUse1"):
            continue
    except RuntimeError:
        continue  # known to TorchScript only
    space, plain = name.split("::")
    print(index, flush=True)
    packet = getattr(getattr(torch.ops, space), plain)
    function = getattr(packet, overload or "default")
    for shape, plan, given in itertools.product(floats, ("mixed", "float", "half", "whole"), (False, True)):
        arguments, named = [], {}
        try:
            for argument in function._schema.arguments:
                kind = str(argument.type).replace("Optional[Tensor]", "Tensor") if given else str(argument.type)
                if argument.has_default_value() and not (given and kind == "Tensor"):
                    continue
                made = value(kind, argument.name, shape, plan)
                if argument.kwarg_only:
                    named[argument.name] = made
                else:
                    arguments.append(made)
            function(*arguments, **named)
        except Exception as problem:
            if "161002" in str(problem):
                print("refused", name, overload, str(problem).split("\\n")[0][:200], file=sys.stderr, flush=True)
    torch.npu.synchronize()
print("end", flush=True)
'''


def runs(prepared: Prepared, folder: Path, only: str) -> Iterator[str]:
    """Child after child: each starts behind the operator that the one before died of. What they write to stderr."""
    first, number = 0, 0
    while True:
        number += 1
        record = folder / str(number)
        record.mkdir()
        environment = {
            **os.environ, **variables(VirtualNpu(clock="modelled"), prepared, record), "TASK_QUEUE_ENABLE": "0",
        }  # fmt: skip
        try:
            done = subprocess.run(
                [str(prepared.python), "-c", CHILD, str(first), only], env=environment, capture_output=True, text=True,
                errors="replace", timeout=SECONDS, check=False,
            )  # fmt: skip
            out, said = done.stdout, done.stderr
        except subprocess.TimeoutExpired as slow:
            out, said = (text.decode("utf-8", "replace") if text else "" for text in (slow.stdout, slow.stderr))
        yield said
        lines = [line for line in out.split() if line == "end" or line.isdecimal()]
        print(f"  process {number}: up to {lines[-1] if lines else 'nothing'}", file=sys.stderr, flush=True)
        if not lines:
            raise SystemExit(f"the child came nowhere: {said[-500:]}")
        if lines[-1] == "end":
            return
        first = int(lines[-1]) + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="", help="operators whose name has this text")
    given = parser.parse_args()
    prepared = prepare(VirtualNpu(), lambda text: print(text, file=sys.stderr))
    with tempfile.TemporaryDirectory() as name:
        said = "".join(runs(prepared, Path(name), given.only))
        reached, refused = set(), {line for line in said.splitlines() if line.startswith("refused ")}
        for path in Path(name).glob("*/*.vnpu"):
            for line in path.read_text("utf-8", "replace").splitlines():
                fields = line.split("\t")
                if fields[0] == "D" and fields[2] == "op" and fields[3].startswith("acl"):
                    json.loads(fields[4])
                    reached.add(fields[3])
    print(f"{len(reached)} aclnn operators were reached with the arguments of the table")
    for line in sorted(refused):
        print(line)
    if given.output:
        given.output.write_text("".join(f"{one}\n" for one in sorted(reached)), "utf-8")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
