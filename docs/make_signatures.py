"""Writes collectors/virtual_npu/signatures.csv: the kinds of the arguments of every aclnn operator.

    python docs/make_signatures.py FOLDER... [--observed FILE]

FOLDER holds an unpacked torch-npu wheel (what `prepare` of the virtual NPU leaves in its cache as `site`); with
several, one per version, the table says what all of them agree on. FILE lists operators, one a line, that were called
in a run of the virtual NPU (benchmarks/call_operators.py writes it).

Evidence, in this order: the types at the calls in the wheel's own library (see call_sites.py); for operators whose
calls leave no types behind, the declaration in the headers of the public CANN operator repositories (ops-transformer,
ops-nn, ops-math) or the call in the public source of op-plugin, below. Only kinds are taken from them.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ascend_perf.collectors.virtual_npu import signatures
from ascend_perf.collectors.virtual_npu.call_sites import CallSites, read_call_sites
from ascend_perf.collectors.virtual_npu.elf import Elf

_ATTENTION_INPUTS = "tlltt" + "ii" + "ttttt" + "tt" + "t" + "tt" + "tttt" + "tt" + "i"
"""aclnnFusedInferAttentionScoreV2 up to actualSharedPrefixLen; later versions go on from there."""

PUBLIC = {
    "header": {
        "aclnnApplyRotaryPosEmb": "ttttn",
        "aclnnApplyRotaryPosEmbV2": "ttttnc",
        "aclnnBlockSparseAttention": "ttttt" + "iii" + "t" + "cc" + "nnd" + "nnnnn" + "tt",
        "aclnnBlockSparseAttentionGrad": "tttttttt" + "iii" + "cc" + "nndnn" + "ttt",
        "aclnnDenseLightningIndexerGradKLLoss": "ttttttttttt" + "ii" + "dcnnn" + "tttt",
        "aclnnDenseLightningIndexerSoftmaxLse": "ttt" + "ii" + "cnnn" + "tt",
        "aclnnDequantBias": "ttttnt",
        "aclnnFusedCausalConv1d": "tttttttttttt" + "nnnnnnn" + "t",
        "aclnnFusedInferAttentionScoreV2": _ATTENTION_INPUTS + "ndnncnnnnnynn" + "tt",
        "aclnnFusedInferAttentionScoreV3": _ATTENTION_INPUTS + "ttt" + "ndnncnnnnnynn" + "tt",
        "aclnnFusedInferAttentionScoreV4": _ATTENTION_INPUTS + "ttttt" + "ndnncnnnnnynnn" + "tt",
        "aclnnFusedInferAttentionScoreV5": _ATTENTION_INPUTS + "ttttt" + "ii" + "ndnncnnnnnynnnn" + "tt",
        "aclnnGatherPaKvCache": "tttttttcy",
        # Only torch_npu for torch 2.5 calls these five.
        "aclnnInplaceBitwiseOrScalar": "ts",
        "aclnnInplaceBitwiseOrTensor": "tt",
        "aclnnInplaceRound": "t",
        "aclnnInplaceTrunc": "t",
        "aclnnQuantMatmulV4": "tttttt" + "yy" + "t",
        "aclnnIncreFlashAttentionV4": "tlltt" + "i" + "ttttttttt" + "ndcnnn" + "t",
        "aclnnInplaceFusedCausalConv1d": "tttttttttttt" + "nnnnnnn",
        "aclnnKvRmsNormRopeCacheV2": "tttttttttttt" + "dcy" + "tt",
        "aclnnLightningIndexer": "tttttt" + "ccnnnny" + "tt",
        "aclnnLightningIndexerGrad": "ttttttt" + "ncnnny" + "ttt",
        "aclnnLstmBackward": "tll" + "ttt" + "lllllll" + "t" + "yndyyy" + "b" + "tttl",
        "aclnnMaxPool3dWithArgmaxBackward": "ttt" + "iiii" + "y" + "t",
        "aclnnMlaPrologV3WeightNz": "t" * 21 + "ddcnnnnnndd" + "ttttt",
        "aclnnQkvRmsNormRopeCache": "t" * 13 + "ii" + "dc" + "ttt",
        "aclnnQuantLightningIndexer": "tttttttt" + "nnccnnnn" + "t",
        "aclnnRopeWithSinCosCache": "tttt" + "iny" + "tt",
        "aclnnRopeWithSinCosCacheV2": "tttt" + "inyn" + "tt",
        "aclnnSparseFlashAttention": "ttttttttt" + "dnccnnnny" + "ttt",
        "aclnnSparseFlashAttentionGrad": "t" * 12 + "dncnnny" + "ttttt",
        "aclnnSparseFlashAttentionV2": "tttttttttt" + "dnccnnnny" + "ttt",
        "aclnnSparseLightningIndexerGradKLLoss": "t" * 10 + "ii" + "dcnnny" + "tttt",
        "aclnnSparseLightningIndexerGradKLLossV2": "t" * 10 + "ii" + "t" + "dcnnny" + "tttt",
    },
    "source": {
        "aclnnKvQuantSparseFlashAttention": "ttttttttt" + "dnnnccnnnnnnn" + "t",
        "aclnnKvRmsNormRopeCache": "ttttttttttt" + "dcy" + "tt",
        "aclnnLogSigmoid": "tt",
        "aclnnMaskedSelect": "ttt",
        "aclnnNonzero": "tt",
        "aclnnNonzeroV2": "tt",
        "aclnnPromptFlashAttentionV3": "ttttt" + "ii" + "ttttt" + "ndnncnnn" + "t",
        "aclnnUnique": "tyytt",
        "aclnnUnique2": "tyyyttt",
        "aclnnUniqueConsecutive": "tyynttt",
        "aclnnUniqueDim": "tyynttt",
        # torch_npu passes an integer in one call and an enumeration in another; 32 bits are right for both.
        "aclnnDequantSwigluQuantV2": "tttttttycmcnndddtt",
    },
}


def version_of(folder: Path) -> str:
    """torch_npu's version, from the wheel's metadata."""
    (metadata,) = folder.glob("torch_npu-*.dist-info/METADATA")
    found = re.search(r"^Version: (\S+)$", metadata.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def rows(read: dict[str, CallSites], observed: set[str]) -> tuple[list[tuple[str, str, str]], list[str], list[str]]:
    """(rows, operators without a source, operators whose versions differ)."""
    named = {name for sites in read.values() for name in sites.operators}
    operators = sorted(named | {name for table in PUBLIC.values() for name in table})
    found, unknown, differing = [], [], []
    for operator in operators:
        seen = {kinds for sites in read.values() if (kinds := sites.settled().get(operator)) is not None}
        evidence, kinds = "call", next(iter(seen)) if len(seen) == 1 else None
        for source, table in PUBLIC.items():
            if operator in table:
                evidence = source if kinds is None else f"call+{source}"
                if kinds not in (None, table[operator]):
                    raise SystemExit(f"{operator}: {kinds} at its calls, {table[operator]} in {source}")
                kinds = table[operator]
        if len(seen) > 1:
            differing.append(f"{operator}: {', '.join(sorted(seen))}")
        if kinds is None:
            unknown.append(operator)
        else:
            found.append((operator, kinds, evidence + ("+observed" if operator in observed else "")))
    return found, unknown, differing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--observed", type=Path)
    given = parser.parse_args()
    read = {
        version_of(folder): read_call_sites(Elf(folder / "torch_npu" / "lib" / "libtorch_npu.so"))
        for folder in given.folders
    }
    observed = set(given.observed.read_text("utf-8").split()) if given.observed else set()
    found, unknown, differing = rows(read, observed)
    text = [
        "# Kinds of the arguments of aclnn operators, made by docs/make_signatures.py; signatures.py has the letters.",
        f"# torch_npu: {' '.join(sorted(read))}",
        "operator,kinds,evidence",
        *(",".join(row) for row in found),
    ]
    signatures.FILE.write_text("\n".join(text) + "\n", "utf-8")
    print(f"{len(found)} operators; without a source: {len(unknown)} {' '.join(unknown)}")
    for line in differing:
        print(f"differs between versions: {line}")


if __name__ == "__main__":
    main()
