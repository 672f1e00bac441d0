"""Tables of the service profiler, written here from the documented columns."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import serving
from ascend_perf.parsers._serving_columns import dates_ns, plain
from ascend_perf.parsers.discover import find_units, parsers
from tests.faults import plants_serving as plants
from tests.faults.service import Outcome, asks, serve, tables

MS = 1_000_000


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def read(path: Path) -> Trace:
    units, _ = find_units(path)
    assert [unit.parser for unit in units] == ["serving"]
    (trace,) = parsers()["serving"].parse(units[0])
    return trace


def dropped(trace: Trace) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for source in trace.meta.sources:
        counts.update({drop.reason: drop.count for drop in source.dropped})
    return dict(counts)


REQUEST = (
    "http_rid,start_datetime,recv_token_size,reply_token_size,execution_time(ms),queue_wait_time(ms),"
    "first_token_latency(ms),cache_hit_rate,start_time(ms)\n"
)
BATCH = (
    "name,res_list,start_datetime,end_datetime,during_time(ms),batch_type,prof_id,batch_size,total_blocks,free_blocks,"
    "dp_rank,start_time(ms),end_time(ms)\n"
)


def test_requests_in_exact_nanoseconds(tmp_path: Path) -> None:
    text = REQUEST + (
        "a1,2025-05-08 15:42:51.123456,100,20,300.25,1.5,50.125,0.75,1746690171123\n"
        "a2,2025-05-08 15:42:52.000001,7,,,,,,1746690172000\n"
    )

    table = read(write(tmp_path, {"request.csv": text}))[t.REQUESTS]

    assert table.text("request").to_list() == ["a1", "a2"]
    # The date names the same time with more digits; it is 8 hours ahead of the epoch.
    assert table.ints("start_ns").tolist() == [1746690171123456000, 1746690172000001000]
    assert table.ints("execution_ns").tolist() == [300_250_000, NULL]
    assert table.ints("queue_wait_ns").tolist() == [1_500_000, NULL]
    assert table.ints("first_token_ns").tolist() == [50_125_000, NULL]
    assert table.ints("input_tokens").tolist() == [100, 7]
    assert table.ints("output_tokens").tolist() == [20, NULL]
    assert table.floats("cache_hit_ratio")[0] == 0.75


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("execution_time(ms)", "12.5", 12_500_000),
        ("execution_time(microsecond)", "12500", 12_500_000),
        ("execution_time (us)", "12500.25", 12_500_250),
        ("Execution_Time(s)", "0.0125", 12_500_000),
        ("execution_time（ms）", "12.5", 12_500_000),
        ("execution_time_ms", "12.5", 12_500_000),
        ("execution_time", "12.5", 12_500_000),
        ("execution_time(ns)", "12500000", 12_500_000),
        ("execution_time(ms)", "-3", NULL),
        ("execution_time(ms)", "N/A", NULL),
    ],
)
def test_units_in_headers(tmp_path: Path, header: str, cell: str, expected: int) -> None:
    trace = read(write(tmp_path, {"request.csv": f"http_rid,recv_token_size,{header}\n1,5,{cell}\n"}))

    assert trace[t.REQUESTS].ints("execution_ns").tolist() == [expected]
    assert any("taken for ms: execution_time" in w for w in trace.meta.warnings) == (header == "execution_time")


@pytest.mark.parametrize("stamp", ["1746690171", "1746690171000", "1746690171000000", "1746690171000000000"])
def test_a_time_without_a_unit_is_read_by_its_magnitude(tmp_path: Path, stamp: str) -> None:
    text = f"name,start_time,device_kvcache_left\nAllocate,{stamp},9\n"

    assert read(write(tmp_path, {"kvcache.csv": text}))[t.KV_CACHE].ints("time_ns").tolist() == [1746690171 * 10**9]


def test_batches_their_requests_and_cards(tmp_path: Path) -> None:
    text = BATCH + (
        "batchFrameworkProcessing,\"[{'rid': '1', 'iter': 0}, {'rid': '2', 'iter': 31}]\",2025-05-08 15:42:51.123456,"
        'x,2.0,"Prefill,Decode",c0ffee,2,100,5,<NA>,1746690171123,1746690171125\n'
        'modelExec,"[{""rid"": 1, ""iter"": 0}]",,,100,Prefill,c0ffee,1,,,0,1746690171126,\n'
        "modelExec,\"['7', '8']\",,,30.5,Decode,beef,2,,,1,1746690171300,\n"
        "specDecoding,,,,,Decode,beef,1,,,1,1746690171400,1746690171420\n"
        "somethingElse,,,,5,,,,,,,1746690171500,\n"
        "modelExec,,,,,Decode,beef,1,,,1,1746690171600,\n"
    )

    trace = read(write(tmp_path, {"batch.csv": text}))
    table, items = trace[t.BATCHES], trace[t.BATCH_REQUESTS]

    assert table.text("phase").to_list() == ["schedule", "execute", "execute", "execute"]
    assert table.text("kind").to_list() == ["mixed", "prefill", "decode", "decode"]
    assert table.ints("dur_ns").tolist() == [2 * MS, 100 * MS, 30_500_000, 20 * MS]
    assert table.ints("total_blocks").tolist() == [100, NULL, NULL, NULL]
    assert table.ints("free_blocks").tolist() == [5, NULL, NULL, NULL]
    assert table.text("dp_rank").to_list() == [None, "0", "1", "1"]
    cards = table.text("card").to_list()
    assert cards[0] == cards[1] != cards[2] and not {"c0ffee", "beef"} & set(cards)
    assert items.ints("batch").tolist() == [0, 0, 1, 2, 2]
    assert items.text("request").to_list() == ["1", "2", "1", "7", "8"]
    assert items.ints("iteration").tolist() == [0, 31, 0, NULL, NULL]
    assert dropped(trace) == {
        "row that is neither scheduling nor execution of a batch": 1, "row without a duration": 1,
    }  # fmt: skip


def test_forwards_of_dp_ranks_in_columns_of_a_batch(tmp_path: Path) -> None:
    text = (
        "name,res_list,start_time(ms),end_time(ms),batch_size,batch_type,during_time(ms),dp0-rid,dp0-size,"
        "dp0-forward(ms),dp1-rid,dp1-size,dp1-forward(ms)\n"
        "BatchSchedule,[],1746690171000,1746690171001,3,Decode,1,,,,,,\n"
        "modelExec,[],1746690171001,1746690171031,3,Decode,30,\"['1']\",1,12.5,\"['2', '3']\",2,28\n"
    )

    table = read(write(tmp_path, {"batch.csv": text}))[t.BATCHES]

    forwards = table.select(table.text("phase").equals("forward"))
    assert forwards.text("dp_rank").to_list() == ["0", "1"]
    assert forwards.ints("dur_ns").tolist() == [12_500_000, 28 * MS]
    assert forwards.ints("size").tolist() == [1, 2]
    assert forwards.ints("start_ns").tolist() == [1746690171001 * MS] * 2


def test_transfers_take_arrival_and_prefill_from_the_file_beside_them(tmp_path: Path) -> None:
    files = {
        "pd_split_kvcache.csv": "domain,rank,rid,block_tables,batch_seq_len,during_time(ms),start_datetime(ms),"
        "end_datetime(ms),start_time(ms),end_time(ms)\n"
        'PullKVCache,3,9,"[4, 5, 6]",300,4.5,2025-05-08 15:42:51.123,,1746690171123,1746690171128\n'
        "PullKVCache,3,10,,7,1,,,1746690171200,1746690171201\n",
        "pd_split_communication.csv": "rid,http_req_time(ms),send_request_time(ms),send_request_succ_time(ms),"
        "prefill_res_time(ms),request_end_time(ms)\n9,1746690171000,1,2,1746690171120,1746690172000\n",
    }

    table = read(write(tmp_path, files))[t.KV_TRANSFERS]

    assert table.ints("tokens").tolist() == [300, 7]
    assert table.ints("blocks").tolist() == [3, NULL]
    assert table.ints("rank").tolist() == [3, 3]
    assert table.ints("dur_ns").tolist() == [4_500_000, MS]
    assert table.ints("arrival_ns").tolist() == [1746690171000 * MS, NULL]
    assert table.ints("prefill_end_ns").tolist() == [1746690171120 * MS, NULL]


def test_spans_that_hold_dates_only_come_to_the_clock_of_the_stamps(tmp_path: Path) -> None:
    files = {
        "batch.csv": BATCH + "modelExec,,2025-05-08 15:42:51.126000,,100,Decode,1,1,,,,1746690171126,\n",
        "span_info/tokenize.csv": "span_name,start_datetime,end_datetime,during_time(ms),hostname,pid\n"
        "tokenize,2025-05-08 15:42:51.000000,2025-05-08 15:42:51.100000,100.0,secret-host-7,33\n"
        "tokenize,2025-05-08 15:42:51.000000,,1.0,secret-host-8,34\n",
    }

    trace = read(write(tmp_path, files))

    spans = trace[t.SERVICE_SPANS]
    assert spans.ints("start_ns").tolist() == [1746690171000 * MS] * 2
    assert trace[t.BATCHES].ints("start_ns").tolist() == [1746690171126 * MS]
    assert spans.text("host").to_list() == ["host 1", "host 2"]
    assert "secret-host" not in repr(trace.meta)


def test_forwards_and_schedulings_are_not_read_twice(tmp_path: Path) -> None:
    span = "span_name,start_datetime,end_datetime,during_time(ms),hostname,pid\n{0},2025-05-08 15:42:51.0,,1.0,h,1\n"
    files = {
        "batch.csv": BATCH + "BatchSchedule,,2025-05-08 15:42:51.126000,,1,Decode,1,1,,,,1746690171126,\n",
        "forward.csv": "name,during_time(ms),bubble_time(ms),start_time(ms)\nforward,9,,1746690171130\n",
        "span_info/BatchSchedule.csv": span.format("BatchSchedule"),
        "span_info/forward.csv": span.format("forward"),
        "span_info/sample.csv": span.format("sample"),
    }

    trace = read(write(tmp_path, files))

    assert trace[t.SERVICE_SPANS].text("name").to_list() == ["sample"]
    assert trace[t.BATCHES].text("phase").to_list() == ["schedule", "forward"]
    assert dropped(trace)["span that another file of the folder holds"] == 2


@pytest.mark.parametrize("is_old", [False, True])
def test_everything_that_a_simulated_service_did_is_read(tmp_path: Path, is_old: bool) -> None:
    outcome = serve(plants.chat(3, transfer_ns=2_000))
    trace = read(write(tmp_path, tables(outcome, is_old=is_old)) / "service")

    requests = trace[t.REQUESTS]
    assert requests.ints("input_tokens").tolist() == [done.ask.prompt for done in outcome.requests]
    assert requests.ints("output_tokens").tolist() == [done.ask.output for done in outcome.requests]
    # Figures are written with three decimals of a ms.
    for name, values in (
        ("execution_ns", [done.end - done.ask.arrival for done in outcome.requests]),
        ("queue_wait_ns", [done.admitted - done.ready for done in outcome.requests]),
        ("first_token_ns", [done.first - done.ask.arrival for done in outcome.requests]),
        ("start_ns", [done.ask.arrival for done in outcome.requests]),
    ):
        assert np.abs(requests.ints(name) - np.array(values)).max() <= 1000
    batches = trace[t.BATCHES]
    executes = batches.select(batches.text("phase").equals("execute"))
    assert np.abs(executes.ints("start_ns") - [b.execution[0] for b in outcome.batches]).max() <= 1000
    assert np.abs(executes.ints("dur_ns") - [b.execution[1] - b.execution[0] for b in outcome.batches]).max() <= 1000
    members = [(number, made) for batch in outcome.batches for number, made in batch.members for _ in range(2)]
    items = trace[t.BATCH_REQUESTS]
    read_back = zip((int(name or -1) for name in items.text("request")), items.ints("iteration").tolist(), strict=True)
    assert sorted(read_back) == sorted(members)
    assert len(trace[t.KV_TRANSFERS]) == len(outcome.requests)
    assert trace[t.KV_CACHE].ints("free_blocks").tolist() == [after for *_, after in outcome.cache]
    assert not any(source.dropped for source in trace.meta.sources)


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_rows_that_tell_nothing_are_dropped_and_counted(tmp_path: Path) -> None:
    text = REQUEST + "1,,,,,,,,\n,x,5,5,1,1,1,,1746690171123\n2,,5,,,,,,\n"

    trace = read(write(tmp_path, {"request.csv": text}))

    assert trace[t.REQUESTS].text("request").to_list() == ["2"]
    assert dropped(trace) == {"request without any figure": 1, "request without an id": 1}


def test_totals_that_are_a_thousand_times_too_small_are_not_used(tmp_path: Path) -> None:
    text = REQUEST + "1,,5,5,0.3,1,50,,1746690171123\n2,,5,5,300,1,50,,1746690171123\n"

    trace = read(write(tmp_path, {"request.csv": text}))

    assert trace[t.REQUESTS].ints("execution_ns").tolist() == [NULL, 300 * MS]
    assert trace.meta.warnings == ("1 requests end before their first token: their total time is not used",)


def test_a_file_that_ends_within_a_row_a_mark_and_foreign_bytes(tmp_path: Path) -> None:
    text = REQUEST + "1,,5,5,300,1,50,,1746690171123\n2,,5,5,30"
    (tmp_path / "request.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("1,,", "\xff\xfe1,,", 1).encode("latin-1"))

    trace = read(tmp_path)

    assert trace[t.REQUESTS].ints("execution_ns").tolist() == [300 * MS]
    assert dropped(trace) == {"last row is cut": 1}


def test_semicolons_of_a_spreadsheet(tmp_path: Path) -> None:
    text = (REQUEST + "1,,5,5,300,1,50,,1746690171123\n").replace(",", ";")

    assert read(write(tmp_path, {"request.csv": text}))[t.REQUESTS].ints("execution_ns").tolist() == [300 * MS]


def test_a_header_without_a_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row of the service profiler's tables"):
        read(write(tmp_path, {"request.csv": REQUEST}))


def test_tables_that_nobody_reads_are_named_and_their_addresses_are_not(tmp_path: Path) -> None:
    files = {
        "request.csv": REQUEST + "1,,5,5,300,1,50,,1746690171123\n",
        "coordinator.csv": "time,address,node_type,add_count,end_count,running_count\n1,10.1.2.3:80,prefill,1,0,1\n",
    }

    trace = read(write(tmp_path, files))

    told = {source.path.rsplit("/", 1)[-1]: source.problem for source in trace.meta.sources}
    assert told["coordinator.csv"] is not None and told["request.csv"] is None
    assert "10.1.2.3" not in repr(trace.meta)


def test_each_folder_is_an_instance_and_other_tables_are_left_alone(tmp_path: Path) -> None:
    row = REQUEST + "1,,5,5,300,1,50,,1746690171123\n"
    write(tmp_path, {"a/request.csv": row, "b/request_0.csv": row, "c/other.csv": "name,value\nx,1\n"})

    units, _ = find_units(tmp_path)

    assert [unit.parser for unit in units] == ["serving", "serving"]
    assert [unit.label for unit in units] == ["a/request.csv", "b/request_0.csv"]


def test_what_is_missing_is_said_with_the_domain_that_collects_it(tmp_path: Path) -> None:
    trace = read(write(tmp_path, {"request.csv": REQUEST + "1,,5,5,300,1,50,,1746690171123\n"}))

    assert {item.what for item in trace.meta.missing} == {
        "batches of the service", "blocks of the KV cache", "stages of the service",
    }  # fmt: skip
    assert any("KVCache" in item.remedy for item in trace.meta.missing)


# ---- properties ------------------------------------------------------------------------------------------------------


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2099, 1, 1)), st.sampled_from([".", ":", ","]),
    st.sampled_from([" ", "T"]), st.integers(0, 9),
)  # fmt: skip
def test_dates_against_the_standard_library(at: datetime, point: str, between: str, digits: int) -> None:
    fraction = f"{at.microsecond:06d}000"[:digits]
    text = f"{at:%Y-%m-%d}{between}{at:%H:%M:%S}" + (point + fraction if digits else "")

    whole = at.replace(microsecond=0, tzinfo=timezone.utc)
    expected = int(whole.timestamp()) * 10**9 + (int(fraction.ljust(9, "0")) if digits else 0)
    assert dates_ns(np.array([text.encode(), b"1746690171123", b"", b"2025-13-08 15:42:51"])).tolist() == [
        expected, NULL, NULL, NULL,
    ]  # fmt: skip


@given(
    st.sampled_from(["during_time", "start_time", "queue_wait_time", "res_list"]),
    st.sampled_from(["ms", "us", "microsecond", "s", "ns"]), st.sampled_from(["{0}({1})", " {0} ({1}) ", "{0}[{1}]"]),
)  # fmt: skip
def test_any_spelling_of_a_header(name: str, unit: str, form: str) -> None:
    found = plain(form.format(name.title(), unit.upper() if unit != "microsecond" else unit))
    assert (found.name, found.unit) == (name, unit)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_damage_never_ends_in_a_traceback(seed: int, cuts: int) -> None:
    rng = random.Random(seed)
    made = {name: bytearray(text.encode()) for name, text in _small_files().items()}
    for _ in range(cuts):
        text = made[rng.choice(list(made))]
        at = rng.randrange(len(text))
        if rng.random() < 0.5:
            text[at : at + rng.randrange(1, 4)] = bytes(rng.randrange(256) for _ in range(rng.randrange(4)))
        else:
            del text[at : at + rng.randrange(1, 30)]
    with tempfile.TemporaryDirectory() as place:
        for name, text in made.items():
            (Path(place) / name).parent.mkdir(exist_ok=True)
            (Path(place) / name).write_bytes(bytes(text))
        try:
            units, _ = find_units(Path(place))
            traces = [trace for unit in units for trace in parsers()[unit.parser].parse(unit)]
        except InputError:
            return
    for trace in traces:
        for table in trace.tables.values():
            if "dur_ns" in table.names:
                assert (table.ints("dur_ns") >= 0).all()
        if trace.has(t.BATCH_REQUESTS):
            assert trace[t.BATCH_REQUESTS].ints("batch").max() < len(trace[t.BATCHES])


def _small_files() -> dict[str, str]:
    outcome: Outcome = serve(plants.chat(1, asks=tuple(asks(1, 4, output=4)), transfer_ns=1_000))
    return {name.removeprefix("service/"): text for name, text in tables(outcome).items()}


def test_the_kind_of_a_file_is_told_by_its_columns() -> None:
    assert {name: serving.kind_of(text.encode()) for name, text in _small_files().items()} == {
        "request.csv": "request", "batch.csv": "batch", "kvcache.csv": "kvcache", "request_status.csv": "status",
        "pd_split_kvcache.csv": "transfer", "pd_split_communication.csv": "exchange", "span_info/sample.csv": "span",
        "span_info/tokenize.csv": "span",
    }  # fmt: skip
    assert serving.kind_of(b"Step Id,Name,Type,Duration(us)\n") is None
    assert serving.kind_of(b"") is None
