"""Measured ceilings: from a run of micro to the roofs of the roofline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.analyzers._choice import choice_of
from ascend_perf.analyzers.mac_utilisation import mac_utilisation
from ascend_perf.device.ceilings import Ceilings, ceilings_given
from ascend_perf.errors import InputError, UsageError
from ascend_perf.manifest import write_manifest
from ascend_perf.model.finding import Metric, ResultTable
from ascend_perf.model.run import Manifest
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
MEASURED = Ceilings(
    device="Ascend910B4", flops_per_s=(("bf16", 2e14), ("fp32", 5e13)), memory_bytes_per_s=7e11
)  # fmt: skip


def manifest(**changes: object) -> Manifest:
    rates = (("ceiling_matmul_bf16", 2e14), ("ceiling_matmul_fp32", 5e13), ("ceiling_attention_bf16", 9e13))
    metrics = [Metric(name=name, value=rate, unit="flops_per_s", better="higher") for name, rate in rates]
    metrics.append(Metric(name="ceiling_memory", value=7e11, unit="bytes_per_s", better="higher"))
    given = {
        "workload": "micro", "device": "npu", "data_origin": "measured", "created": "", "metrics": tuple(metrics),
        "device_facts": {"name": "Ascend910B4"},
    } | changes  # fmt: skip
    return Manifest(**given)  # type: ignore[arg-type]  # its fields


def roofs(make_trace: Make, ceilings: Ceilings | None, device: Device) -> ResultTable:
    trace = make_trace(
        meta=Meta(device=device),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}],
        kernels=[{
            "start_ns": 0, "dur_ns": 300_000, "name": "mm", "op_type": "MatMulV3", "core": "AIC", "stream": 2,
            "input_shapes": "4096,1024;1024,4096", "output_shapes": "4096,4096", "input_dtypes": "DT_BF16;DT_BF16",
            "output_dtypes": "DT_BF16", "aic_mac_ratio": 0.5,
        }],
    )  # fmt: skip
    with ceilings_given(ceilings):
        outcome = mac_utilisation.run_on_trace(trace)
    return next(table for table in outcome.tables if table.name == "roofs")


def test_a_run_of_micro_states_the_ceilings(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())

    assert choice_of(ceilings=tmp_path).ceilings == MEASURED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": (), "workload": "llm-pretrain"}, "is a run of 'llm-pretrain': no measured ceilings in it"),
        ({"data_origin": "simulated"}, "is not measured: no measured ceilings in it"),
    ],
)
def test_what_measured_none_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write_manifest(tmp_path, manifest(**changes))

    with pytest.raises(UsageError, match=message):
        choice_of(ceilings=tmp_path)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json"):
        choice_of(ceilings=tmp_path)


def test_they_are_drawn_beside_the_peaks_for_the_dtypes_in_use(make_trace: Make) -> None:
    device = Device(kind="npu", name="Ascend910B4", spec="ascend-910b4")
    plain, with_them = roofs(make_trace, None, device), roofs(make_trace, MEASURED, device)

    assert "measured" not in plain.column("basis")
    rows = list(zip(*(with_them.column(name) for name in ("name", "kind", "value", "basis")), strict=True))
    added = [row for row in rows if row[3] == "measured"]
    # fp32 products do not occur in this profile.
    assert [(kind, value) for _, kind, value, _ in added] == [("compute", 2e14), ("bandwidth", 7e11)]
    assert [str(name).endswith(("measured bf16", "measured memory")) for name, *_ in added] == [True, True]
    assert len(rows) == len(plain) + 2


def test_they_stand_alone_where_the_device_has_no_peaks(make_trace: Make) -> None:
    table = roofs(make_trace, MEASURED, Device(kind="npu"))

    assert table.column("name") == ("Ascend910B4 measured bf16", "Ascend910B4 measured memory")


def test_those_of_another_device_are_not_drawn_and_it_is_said(make_trace: Make) -> None:
    table = roofs(make_trace, MEASURED, Device(kind="npu", name="Ascend910B1", spec="ascend-910b1"))

    assert "measured" not in table.column("basis")
    assert table.note is not None
    assert "those of Ascend910B4, this is Ascend910B1: not drawn" in table.note.en
    assert "Ascend910B4" in table.note.zh
