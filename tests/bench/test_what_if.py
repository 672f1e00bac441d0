"""Estimates with a runner that the test wrote: which are run, kept, resumed, and what is said of them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascend_perf.bench import what_if
from ascend_perf.bench.what_if import Case, Kept, Progress, Request, estimate_all, plan
from ascend_perf.collectors.virtual_npu import VirtualNpu
from ascend_perf.errors import Interrupted, MachineError, UsageError
from ascend_perf.model.what_if import COMMUNICATION, HOST, Estimate, WhatIf
from ascend_perf.reports.what_if import document, html_text, markdown_text, page_document, write_what_if
from tests._support import Said

OUT_OF_MEMORY = "NPU out of memory. Tried to allocate 174.00 MiB"
FITS = "what would fit 64 GiB, by the modelled memory: --set tensor_ranks=2 (20 GiB)"
FITS_ZH = "按建模内存，64 GiB 可容纳的配置：--set tensor_ranks=2 (20 GiB)"


def estimate(matmul: float, communication: float, *, items: int = 1000, memory: int = 4 << 30) -> Estimate:
    """A step of a few classes; ranges by the errors of the model."""
    from ascend_perf.bench.step_shares import bounds

    classes = {"matmul": matmul, COMMUNICATION: communication, HOST: 10.0}
    total = matmul + communication + 10
    low, high = bounds(classes)
    return Estimate(
        step_ns=total, low_ns=low, high_ns=high, item="tokens", items_per_step=items, flops_per_step=10**9, mfu=0.5,
        peak_device_bytes=memory, used_device_bytes=memory, device_bytes=64 << 30,
        launches=7, hidden_communication_ns=3.0, classes_ns=classes,
        parts={"computing": matmul, "copies": 0.0, "communication": communication, "host": 10.0},
    )  # fmt: skip


class FakeRunner:
    """Gives each layout its estimate or its error, and counts what it was asked for."""

    def __init__(self, answers: dict[str, Estimate | Exception]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, case: Case) -> Estimate:
        self.asked.append(case.configuration.layout)
        answer = self.answers[case.configuration.layout]
        if isinstance(answer, Exception):
            raise answer
        return answer


ANSWERS: dict[str, Estimate | Exception] = {
    "ddp 8": MachineError(OUT_OF_MEMORY, hint=FITS),
    "fsdp 8": estimate(1000, 400),
    "tp 2 x ddp 4": estimate(1000, 200),
}
REQUEST = Request(workload="llm-pretrain", devices=(VirtualNpu(world_size=8),), layouts="ddp,fsdp,tp2+ddp,tp3")


def found_by(runner: FakeRunner, folder: Path, request: Request = REQUEST) -> WhatIf:
    return estimate_all(plan(request), runner, Kept(folder, "machinery"), versions={"torch_npu": "2.13.0"})


def test_one_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    runner = FakeRunner({**ANSWERS, "fsdp 8": RuntimeError("boom")})

    found = found_by(runner, tmp_path)

    assert [(one.configuration.layout, one.kind) for one in found.outcomes] == [
        ("ddp 8", "out-of-memory"), ("fsdp 8", "failed"), ("tp 2 x ddp 4", "estimated"), ("tp 3", "does-not-fit"),
    ]  # fmt: skip
    memory, failed, _, unfit = found.outcomes
    assert (memory.problem, memory.fits) == (OUT_OF_MEMORY, FITS)
    assert failed.problem == "RuntimeError: boom"
    assert "does not divide 8 heads" in unfit.problem
    assert found.verdicts[0].said.en.endswith("; nothing else to compare with")


def test_the_best_is_named_where_the_model_can_tell(tmp_path: Path) -> None:
    # 200 ns of communication more, matrix products and host alike: 1.25 and 0.9 of 200 do not turn it round.
    found = found_by(FakeRunner(ANSWERS), tmp_path)

    (verdict,) = found.verdicts
    assert verdict.best == 2
    assert verdict.rivals == ()
    # 1000 tokens in 1210 ns on 8 devices.
    assert f"{1000 / 1210e-9 / 8:.3g}" == "1.03e+08"
    assert re.match(r"Ascend910B2 x 8: tp 2 x ddp 4 is best, 103\D000\D000 tokens/s on each device", verdict.said.en)


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    # 100 ns less of communication, 90 ns more of matrix products: the sign is not sure.
    found = found_by(FakeRunner({**ANSWERS, "fsdp 8": estimate(1090, 100)}), tmp_path)

    (verdict,) = found.verdicts
    assert (verdict.best, verdict.rivals) == (1, (2,))
    assert "cannot tell between fsdp 8 and tp 2 x ddp 4 within the error of the model" in verdict.said.en
    assert "无法区分 fsdp 8、tp 2 x ddp 4" in verdict.said.zh


def test_items_a_second_decide_not_the_step(tmp_path: Path) -> None:
    found = found_by(FakeRunner({**ANSWERS, "fsdp 8": estimate(1500, 200, items=2000)}), tmp_path)

    assert found.verdicts[0].best == 1  # a longer step with twice the tokens


def test_out_of_memory_everywhere_is_an_answer(tmp_path: Path) -> None:
    full = MachineError(OUT_OF_MEMORY)
    request = dataclasses.replace(REQUEST, layouts="ddp,fsdp")

    found = found_by(FakeRunner({"ddp 8": full, "fsdp 8": full}), tmp_path, request)

    assert found.main.en == "Ascend910B2 x 8: out of memory in every configuration that was tried"
    assert [note.en.partition(" was found")[0] for note in found.notes] == ["out of memory"]
    # One that does not fit the model was not tried.
    request = dataclasses.replace(REQUEST, layouts="ddp,tp3")
    assert found_by(FakeRunner({"ddp 8": full}), tmp_path, request).main == found.main


def test_chips_are_compared_by_their_ranges(tmp_path: Path) -> None:
    devices = (VirtualNpu(world_size=8), VirtualNpu(soc="Ascend910B4", world_size=8))
    request = dataclasses.replace(REQUEST, devices=devices, layouts="fsdp")

    class ByChip(FakeRunner):
        def __call__(self, case: Case) -> Estimate:
            return estimate(1000 if case.device.soc == "Ascend910B2" else 1100, 200)

    found = found_by(ByChip({}), tmp_path, request)

    assert found.main.en.startswith("most on each device with Ascend910B2 x 8, fsdp 8:")
    assert found.main.en.endswith("Ascend910B4 x 8 may do as well within the error of the model")


def test_what_was_computed_is_not_computed_again(tmp_path: Path) -> None:
    first = FakeRunner(ANSWERS)
    found_by(first, tmp_path)
    second = FakeRunner(ANSWERS)

    found = found_by(second, tmp_path)

    assert first.asked == ["ddp 8", "fsdp 8", "tp 2 x ddp 4"]
    assert second.asked == []
    assert [one.is_cached for one in found.outcomes] == [True, True, True, False]
    assert found.outcomes[1].estimate == ANSWERS["fsdp 8"]


def test_a_stopped_call_goes_on_where_it_was(tmp_path: Path) -> None:
    runner = FakeRunner({**ANSWERS, "tp 2 x ddp 4": Interrupted("stopped")})
    with pytest.raises(Interrupted):
        found_by(runner, tmp_path)
    again = FakeRunner(ANSWERS)

    found_by(again, tmp_path)

    assert again.asked == ["tp 2 x ddp 4"]


@pytest.mark.parametrize("change", [
    lambda request: dataclasses.replace(request, overrides=("batch=4",)),
    lambda request: dataclasses.replace(request, devices=(VirtualNpu(world_size=8, hbm_bytes=1 << 30),)),
    lambda request: dataclasses.replace(request, devices=(VirtualNpu(world_size=8, node_link_bytes_per_s=1e9),)),
])  # fmt: skip
def test_other_settings_are_another_estimate(tmp_path: Path, change: Callable[[Request], Request]) -> None:
    found_by(FakeRunner(ANSWERS), tmp_path)
    runner = FakeRunner(ANSWERS)

    found_by(runner, tmp_path, change(REQUEST))

    assert len(runner.asked) == 3


def test_another_machinery_is_another_estimate(tmp_path: Path) -> None:
    made = plan(REQUEST)
    estimate_all(made, FakeRunner(ANSWERS), Kept(tmp_path, "one"))
    runner = FakeRunner(ANSWERS)

    estimate_all(made, runner, Kept(tmp_path, "other"))

    assert len(runner.asked) == 3


def test_failures_and_damaged_files_are_tried_again(tmp_path: Path) -> None:
    found_by(FakeRunner({**ANSWERS, "fsdp 8": RuntimeError("boom")}), tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2  # the failure is not kept
    files[0].write_text("{")
    runner = FakeRunner(ANSWERS)

    found_by(runner, tmp_path)

    assert len(runner.asked) == 2


def test_fresh_computes_all_again(tmp_path: Path) -> None:
    found_by(FakeRunner(ANSWERS), tmp_path)
    runner = FakeRunner(ANSWERS)

    estimate_all(plan(REQUEST), runner, Kept(tmp_path, "machinery"), fresh=True)

    assert len(runner.asked) == 3


def test_progress_counts_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(what_if, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    told: list[Progress] = []

    estimate_all(plan(REQUEST), FakeRunner(ANSWERS), Kept(tmp_path, "m"), on_progress=told.append)

    # Assumed 40 s each before the first, then 10 s each as measured.
    assert [(one.done, one.total, one.seconds_left) for one in told] == [(0, 3, 120), (1, 3, 20), (2, 3, 10), (3, 3, 0)]
    assert told[1].outcome is not None and told[1].outcome.kind == "out-of-memory"


def test_values_that_vary_are_configurations_of_their_own() -> None:
    request = Request(
        workload="llm-pretrain", devices=(VirtualNpu(world_size=2),), layouts="ddp", overrides=("tokens=64",),
        varied=("batch=1,2", "recompute=none, full"),
    )  # fmt: skip

    cases = plan(request).cases

    assert [case.configuration.label for case in cases] == [
        "ddp 2, batch=1, recompute=none", "ddp 2, batch=1, recompute=full", "ddp 2, batch=2, recompute=none",
        "ddp 2, batch=2, recompute=full",
    ]  # fmt: skip
    assert cases[0].configuration.overrides == ("tokens=64", "batch=1", "recompute=none")


def test_a_workload_of_one_process_says_with_how_many_it_runs() -> None:
    with pytest.raises(UsageError, match="runs in 1 process, not 8") as error:
        plan(Request(workload="llm-generate", devices=(VirtualNpu(world_size=8),)))
    assert error.value.hint == "it runs with --world-size 1"


@pytest.mark.parametrize(("request_", "words"), [
    (Request(workload="llm-pretrain", varied=("batch",)), "no KEY=V1,V2"),
    (Request(workload="llm-pretrain", devices=(VirtualNpu(world_size=8),), layouts="tp3"), "no configuration fits"),
    (Request(workload="no-such"), "no workload"),
    (Request(workload="llm-pretrain", varied=("batch=" + ",".join(map(str, range(1, 500))),)), "at most 400"),
])  # fmt: skip
def test_requests_that_make_no_sense(request_: Request, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(request_)


def test_layouts_that_are_left_out_are_named() -> None:
    made = plan(Request(workload="llm-pretrain", devices=(VirtualNpu(world_size=8),), most=2))
    everything = plan(Request(workload="llm-pretrain", devices=(VirtualNpu(world_size=8),), layouts="all"))

    (names,) = made.left_out.values()
    assert len(made.cases) == 2
    assert len(made.cases) + len(names) == len(everything.cases)
    assert everything.left_out == {}


# Reports


def test_the_document_holds_every_figure(tmp_path: Path) -> None:
    found = found_by(FakeRunner(ANSWERS), tmp_path)

    body = json.loads(json.dumps(document(found, "en")))

    assert body["data_origin"] == "simulated"
    assert [one["state"] for one in body["configurations"]] == [
        "out-of-memory", "estimated", "estimated", "does-not-fit",
    ]  # fmt: skip
    one = body["configurations"][1]["estimate"]
    assert one["step_ns"] == 1410
    assert one["items_per_s_per_device"] == pytest.approx(1000 / 1410e-9 / 8)
    assert one["exposed_communication_ratio"] == pytest.approx(400 / 1410)
    assert one["host_bound_ratio"] == pytest.approx(10 / 1410)
    assert one["step_low_ns"] < one["step_ns"] < one["step_high_ns"]
    assert body["verdicts"] == [
        {"soc": "Ascend910B2", "world_size": 8, "best": 2, "rivals": [], "is_sure": True,
         "said": found.verdicts[0].said.en},
    ]  # fmt: skip


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_report_says_simulated(tmp_path: Path, lang: str) -> None:
    found = found_by(FakeRunner(ANSWERS), tmp_path)
    word = {"en": "(simulated)", "zh": "（仿真）"}[lang]
    out = tmp_path / "out"
    out.mkdir()

    paths = write_what_if(found, out, ("html", "json", "md"), lang)  # type: ignore[arg-type]

    assert [path.name for path in paths] == ["what-if.html", "what-if.json", "what-if.md"]
    assert word in (out / "what-if.md").read_text("utf-8")
    page = (out / "what-if.html").read_text("utf-8")
    assert '"origin":"simulated"' in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?https?:""", page)


def test_bars_are_device_time_of_an_item(tmp_path: Path) -> None:
    page: Any = page_document(found_by(FakeRunner(ANSWERS), tmp_path), "en")

    (group,) = page["groups"]
    first, second = group["rows"]
    assert first["label"] == "tp 2 x ddp 4"  # the shortest first
    assert first["ns"] == pytest.approx(1210 * 8 / 1000)
    assert sum(first["parts"]) == pytest.approx(first["ns"])
    assert first["low"] < first["ns"] < first["high"]
    assert (first["best"], second["best"], second["rival"]) == (True, False, False)
    assert [one["label"] for one in group["without"]] == ["ddp 8", "tp 3"]


def test_texts_of_the_machine_are_harmless(tmp_path: Path) -> None:
    evil = MachineError("</script><script>alert(1)</script> | `x` \x1b[31m")
    request = dataclasses.replace(REQUEST, layouts="ddp,fsdp")
    found = found_by(FakeRunner({"ddp 8": evil, "fsdp 8": ANSWERS["fsdp 8"]}), tmp_path, request)

    page, text = html_text(found, "en"), markdown_text(found, "en")

    assert "<script>alert" not in page
    assert "\x1b" not in page + text
    assert "<script>" not in text


# Command


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRunner:
    """The command with a runner of the test and a cache of its own."""
    runner = FakeRunner(ANSWERS)
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(what_if, "set_up", lambda devices, say: what_if.Machinery(identity="test"))
    monkeypatch.setattr(what_if, "run_case", runner)
    return runner


WORDS = ("what-if", "llm-pretrain", "--world-size", "8", "--layouts", "ddp,fsdp,tp2+ddp,tp3")


def test_a_dry_run_lists_and_runs_nothing(ready: FakeRunner, command: Callable[..., Said]) -> None:
    said = command(*WORDS, "--dry-run")

    assert said.code == 0
    assert ready.asked == []
    assert said.out.splitlines() == [
        "3 configurations, 0 of them known from earlier calls; about 2 min for the rest",
        "  Ascend910B2  8  ddp 8",
        "  Ascend910B2  8  fsdp 8          --set data_parallel=fsdp",
        "  Ascend910B2  8  tp 2 x ddp 4    --set tensor_ranks=2",
        "does not fit: Ascend910B2 x 8 tp 3: tensor_ranks 3 does not divide 8 heads; valid here: 1, 2",
    ]


def test_the_command_prints_and_writes(ready: FakeRunner, command: Callable[..., Said], tmp_path: Path) -> None:
    said = command(*WORDS, "-o", tmp_path / "out")

    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "simulated: times are modelled, nothing ran on an NPU"
    rows = [re.split(r" {2,}", line) for line in lines if line.startswith(("   Ascend", "*  Ascend", "?  Ascend"))]
    assert [(row[0], row[3]) for row in rows] == [
        ("", "ddp 8"), ("", "fsdp 8"), ("*", "tp 2 x ddp 4"), ("", "tp 3"),
    ]  # fmt: skip
    assert rows[0][4] == "out of memory"
    assert f"- Ascend910B2 x 8 ddp 8: out of memory: {OUT_OF_MEMORY}" in lines
    assert (tmp_path / "out" / "what-if.html").is_file()
    assert command(*WORDS, "-o", tmp_path / "out").code == 2  # is there already
    assert command(*WORDS, "-o", tmp_path / "out", "--force").code == 0
    assert ready.asked == ["ddp 8", "fsdp 8", "tp 2 x ddp 4"]  # once, for all three calls


def test_chinese_output(ready: FakeRunner, command: Callable[..., Said], tmp_path: Path) -> None:
    out = command(*WORDS, "--lang", "zh", "-o", tmp_path / "out").out

    assert out.startswith("仿真数据：")
    assert "tp 2 x ddp 4 最优" in out
    unfit = "tensor_ranks 3 不能整除 heads 8；此处可取：1, 2"
    fits = FITS_ZH
    assert f"- Ascend910B2 x 8 tp 3：不适用：{unfit}" in out and f"\n    {fits}" in out
    document = json.loads((tmp_path / "out" / "what-if.json").read_text("utf-8"))
    assert document["configurations"][3]["problem"] == unfit and document["configurations"][0]["what_fits"] == fits
    assert unfit in (tmp_path / "out" / "what-if.md").read_text("utf-8")


def test_both_languages_of_a_refusal_are_on_the_page(tmp_path: Path) -> None:
    page: Any = page_document(found_by(FakeRunner(ANSWERS), tmp_path), "en")

    why = {one["label"]: one["why"] for one in page["groups"][0]["without"]}
    assert why["tp 3"] == [
        "tensor_ranks 3 does not divide 8 heads; valid here: 1, 2", "tensor_ranks 3 不能整除 heads 8；此处可取：1, 2"
    ]  # fmt: skip
    assert why["ddp 8"] == OUT_OF_MEMORY  # of the library, in its own words
    fits = {one["label"]: one["fits"] for one in page["groups"][0]["without"]}
    assert fits == {"ddp 8": [FITS, FITS_ZH], "tp 3": None}
    texts = [text for column in page["tables"][1]["columns"] for text in column.get("texts", ())]
    assert why["tp 3"] in texts
    assert [FITS, FITS_ZH] in texts


def test_a_single_device_has_its_name_in_both_languages(tmp_path: Path) -> None:
    request = dataclasses.replace(REQUEST, devices=(VirtualNpu(world_size=1),), layouts="auto")
    found = found_by(FakeRunner({"one device": estimate(1000, 0)}), tmp_path, request)

    assert "one device" in found.main.en and "one device" not in found.main.zh and "单卡" in found.main.zh
    assert "one device" not in markdown_text(found, "zh")
    page: Any = page_document(found, "zh")
    assert page["groups"][0]["rows"][0]["label"] == ["one device", "单卡"]


MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "vocab_size": 4096,
    "mlp_bias": True,
}  # fmt: skip


def test_what_a_model_asks_for_and_no_case_does_is_said(
    ready: FakeRunner, command: Callable[..., Said], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL), "utf-8")
    note, chinese = "mlp_bias: the MLP is run without bias", "mlp_bias：MLP 不带偏置运行"
    words = ("what-if", "llm-pretrain", "--world-size", "8", "--layouts", "fsdp", "--model-config", path)

    assert note in command(*words, "--dry-run").out.splitlines()
    said = command(*words, "-o", tmp_path / "out")
    assert said.code == 0 and f"- {note}" in said.out.splitlines()
    assert f"- {chinese}" in command(*words, "--lang", "zh").out.splitlines()
    assert note in json.loads((tmp_path / "out" / "what-if.json").read_text("utf-8"))["notes"]
    assert f"- {note}" in (tmp_path / "out" / "what-if.md").read_text("utf-8").replace("\\", "")
    found = found_by(
        FakeRunner(ANSWERS), tmp_path / "kept",
        Request(workload="llm-pretrain", devices=(VirtualNpu(world_size=8),), layouts="fsdp", model_config=path),
    )  # fmt: skip
    page: Any = page_document(found, "en")
    assert page["notes"][0] == [note, chinese]


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**MODEL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}))
    with pytest.raises(UsageError, match="describes a mixtral, resnet50-train has no"):
        plan(Request(workload="resnet50-train", model_config=path))


def test_without_any_estimate_the_code_is_3(ready: FakeRunner, command: Callable[..., Said]) -> None:
    ready.answers = dict.fromkeys(ANSWERS, RuntimeError("boom"))

    assert command(*WORDS).code == 3


@pytest.mark.parametrize("words", [
    ("--world-size", "eight"), ("--world-size", "0"), ("--soc", "Ascend999"), ("--layouts", "zero3"), ("--soc", ","),
])  # fmt: skip
def test_wrong_words_are_told(ready: FakeRunner, command: Callable[..., Said], words: tuple[str, str]) -> None:
    assert command("what-if", "llm-pretrain", *words).code == 2
