"""check-accuracy: errors by hand, and planted errors that are found where they were planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ascend_perf.workloads import _accuracy as accuracy  # noqa: E402

pytestmark = pytest.mark.torch


class Doubled(torch.autograd.Function):  # type: ignore[misc,name-defined]  # torch is not type-checked here
    """Right forwards, twice the gradient backwards: a wrong operator as one meets it."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * 2


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch is not type-checked here
    """Three layers; plain code between the second and the third. `change` says what is wrong in it."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (torch.nn.Linear(8, 8) for _ in range(3))
        self.act = torch.nn.ReLU(inplace=True)
        self.change = change

    def forward(self, x_BW: Any) -> Any:
        x_BW = self.act(self.first(x_BW))
        x_BW = self.second(x_BW)
        if self.change == "backward":
            x_BW = Doubled.apply(x_BW)
        x_BW = x_BW * (1.1 if self.change == "plain code" else 1.0) + 1
        return self.third(x_BW)


def record(model: Any, reference: accuracy.Recording | None = None, scale: float = 1.0) -> accuracy.Recording:
    with accuracy.recorded(
        model, reference=reference, keep_bytes=1 << 20, gradient_scale=lambda: scale
    ) as seen:
        x_BW = torch.linspace(-1, 1, 32).reshape(4, 8)
        (model(x_BW).pow(2).mean() * scale).backward()
    return seen


def alone(model: Any) -> list[accuracy.Difference]:
    reference = record(Net())
    return accuracy.differences(record(model, reference), reference)


def test_errors_by_hand() -> None:
    seen, reference = accuracy.Recording(), accuracy.Recording()
    for recording, values in ((seen, [1.0, 2.5, -4.0]), (reference, [1.0, 2.0, -5.0])):
        accuracy._keep(recording, "layer", "output", torch.tensor(values))

    (row,) = accuracy.differences(seen, reference)

    # |x - r| = 0, 0.5, 1; |r| = 1, 2, 5.
    assert row.mean_relative_error == pytest.approx(1.5 / 8)
    assert row.max_relative_error == pytest.approx(1 / 5)
    assert row.cosine == pytest.approx((1 + 5 + 20) / math.sqrt((1 + 6.25 + 16) * 30))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_none_is_the_largest_error(bad: float) -> None:
    seen, reference = accuracy.Recording(), accuracy.Recording()
    accuracy._keep(seen, "layer", "output", torch.tensor([1.0, bad]))
    accuracy._keep(reference, "layer", "output", torch.tensor([1.0, 2.0]))

    (row,) = accuracy.differences(seen, reference)

    assert row.mean_relative_error == math.inf
    assert row.cosine is None


def test_another_shape_is_the_largest_error() -> None:
    seen, reference = accuracy.Recording(), accuracy.Recording()
    accuracy._keep(seen, "layer", "output", torch.ones(3))
    accuracy._keep(reference, "layer", "output", torch.ones(4))

    assert accuracy.differences(seen, reference)[0].max_relative_error == math.inf


def test_large_tensors_are_compared_at_evenly_spread_places() -> None:
    count = accuracy.MAX_SAMPLES * 2 + 1
    seen = accuracy.Recording()
    accuracy._keep(seen, "layer", "output", torch.arange(count, dtype=torch.float64))

    kept = seen.tensors["layer", "output"]
    assert (len(kept), float(kept[0]), float(kept[-1])) == (accuracy.MAX_SAMPLES, 0.0, count - 1)
    assert accuracy.differences(seen, seen)[0].is_sampled


def test_equal_models_do_not_differ_and_recording_changes_no_gradient() -> None:
    plain, watched = Net(), Net()
    x_BW = torch.linspace(-1, 1, 32).reshape(4, 8)
    plain(x_BW).pow(2).mean().backward()
    reference = record(watched)

    assert torch.equal(plain.first.weight.grad, watched.first.weight.grad)
    rows = accuracy.differences(record(Net()), reference)
    assert {row.mean_relative_error for row in rows} == {0.0}
    assert {row.kind for row in rows} == {
        "input", "output", "output_gradient", "input_gradient", "weight_gradient"
    }  # fmt: skip
    assert not watched.first._forward_hooks and not watched.first._forward_pre_hooks


def test_the_scale_of_the_loss_is_taken_out() -> None:
    rows = accuracy.differences(record(Net(), scale=1024.0), record(Net()))

    assert max(row.mean_relative_error for row in rows) == 0.0


def scaled(name: str, factor: float) -> Callable[[], Any]:
    def make() -> Any:
        model = Net()
        dict(model.named_modules())[name].register_forward_hook(lambda module, args, output: output * factor)
        return model

    return make


@pytest.mark.parametrize(
    ("make", "module", "place", "error"),
    [
        (scaled("second", 1.05), "second", "inside", 0.05),
        (scaled("first", 1.02), "first", "inside", 0.02),
        (lambda: Net("plain code"), "third", "before", None),
        (lambda: Net("backward"), "second", "backward_after", 1.0),
    ],
    ids=["a layer", "the first layer", "plain code", "a wrong gradient"],
)
def test_a_planted_error_is_found_where_it_is(
    make: Callable[[], Any], module: str, place: str, error: float | None
) -> None:
    rows = alone(make())
    found = accuracy.first_divergence(rows, 1e-3)

    assert found is not None
    assert (found.module, found.place) == (module, place)
    if error is not None:
        assert found.mean_relative_error == pytest.approx(error, rel=1e-3)
    # Nothing else is blamed: it got what the reference had, forwards and backwards.
    off = {row.module for row in rows if row.mean_relative_error > 1e-6 and row.kind != "weight_gradient"}
    assert off == ({"second", "third"} if place == "before" else {module})  # plain code has a gradient as well


def test_as_it_runs_the_error_goes_on_to_the_modules_after() -> None:
    reference = record(Net())
    rows = accuracy.differences(record(scaled("first", 1.5)()), reference)

    outputs = {row.module: row.mean_relative_error for row in rows if row.kind == "output"}
    assert outputs["first"] == pytest.approx(0.5)
    assert outputs["third"] > 0.01


def test_what_stands_out_is_sensitive() -> None:
    def row(module: str, error: float, kind: accuracy.Kind = "output") -> accuracy.Difference:
        return accuracy.Difference(
            module=module, type="Linear", kind=kind, max_relative_error=error, mean_relative_error=error, cosine=1.0,
            elements=1, is_sampled=False,
        )  # fmt: skip

    rows = [row("a", 1e-3), row("b", 2e-3), row("c", 7e-3), row("d", 6e-3), row("e", 2e-3), row("c", 1.0, "input")]

    assert [found.module for found in accuracy.sensitive(rows)] == ["c", "d"]  # the median is 2e-3
    assert accuracy.sensitive([row("a", 0.0)]) == []


def test_without_room_there_is_no_run_alone() -> None:
    model = Net()
    with accuracy.recorded(model, keep_bytes=64) as seen:
        model(torch.ones(4, 8))

    assert not seen.is_whole
    assert seen.kept_bytes <= 64
