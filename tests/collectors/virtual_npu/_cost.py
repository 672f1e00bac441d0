"""A compiled cost model with a small table whose arithmetic can be followed by hand."""

from __future__ import annotations

from functools import lru_cache

from ascend_perf.collectors.virtual_npu._cost_native import NativeCost, Tensor

FLOAT, FLOAT16, INT32, INT64, BOOL, UINT8, BF16 = 0, 1, 3, 9, 12, 4, 27

CORES = 4
FREQUENCY = 1e9
PEAK = 8e12
FP32_PEAK = 2e12
HBM = 1e12
L2 = 1 << 20
LANES = 1e11

VALUES = {
    "cube_cores": CORES, "frequency_hz": FREQUENCY, "cube_fp16": PEAK, "cube_bf16": PEAK, "cube_fp32": FP32_PEAK,
    "cube_int8": 2 * PEAK, "lanes_per_s": LANES, "hbm_bytes_per_s": HBM, "l2_bytes": L2, "l2_core_bytes_per_cycle": 64,
    "tile_m": 128, "tile_n": 256, "split_k": 512,
    "h2d_fixed_ns": 10, "h2d_bytes_per_s": 1e9, "d2h_fixed_ns": 20, "d2h_bytes_per_s": 2e9, "h2h_fixed_ns": 30,
    "h2h_bytes_per_s": 4e9, "d2d_fixed_ns": 40, "d2d_bytes_per_s": 8e9, "memset_fixed_ns": 50,
    "memset_bytes_per_s": 16e9,
    "peer_bytes_per_s": 10e9, "is_switched": 0, "node_bytes_per_s": 5e9, "single_rank_ns": 7,
    "collective_fixed_ns": 1000, "gather_fixed_ns": 2000, "send_fixed_ns": 3000, "peer_step_ns": 100,
    "node_step_ns": 400, "all_reduce_efficiency": 0.5, "all_gather_efficiency": 0.8, "reduce_scatter_efficiency": 0.4,
    "send_efficiency": 0.9, "node_efficiency": 0.75,
}  # fmt: skip
CLASSES = {
    "matmul": {"fixed_ns": 100, "cube_efficiency": 0.8, "outer_efficiency": 0.5, "hbm_efficiency": 0.5,
               "l2_efficiency": 1.0, "write_efficiency": 2.0},
    "grouped": {"fixed_ns": 100, "cube_efficiency": 0.8, "hbm_efficiency": 0.5},
    "conv": {"fixed_ns": 100, "cube_efficiency": 0.5, "fp32_efficiency": 1.0, "hbm_efficiency": 0.5},
    "attention": {"fixed_ns": 100, "cube_efficiency": 0.8, "cycles_per_pair": 20, "cycles_per_extra": 10,
                  "bytes_per_pair": 4, "hbm_efficiency": 0.5},
    "elementwise": {"fixed_ns": 1000, "growth_ns": 50, "cycles_per_element": 2, "hbm_efficiency": 0.5,
                    "l2_efficiency": 2.0, "flops_per_element": 3},
    "cast": {"fixed_ns": 1100, "hbm_efficiency": 0.5}, "transpose": {"fixed_ns": 1200, "hbm_efficiency": 0.25},
    "copy": {"fixed_ns": 1300, "hbm_efficiency": 0.5}, "fill": {"fixed_ns": 1400, "hbm_efficiency": 1.0},
    "optimizer": {"fixed_ns": 1500, "hbm_efficiency": 0.5}, "index": {"fixed_ns": 1600, "cycles_per_element": 1000,
                                                                     "hbm_efficiency": 0.5},
    "random": {"fixed_ns": 1700, "bytes_per_s": 1e9, "hbm_efficiency": 0.5},
    "other": {"fixed_ns": 9000, "hbm_efficiency": 0.5},
}  # fmt: skip
OPERATORS = (
    ("Matmul", "matmul", "matmul", "-", 0), ("MatMulV[0-9]", "matmul", "matmul", "-", 0),
    ("Addmm", "matmul", "matmul", "-", 1), ("GroupedMatmul*", "grouped", "grouped", "-", 0),
    ("Convolution", "conv", "conv", "-", 0), ("ConvolutionBackward", "conv", "conv_backward", "-", 0),
    ("Flash*Grad*", "attention", "attention_backward", "-", 0), ("Flash*", "attention", "attention", "-", 0),
    ("FusedInfer*", "attention", "attention_inference", "-", 0), ("Copy", "copy", "copy", "-", 0),
    ("Zero", "fill", "tensors", "-", 0), ("ApplyAdam*", "optimizer", "tensors", "012", 0),
    ("EmbeddingDenseBackward", "index", "scatter_grad", "-", 0), ("Embedding", "index", "gather", "-", 0),
    ("IndexPut*", "index", "scatter", "-", 0), ("Scatter", "index", "scatter_out", "-", 0),
    ("DSA*", "random", "tensors", "-", 0), ("Add", "elementwise", "tensors", "-", 0),
    ("A*", "cast", "tensors", "-", 0),
)  # fmt: skip


def lines(**changed: float) -> list[str]:
    """The table as lines; values can be changed by name."""
    values = {**VALUES, **changed}
    return [
        *(f"value\t{key}\t{float(value)!r}" for key, value in values.items()),
        *(
            "\t".join(["class", name, *(f"{key}={float(value)!r}" for key, value in body.items())])
            for name, body in CLASSES.items()
        ),
        *("\t".join(["op", *map(str, row)]) for row in OPERATORS),
    ]


@lru_cache(maxsize=1)
def native() -> NativeCost:
    """The model with the table above."""
    compiled = NativeCost()
    compiled.load(lines())
    return compiled


def tensor(*shape: int, dtype: int = FLOAT, stride: tuple[int, ...] | None = None) -> Tensor:
    """A tensor argument."""
    return Tensor(shape=shape, dtype=dtype, stride=stride)
