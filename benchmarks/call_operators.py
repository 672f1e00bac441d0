"""Calls as many operators of torch and torch_npu as it can on the virtual NPU, and says which aclnn operators came.

    python benchmarks/call_operators.py [--output FILE] [--only TEXT]

Each schema with a kernel for the NPU is called with small made-up arguments, in several shapes. Most combinations are
refused by torch_npu's own checks; those that pass reach an aclnn operator, and the virtual NPU then compares the
arguments with signatures.csv. Prints the aclnn operators that were reached, and exits with 1 when one did not fit.
FILE gets their names, for docs/make_signatures.py --observed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ascend_perf.collectors.virtual_npu import Prepared, VirtualNpu, prepare, signatures, variables

SECONDS = 400
"""A process that hangs in one operator is ended after this."""

OWN_FAULTS = ("aclnnMaxPool3dWithArgmaxBackward",)
"""torch_npu 2.13.0 leaves out an argument where max_pool3d_with_indices_backward writes to a given tensor."""

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

CRAFTED = """
import faulthandler, sys
faulthandler.enable()
import torch, torch_npu
ops = torch.ops.npu

def half(*shape):
    return torch.ones(*shape, device="npu", dtype=torch.float16)

def brain(*shape):
    return torch.ones(*shape, device="npu", dtype=torch.bfloat16)

def whole(*shape, dtype=torch.int32):
    return torch.ones(*shape, device="npu", dtype=dtype)

def single(*shape):
    return torch.ones(*shape, device="npu")

def long(*shape):
    return whole(*shape, dtype=torch.int64)

x = single(4, 4)
rope = dict(query_rope=half(2, 8, 4, 64), key_rope=half(2, 8, 1, 64))
sparse = (half(2, 8, 4, 512), half(2, 8, 1, 512), half(2, 8, 1, 512), whole(2, 8, 1, 16), 0.1)
indexed = (
    half(2, 8, 4, 512), half(2, 8, 1, 512), half(2, 8, 64, 128), half(2, 8, 1, 128), half(2, 8, 64),
    whole(2, 8, 1, 16), single(2, 1, 8, 4), single(2, 1, 8, 4), 0.1,
)
cached = (half(2, 1, 8, 576), half(512), half(2, 1, 8, 64), half(2, 1, 8, 64), long(2), half(2, 1, 8, 64),
          half(2, 1, 8, 512))
calls = [
    lambda: ops.npu_apply_rotary_pos_emb(half(2, 8, 4, 64), half(2, 8, 4, 64), half(2, 8, 1, 64), half(2, 8, 1, 64)),
    lambda: ops.npu_fused_infer_attention_score(
        half(2, 8, 256), half(2, 8, 256), half(2, 8, 256), num_heads=4, scale=0.125, input_layout="BSH",
        softmax_lse_flag=True, actual_seq_lengths=[8, 8]),
    lambda: ops.npu_fused_infer_attention_score(
        half(2, 4, 8, 512), half(2, 1, 8, 512), half(2, 1, 8, 512), num_heads=4, num_key_value_heads=1, scale=0.125,
        input_layout="BNSD", query_rope=half(2, 4, 8, 64), key_rope=half(2, 1, 8, 64)),
    lambda: ops.npu_fused_infer_attention_score_v2(
        half(2, 4, 8, 64), half(2, 4, 8, 64), half(2, 4, 8, 64), num_query_heads=4, softmax_scale=0.125,
        input_layout="BNSD", return_softmax_lse=True, learnable_sink=half(4)),
    lambda: ops.npu_kv_quant_sparse_flash_attention(
        half(2, 8, 4, 576), whole(2, 8, 1, 656, dtype=torch.int8), whole(2, 8, 1, 656, dtype=torch.int8),
        whole(2, 8, 1, 16), 0.1, 2, 2, attention_mode=2),
    lambda: ops.npu_lightning_indexer(half(2, 8, 64, 128), half(2, 8, 1, 128), half(2, 8, 64)),
    lambda: ops.npu_sparse_flash_attention(*sparse, attention_mode=2, **rope),
    lambda: ops.npu_sparse_flash_attention(*sparse, attention_mode=2, sinks=single(4), **rope),
    lambda: ops.npu_sparse_lightning_indexer_grad_kl_loss(*indexed, **rope),
    lambda: ops.npu_sparse_lightning_indexer_grad_kl_loss(*indexed, sinks=single(4), **rope),
    lambda: ops.npu_kv_rmsnorm_rope_cache(*cached),
    lambda: ops.npu_qkv_rms_norm_rope_cache(
        half(16, 768), half(128), half(128), half(16, 128), half(16, 128), long(16), half(16, 512),
        half(4, 1, 8, 16, 8), half(4, 1, 8, 16, 8), [2, 8, 6, 128], [4, 1, 1]),
    lambda: ops.npu_mrope(long(8), half(8, 256), half(8, 256), half(100, 64), 64, mrope_section=[0, 0, 0]),
    lambda: ops.npu_mla_prolog_v3(
        brain(2, 8, 7168), brain(7168, 1536), brain(1536, 768), brain(4, 128, 512), brain(7168, 576), brain(1536),
        brain(512), brain(2, 8, 64), brain(2, 8, 64), brain(4, 128, 1, 512), brain(4, 128, 1, 64),
        cache_index=long(2, 8)),
    lambda: torch.unique(single(4, 3), dim=0),
    lambda: torch.unique(whole(9), return_inverse=True, return_counts=True),
    lambda: torch.nonzero(x), lambda: x.masked_select(x > 0), lambda: torch.nn.functional.logsigmoid(x),
]
for number, call in enumerate(calls):
    try:
        call()
        torch.npu.synchronize()
    except Exception as problem:
        print("refused", "crafted call", number, str(problem).partition(chr(10))[0][:200], file=sys.stderr)
print("end", flush=True)
"""
"""Operators that need arguments of the right shapes. A failure of any of them counts."""


def runs(prepared: Prepared, folder: Path, only: str) -> Iterator[str]:
    """Child after child, the crafted calls first; each starts behind the operator that the one before died of.

    Yields what they write to stderr.
    """
    first, number = 0, 0
    while True:
        record = folder / str(number)
        record.mkdir()
        environment = {
            **os.environ, **variables(VirtualNpu(clock="modelled"), prepared, record), "TASK_QUEUE_ENABLE": "0",
        }  # fmt: skip
        try:
            done = subprocess.run(
                [str(prepared.python), "-c", CHILD if number else CRAFTED, str(first), only], env=environment,
                cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
            )  # fmt: skip
            out, said = done.stdout, done.stderr
        except subprocess.TimeoutExpired as slow:
            out, said = (text.decode("utf-8", "replace") if text else "" for text in (slow.stdout, slow.stderr))
        yield said
        lines = [line for line in out.split() if line == "end" or line.isdecimal()]
        print(f"  process {number}: up to {lines[-1] if lines else 'nothing'}", file=sys.stderr, flush=True)
        if not lines:
            raise SystemExit(f"the child came nowhere: {said[-500:]}")
        if number and lines[-1] == "end":
            return
        first = int(lines[-1]) + 1 if number else 0
        number += 1


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
                if fields[0] == "D" and fields[2] == "op" and fields[3] in signatures.table().rows:
                    reached.add(fields[3])
    print(f"{len(reached)} of {len(signatures.table().rows)} operators were reached with the arguments of the table")
    for line in sorted(refused):
        print(line)
    refused = {line for line in refused if not any(fault in line for fault in OWN_FAULTS)}
    if given.output:
        given.output.write_text("".join(f"{one}\n" for one in sorted(reached)), "utf-8")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
