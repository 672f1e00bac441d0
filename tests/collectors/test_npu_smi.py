"""Texts of npu-smi: every layout gives its figures back; nothing is taken from what is cut or absent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.collectors import npu_smi
from ascend_perf.collectors.npu_smi import Watch, answer, box, exit_meaning, ids, mapping, reading, soc_name
from tests.collectors import _npu_smi_texts as texts
from tests.collectors._npu_smi_texts import A2, A3, P310, FakeChip

MIB = 1 << 20


def test_cards_and_chips_are_listed_without_the_controller() -> None:
    assert ids(texts.listing(A2)) == [0, 1]
    assert [(c.npu, c.chip, c.logic_id, c.phy_id, c.name) for c in mapping(texts.mapping(A2))] == [
        (0, 0, 0, None, "Ascend 910B2"), (1, 0, 1, None, "Ascend 910B2"),
    ]  # fmt: skip
    assert [(c.npu, c.chip, c.logic_id, c.phy_id, c.name) for c in mapping(texts.mapping(A3))] == [
        (0, 0, 0, 0, "Ascend910"), (0, 1, 1, 1, "Ascend910"), (1, 0, 2, 2, "Ascend910"), (1, 1, 3, 3, "Ascend910"),
    ]  # fmt: skip


def test_the_soc_is_spelled_as_atc_wants_it() -> None:
    assert soc_name("Ascend 910B2") == "Ascend910B2"
    assert soc_name("910B4") == "Ascend910B4"
    assert soc_name("Ascend910", "9392") == "Ascend910_9392"
    assert soc_name("Ascend 310P3", "NA") == "Ascend310P3"


def test_usages_of_a_server_name_the_chip_behind_its_values() -> None:
    first, second = replace(A3[0], ai_core=11, hbm_percent=50), replace(A3[1], ai_core=22, hbm_percent=25)

    found = answer(texts.usages([first, second]))

    assert found.status == "ok"
    figures = [(block.npu, block.chip, block.number(npu_smi.AI_CORE)) for block in found.blocks]
    assert figures == [(0, 0, 11), (0, 1, 22)]


def test_usages_of_the_310_family_name_the_chip_first() -> None:
    first, second = replace(P310[0], ai_core=11), replace(P310[0], chip=1, ai_core=22, hbm_percent=10)

    found = answer(texts.usages([first, second]))

    assert [(block.chip, block.number(npu_smi.AI_CORE)) for block in found.blocks] == [(0, 11), (1, 22)]
    one = reading(0, 1, found.blocks[1])
    assert (one.vector_ratio, one.memory_total_bytes, one.memory_used_bytes) == (
        0.04, 21527 * MIB, round(21527 * MIB * 0.1),
    )  # fmt: skip
    assert one.npu_ratio is None


def test_common_names_the_chip_first_and_the_controller_is_no_chip() -> None:
    found = answer(texts.common([replace(A3[0], frequency_mhz=1500), A3[1]]))

    assert [(block.chip, block.number("Aicore curFreq(MHZ)")) for block in found.blocks] == [(0, 1500), (1, 1650)]
    assert found.blocks[1].number("NPU Real-time Power(W)") is None  # NA: power is the card's


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 100), st.none() | st.integers(0, 100), st.integers(1, 131072)),
        min_size=1, max_size=4,
    ),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_figures_come_back_from_both_queries(
    rows: list[tuple[int | None, int | None, int]], old: bool, crlf: bool
) -> None:
    chips = [
        FakeChip(npu=3, chip=n, ai_core=core, hbm_percent=used, hbm_mb=total)
        for n, (core, used, total) in enumerate(rows)
    ]

    def sent(text: str) -> str:
        return text.replace("\n", "\r\n") if crlf else text

    usages, common = answer(sent(texts.usages(chips, is_old=old))), answer(sent(texts.common(chips)))

    for chip, one, other in zip(chips, usages.blocks, common.blocks, strict=True):
        got = reading(3, chip.chip, one, other)
        assert got.ai_core_ratio == (None if chip.ai_core is None else pytest.approx(chip.ai_core / 100))
        assert got.vector_ratio == (None if old else 0.35)
        assert got.memory_total_bytes == chip.hbm_mb * MIB
        assert got.memory_used_bytes == (
            None if chip.hbm_percent is None else round(chip.hbm_mb * MIB * (chip.hbm_percent / 100))
        )
        assert (got.power_w, got.temperature_c, got.frequency_hz, got.rated_frequency_hz) == (291.4, 57, 1.65e9, 1.8e9)


def test_one_chip_is_answered_without_a_header_and_lines_may_be_absent() -> None:
    text = texts.usages_of_one(A2[0])
    sliced = "".join(line for line in text.splitlines(keepends=True) if "Aicore" not in line)  # a slice of a chip

    assert answer(text).blocks[0].chip is None
    assert reading(0, 0, answer(text).blocks[0]).ai_core_ratio == 0.88
    assert reading(0, 0, answer(sliced).blocks[0]).ai_core_ratio is None


def test_a_cut_last_line_is_no_figure() -> None:
    text = texts.common_of_one(A2[0])
    cut = text[: text.index("1650") + 2]  # ... curFreq(MHZ) : 16

    one = reading(0, 0, answer(cut).blocks[0])

    assert (one.frequency_hz, one.rated_frequency_hz) == (None, 1.8e9)


def test_a_rating_of_power_is_no_power() -> None:
    found = answer(texts.pair("Rated Power Dissipation(W)", 12.8) + texts.pair("Chip ID", 0))

    assert reading(0, 0, *found.blocks).power_w is None
    assert reading(0, 0, *answer(texts.pair("Power Dissipation(W)", 13.1)).blocks).power_w == 13.1


@pytest.mark.parametrize("key", ["NPU Temperature (C)", "Temperature (C)", "Temperature(C)"])
def test_temperature_has_three_names(key: str) -> None:
    assert reading(0, 0, *answer(texts.pair(key, 48)).blocks).temperature_c == 48


def test_what_is_not_supported_says_so_although_the_tool_ends_with_0() -> None:
    found = answer("This device does not support querying product.\n")
    assert (found.status, found.problem) == ("unsupported", "This device does not support querying product.")

    for text in ("dcmi module initialize failed. ret is -8005\n", "There is no NPU card on this server.\n", "", "?\n"):
        assert answer(text).status == "failed"
        assert answer(text).blocks == ()


def test_codes_are_read_modulo_256() -> None:
    assert exit_meaning(215) == "npu-smi: invalid parameter"
    assert exit_meaning(172) == "DCMI: resource occupied"
    assert exit_meaning(193) == "DCMI: not supported"
    assert exit_meaning(0) == ""


def test_the_box_of_a_server() -> None:
    chips = (replace(A2[0], ai_core=0, power_w=96.8, temperature_c=48, hbm_percent=5), replace(A2[1], health="Alarm"))

    found = box(texts.box(chips, "25.2.0", processes=[(1, 0, 41220, "python3", 43077)]))

    assert found.driver_version == "25.2.0"
    assert [(c.npu, c.chip, c.phy_id, c.name, c.health) for c in found.chips] == [
        (0, 0, None, "910B2", "OK"), (1, 0, None, "910B2", "Alarm"),
    ]  # fmt: skip
    first = found.chips[0].reading
    assert (first.power_w, first.temperature_c, first.ai_core_ratio) == (96.8, 48, 0)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (65536 * 5 // 100 * MIB, 65536 * MIB)
    assert found.processes == ((1, 0, 41220, "python3", 43077),)


def test_the_box_of_a_card_with_two_dies_has_power_once() -> None:
    found = box(texts.box(A3, "25.2.0"))

    assert [(c.npu, c.chip, c.phy_id, c.reading.power_w) for c in found.chips] == [
        (0, 0, 0, 412.5), (0, 1, 1, None), (1, 0, 2, 412.5), (1, 1, 3, None),
    ]  # fmt: skip


def test_the_box_of_the_next_generation_shows_use_of_the_whole_npu() -> None:
    text = texts.box(A2, "26.0.0").replace("AICore(%)  ", "NPU Util(%)")

    first = box(text).chips[0].reading

    assert (first.ai_core_ratio, first.npu_ratio) == (None, 0.88)


def test_watch_is_read_line_by_line() -> None:
    watch = Watch({(1, 0): 65536 * MIB})
    assert watch.take(texts.watch_line(A2[1])) is None  # before its head

    assert watch.take(texts.watch_head()) is None
    one = watch.take(texts.watch_line(A2[1]))

    assert one is not None
    assert (one.npu, one.chip, one.power_w, one.temperature_c) == (1, 0, 291.4, 57)
    ratios = [one.ai_core_ratio, one.npu_ratio, one.cube_ratio, one.memory_bandwidth_ratio]
    assert ratios == pytest.approx([0.88, 0.91, 0.79, 0.43])
    assert one.memory_used_bytes == round(65536 * MIB * 0.71)
    gap = watch.take(texts.watch_line(replace(A2[1], ai_core=None, power_w=None)))
    assert gap is not None
    assert (gap.ai_core_ratio, gap.power_w) == (None, None)
    assert watch.take(texts.watch_line(A2[1])[:40]) is None  # cut


def test_watch_of_an_older_driver_has_fewer_columns() -> None:
    watch = Watch()
    watch.take(texts.watch_head(texts.WATCHED[:9]))

    one = watch.take(" ".join(texts.watch_line(A2[0]).split()[:9]))

    assert one is not None
    assert (one.npu_ratio, one.cube_ratio) == (None, None)
    assert one.memory_bandwidth_ratio == pytest.approx(0.43)
    assert one.memory_used_bytes is None  # the capacity is not known


def test_links_and_cores_of_the_matrix() -> None:
    found = npu_smi.topology(texts.topology(4))

    assert len(found.links) == 12
    assert set(found.links.values()) == {"HCCS"}
    assert found.cores["NPU1"] == "24-47"
    assert npu_smi.topology("This device does not support querying topo.\n").links == {}


def test_memory_by_process() -> None:
    text = "\tProcess id:41220          Process name:python3             Process memory(MB):43077\n"
    assert npu_smi.processes(text) == [(41220, "python3", 43077)]


@given(st.text(max_size=400))
def test_no_text_makes_the_readers_fail(text: str) -> None:
    assert answer(text).status in ("ok", "failed", "unsupported")
    box(text), mapping(text), npu_smi.topology(text), ids(text), npu_smi.processes(text)
    watch = Watch()
    watch.take(texts.watch_head())
    watch.take(text)
