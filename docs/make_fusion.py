"""Write docs/fusion.md, the sequences that the finder of fused operators knows, from the catalogue of the package.

python docs/make_fusion.py            write it
python docs/make_fusion.py --check    say whether it is up to date (exit code 1 when it is not)
"""

from __future__ import annotations

import sys
from pathlib import Path

from ascend_perf.ops.fusions import Api, Fusion, forbidden, fusions, unmatched

TARGET = Path(__file__).parent / "fusion.md"

HEAD = """# Fused operators

Written by `docs/make_fusion.py` from `ascend_perf/ops/fused/`; do not edit.

The analyzer *fusion* looks for the sequences below and names the API that replaces each. Signatures, gradients and
limits are those of op-plugin's schema, derivatives and documents; published gains were not reproduced.

## How a sequence is found

- Among the framework's operators of the forward, per thread in order of start, where the trace joins kernels to
  operators. An operator stands for all that it calls (`aten::softmax` for `aten::_softmax`); views, allocations and
  casts do not break a sequence, and up to *n* other operators may stand between two elements where a pattern ends in
  `@n`. The kernels that the operators launched confirm it: at least two from two operators, none fused already.
- Else, and for what is left, among the kernels of a stream inside a step, by op type (on GPUs by name).
- Kernels of the backward belong to a sequence by the sequence numbers of its operators, or by a backward pattern.
- A kernel belongs to one sequence: those that could save most come first. Row C-06 leaves their kernels out.

Patterns: `a|b` is either, `?` and `{m,n}` say how often, `!a` at the end is what must not follow.

## When it is recommended

- **Gradient.** In training (an optimizer, the backward engine or backward kernels in the capture) only operators with
  a derivative, or one that a library wraps. What has none is listed as *inference only*.
- **Version.** A row that needs a later CANN than the installed one is listed as *needs CANN x*. Where the trace does
  not tell the version, the finding says so.
- **Limits.** Shapes and dtypes of the first kernel are checked; what contradicts a limit is no finding. What the
  trace does not tell is not held against it.
- **Device.** On a GPU or CPU the counterpart of torch is named, never an operator of torch_npu.

## What it gives at most

The time of the sequences less what the fused operator still needs: its tensors at the device's memory rate, or at the
best rate among the kernels where that takes longer, but no longer than the longest kernel; without shapes the longest
kernel. Of attention its products and tensors at the peaks of the device, half of the products under a mask (a causal
mask lets the fused operator skip half). Idle time between the kernels is shown, and counted by rows H-01 and H-03
only.

A collective beside a product (last table) gives at most its exposed part, as far as the product is that long. It
counts groups of tensor, context and expert parallelism only, and its time is that of rows N-09 and E-03.

Repeated vector kernels that match no row are listed in the table *Repeated kernels without a known fused operator*:
windows of equal op types of 2 to 15 kernels over each stream, by the time that one kernel in place of each would
save.
"""


def page() -> str:
    """The whole page as Markdown."""
    lines = [HEAD]
    rows = [row for row in fusions() if row.call is None]
    for code in sorted({row.row for row in rows}):
        lines += [f"## Row {code} {{ #row-{code.lower()} }}", ""]
        for row in rows:
            if row.row == code:
                lines += _row(row)
    lines += ["## Products and collectives", ""]
    for row in fusions():
        if row.call is not None:
            lines += _row(row)
    lines += ["## Not searched for", "", "| what | why |", "| --- | --- |"]
    lines += [f"| {_cell(what)} | {_cell(why.en)} |" for what, why in unmatched()]
    names = ", ".join(f"`{name}`" for name in forbidden())
    lines += ["", "## Never recommended", "", f"Deprecated, planned for removal, or not real: {names}.", ""]
    return "\n".join(lines)


def _row(row: Fusion) -> list[str]:
    lines = [f"### {row.id}", "", f"{row.what.en} · {row.what.zh}", ""]
    if row.owner:
        lines += [f"The time is counted by the analyzer *{row.owner}* (row {row.row}).", ""]
    if row.call is not None:
        lines += [f"Collective `{row.call.op}`, the product {row.call.product} it.", ""]
    listed = (("operators", row.host), ("kernels", row.kernels), ("backward", row.backward))
    patterns = [f"| {what} | {_code(pattern)} |" for what, every in listed for pattern in every]
    if patterns:
        lines += ["| track | pattern |", "| --- | --- |", *patterns, ""]
    if row.fused:
        lines += [f"Fused already: {', '.join(f'`{name}`' for name in row.fused)}.", ""]
    for api in row.apis:
        lines += _api(api)
    if row.elsewhere is not None:
        lines += [f"On a GPU or CPU: {row.elsewhere.text.en}", "", *_block(row.elsewhere.code)]
    return lines


def _api(api: Api) -> list[str]:
    facts = [f"gradient {api.gradient}", {"both": "training and inference"}.get(api.use, api.use)]
    facts += [", ".join(api.dtypes)] if api.dtypes else []
    facts += [f"products {', '.join(api.products)}"] if api.products else []
    facts += [f"from CANN {api.cann}"] if api.cann else []
    facts += [f"from torch {api.torch}"] if api.torch else []
    facts += [str(limit) for limit in api.limits]
    if api.gain is not None:
        facts.append(f"published: {api.gain.en} ({api.gain_source})")
    head = f"**`{api.name}`** {_code(api.signature)}"
    return [head, "", f"{'; '.join(facts)}.", "", api.text.en, "", *_block(api.code)]


def _block(code: str) -> list[str]:
    return ["```text" if code.startswith("--") else "```python", code, "```", ""]


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page, or with --check compare it."""
    text = page()
    if "--check" in sys.argv[1:]:
        same = TARGET.is_file() and TARGET.read_text("utf-8") == text
        print(f"{TARGET.name} is {'up to date' if same else 'not up to date: run docs/make_fusion.py'}")
        return 0 if same else 1
    TARGET.write_text(text, "utf-8")
    print(f"wrote {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
