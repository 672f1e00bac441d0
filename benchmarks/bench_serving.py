"""A hundred clients at the server of llm-serve for a minute: none lost, both sides count the same, and the figures.

    python benchmarks/bench_serving.py [--clients 100] [--seconds 60] [--requests 500] [--set KEY=VALUE ...]

The model is that of the preset tiny, on the CPU. Clients are a process of their own in a closed loop; rounds of
`--requests` follow one another until the time is over. Percentiles are computed here from the raw stamps a second time,
by sorting, and compared with those of the load generator. Exit code 1: a request was lost, or the counts differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import replace

from ascend_perf.workloads._load import Record
from ascend_perf.workloads._load_figures import figures_of, notes_of, percentile
from ascend_perf.workloads._serving import serve
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.llm_serve import MODEL_NAME, Client, Config, llm_serve


def main() -> int:
    """Run the rounds and print what they gave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    config = llm_serve.settings("tiny", ["max_batch=32", "max_queue=1000", *asked.set]).config
    assert isinstance(config, Config)
    load = replace(config.load, clients=asked.clients, requests=asked.requests)
    served = serve(config.model, config.server, config.operators, Place(), 0, model_name=MODEL_NAME)
    client = Client(load, served.server.url, None)
    records, notes, duration_ns = list[Record](), list[str](), 0
    deadline = time.monotonic() + asked.seconds
    try:
        while time.monotonic() < deadline:
            answer = client.begin(len(records))
            served.batcher.run(answer.is_there)
            round_ = answer.round()
            figures = figures_of(load, round_.records)
            records += round_.records
            duration_ns += figures.duration_ns
            notes += [note.en for note in notes_of(load, round_, figures)]
    finally:
        left = served.server.shut_down(config.server.drain_s)
        client.end()

    figures, counts, seconds = figures_of(load, records), served.batcher.counts, duration_ns / 1e9
    print(f"{os.cpu_count()} CPUs, {asked.clients} clients, {len(records)} requests in {seconds:.1f} s of load")
    print(f"answered {figures.completed}, failed {dict(figures.failed)}, given up at the end {left}")
    print(f"requests/s {figures.completed / seconds:.1f}, output tokens/s {figures.output_tokens / seconds:.0f}")
    print(f"server: finished {counts.finished}, tokens {counts.output_tokens}, cancelled {counts.cancelled}, "
          f"rows per step {counts.rows / max(counts.steps, 1):.1f}, queue at most {counts.peak_queue}")  # fmt: skip
    done = [record for record in records if record.error is None]
    raw: dict[str, list[float]] = {
        "ttft": [r.stamps_ns[0] - r.sent_ns for r in done],
        "tpot": [(r.stamps_ns[-1] - r.stamps_ns[0]) / (len(r.stamps_ns) - 1) for r in done if len(r.stamps_ns) > 1],
        "e2e": [r.stamps_ns[-1] - r.sent_ns for r in done],
    }
    is_equal = True
    for name, values in raw.items():
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        ours = [percentile(figures.latencies_ns[name], percent) or 0.0 for percent in (50, 90, 99)]
        theirs = [cuts[percent - 1] for percent in (50, 90, 99)]
        is_equal &= all(abs(one - other) <= 1 for one, other in zip(ours, theirs, strict=True))
        shown = " · ".join(f"p{p} {value / 1e6:.1f} ms" for p, value in zip((50, 90, 99), ours, strict=True))
        print(f"{name:<5}{shown}")
    for note in sorted(set(notes)):
        print(f"note: {note}")
    counted = (counts.finished, counts.output_tokens) == (figures.completed, figures.output_tokens)
    print(f"percentiles agree with the raw stamps: {is_equal}; both sides count the same: {counted}")
    return 0 if is_equal and counted and not figures.failed and not left else 1


if __name__ == "__main__":
    sys.exit(main())
