"""What the service profiler's tables say: latency, batches, KV cache, stages, transfers, load (V-03 to V-07)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from ascend_perf.analyzers._serving import SPECS, Instance, instances_of, joined, known_floats, tpot_ns
from ascend_perf.analyzers._serving_batches import batch_table, uneven_lengths, uneven_units
from ascend_perf.analyzers._serving_capacity import full_cache, pool_of, slow_transfers
from ascend_perf.analyzers._serving_stages import cpu_stages, stage_table
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Metric, Result, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL, Floats, Table
from ascend_perf.model.tables import BATCH_REQUESTS, SERVICE_FIGURES
from ascend_perf.plugins import NoData, columns_of, job_analyzer

NAME: Final = "serving"
QUANTILES: Final = (0.5, 0.9, 0.99)


@job_analyzer(name=NAME, needs=(), order=86, section="host", reads=columns_of(*SPECS, BATCH_REQUESTS))
def serving(run: Run) -> Result:
    """Latency and throughput of a service, and what holds its requests up.

    Reads:
        requests, batches, batch_requests, kv_cache, kv_transfers, queue_states, service_spans of every instance.

    Returns:
        V-03 (long requests among short ones), V-04 (KV cache full), V-05 (CPU stages), V-06 (KV transfers), V-07
        (uneven DP ranks or instances). Shares are of what their formula names: execution time, or time of the requests.
    """
    instances = instances_of(run)
    if not instances:
        raise NoData(Words("no tables of the service profiler", "没有服务化采集数据"))
    verdicts = [
        uneven_lengths(instances), full_cache(instances), *cpu_stages(instances), slow_transfers(instances),
        *uneven_units(instances),
    ]  # fmt: skip
    requests = joined(instances)
    tables = (
        _latency_table(requests), _figure_table(instances), _instance_table(instances), batch_table(instances),
        stage_table(instances),
    )  # fmt: skip
    return Result(
        findings=tuple(found for found, _ in verdicts if found is not None),
        metrics=_metrics(requests, _written(instances)),
        tables=tuple(table for table in tables if len(table)),
        judged=tuple(judged for _, judged in verdicts),
    )


def _figures(requests: Table) -> tuple[tuple[str, Words, Floats], ...]:
    first = known_floats(requests.ints("first_token_ns"))
    return (
        ("ttft", Words("Time to the first token (TTFT)", "首 Token 时延（TTFT）"), first),
        ("tpot", Words("Time per further token (TPOT)", "单 Token 时延（TPOT）"), tpot_ns(requests)),
        ("queue", Words("Waiting in the queue", "排队时间"), known_floats(requests.ints("queue_wait_ns"))),
        ("latency", Words("Whole request", "请求总时延"), known_floats(requests.ints("execution_ns"))),
    )


def _written(instances: Sequence[Instance]) -> Mapping[str, float]:
    """Figures of the only benchmark result; nothing where there are several."""
    tables = [instance.trace[SERVICE_FIGURES] for instance in instances if instance.trace.has(SERVICE_FIGURES)]
    if len(tables) != 1 or len(instances) != 1:
        return {}
    return {
        name: value
        for name, value in zip(tables[0].text("name"), tables[0].floats("value").tolist(), strict=True)
        if name is not None
    }


def _throughput(
    requests: Table, figures: Mapping[str, float] = MappingProxyType({})
) -> tuple[float | None, float | None]:
    """Requests and output tokens per second, from the first arrival to the last end; else as written, or None."""
    start, execution, tokens = (requests.ints(n) for n in ("start_ns", "execution_ns", "output_tokens"))
    rows = (start != NULL) & (execution != NULL)
    if not rows.any():
        return figures.get("request_throughput"), figures.get("output_throughput")
    span = int((start[rows] + execution[rows]).max() - start[rows].min())
    if span <= 0:
        return None, None
    made = tokens[rows & (tokens != NULL)]
    return float(rows.sum()) / span * 1e9, float(made.sum()) / span * 1e9 if len(made) else None


def _metrics(requests: Table, figures: Mapping[str, float]) -> tuple[Metric, ...]:
    metrics = []
    for name, _, values in _figures(requests):
        values = values[np.isfinite(values)]
        if len(values):
            for quantile in QUANTILES:
                metrics.append(
                    Metric(
                        name=f"{name}_p{quantile * 100:.0f}_ns", value=float(np.quantile(values, quantile)), unit="ns",
                        better="lower",
                    )
                )  # fmt: skip
    rates = zip(("request_throughput", "output_token_throughput"), _throughput(requests, figures), strict=True)
    metrics += [Metric(name=n, value=v, unit="items_per_s", better="higher") for n, v in rates if v is not None]
    return tuple(metrics)


def _latency_table(requests: Table) -> ResultTable:
    rows = [(words, values[np.isfinite(values)]) for _, words, values in _figures(requests)]
    rows = [(words, values) for words, values in rows if len(values)]
    per_s, tokens_per_s = _throughput(requests)
    note = None
    if per_s is not None:
        made = "" if tokens_per_s is None else f", {tokens_per_s:.4g} output tokens/s"
        made_zh = "" if tokens_per_s is None else f"，输出 {tokens_per_s:.4g} token/s"
        note = Words(f"{per_s:.4g} requests/s{made}.", f"{per_s:.4g} 请求/s{made_zh}。")
    return result_table(
        "serving-latency",
        Words("Latency of the requests", "请求时延"),
        (
            Col("quantity", "Figure", "指标", [words.en for words, _ in rows]),
            Col("count", "Requests", "请求数", [len(values) for _, values in rows], "count"),
            Col("mean_ns", "Mean", "平均", [float(values.mean()) for _, values in rows], "ns"),
            *(
                Col(
                    f"p{quantile * 100:.0f}_ns", f"p{quantile * 100:.0f}", f"p{quantile * 100:.0f}",
                    [float(np.quantile(values, quantile)) for _, values in rows], "ns",
                )
                for quantile in QUANTILES
            ),
        ),
        note=note,
    )  # fmt: skip


def _figure_table(instances: Sequence[Instance]) -> ResultTable:
    """What benchmarks wrote about all of their requests, as they wrote it."""
    rows = [
        (instance.number, name, value)
        for instance in instances
        for name, value in zip(
            instance.trace[SERVICE_FIGURES].text("name"), instance.trace[SERVICE_FIGURES].floats("value").tolist(),
            strict=True,
        )
    ]  # fmt: skip
    return result_table(
        "serving-figures",
        Words("Figures that the benchmark wrote", "压测工具输出的指标"),
        (
            Col("instance", "Result", "结果", [row[0] for row in rows]),
            Col("name", "Figure", "指标", [row[1] for row in rows]),
            Col("value", "Value", "数值", [row[2] for row in rows]),
        ),
    )


def _instance_table(instances: Sequence[Instance]) -> ResultTable:
    def median(instance: Instance, column: str) -> float:
        values = known_floats(joined([instance]).ints(column))
        return float(np.nanmedian(values)) if np.isfinite(values).any() else np.nan

    def least_free(instance: Instance) -> float:
        pool = pool_of(instance)
        return np.nan if pool is None else float(pool.free_ratio.min())

    tokens = [joined([instance]).ints("output_tokens") for instance in instances]
    return result_table(
        "serving-instances",
        Words("Instances of the service", "服务实例"),
        (
            Col("instance", "Instance", "实例", [instance.number for instance in instances]),
            Col("label", "Files", "文件", [instance.trace.meta.label for instance in instances]),
            Col("count", "Requests", "请求数", [len(joined([instance])) for instance in instances], "count"),
            Col("tokens", "Output tokens", "输出 token 数", [int(t[t != NULL].sum()) for t in tokens], "count"),
            Col("executions", "Executions", "执行次数", [len(instance.executions) for instance in instances], "count"),
            Col("ttft_ns", "TTFT, median", "TTFT（中位数）", [median(i, "first_token_ns") for i in instances], "ns"),
            Col("queue_ns", "Queue, median", "排队（中位数）", [median(i, "queue_wait_ns") for i in instances], "ns"),
            Col(
                "free_ratio", "KV blocks free, least", "KV 空闲块（最少）", [least_free(i) for i in instances], "ratio"
            ),
        ),
    )  # fmt: skip
