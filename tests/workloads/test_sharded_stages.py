"""What FSDP holds in a pipeline: against tensors that are made and let go of one by one, and by hand."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.workloads._schedule import Action, interleaved, one_forward_one_backward
from ascend_perf.workloads._sharded_stages import LayerBytes, StageBytes, Unit, most_in_passes

sizes = st.just(0) | st.integers(0, 40)


class Allocator:
    """Tensors by name, and the most that was there at one time."""

    def __init__(self) -> None:
        self.live: Counter[tuple[object, ...]] = Counter()
        self.most = 0

    def make(self, *name: object, size: int) -> None:
        self.live[name] += size
        self.most = max(self.most, sum(self.live.values()))

    def free(self, *name: object) -> None:
        del self.live[name]

    def briefly(self, **parts: int) -> None:
        for part, size in parts.items():
            self.make("brief", part, size=size)
        for part in parts:
            self.free("brief", part)


def played(stages: list[StageBytes], actions: list[Action], *, is_narrow: bool) -> int:
    """Most bytes of a step, tensor by tensor."""
    memory = Allocator()
    done: Counter[int] = Counter()
    micro = max(action.micro for action in actions) + 1
    receiving = [action for action in actions if stages[action.slot].receives(action.kind)]
    for action in actions:
        slot, stage, key = action.slot, stages[action.slot], (action.slot, action.micro)
        if action in receiving:
            receiving.remove(action)
        memory.free("ahead")
        if receiving:
            memory.make("ahead", size=stage.stream)
        if action.kind == "forward":
            _forward(memory, stage, slot, action.micro)
            continue
        if not stage.is_last:
            memory.make("came", size=stage.stream)
        memory.briefly(loss=stage.loss_backward)
        memory.free("ends output", key)
        one_by_one = done[slot] > 0 and not is_narrow  # added to what is there as soon as it is made
        if stage.is_last and not one_by_one:
            memory.make("table", slot, size=stage.table)
        last = done[slot] == micro - 1
        for number, layer in reversed(list(enumerate(stage.layers))):
            memory.briefly(work=layer.backward)
            memory.free("layer", key, number)
            made = 0 if one_by_one else layer.gathered
            memory.make("made", size=made)
            memory.briefly(copy=layer.matrix, input=stage.stream, two=2 * stage.stream)
            memory.free("made")
            _finish(memory, layer, slot, number, done=done[slot], last=last)
        if stage.is_first:
            memory.briefly(table=stage.table)
        if stage.is_last:
            memory.free("table", slot)
        if not last and is_narrow:
            if not done[slot]:
                memory.make("whole", slot, "ends", size=stage.ends.reduced)
            memory.briefly(made=stage.ends.gathered)
        else:
            _finish(memory, stage.ends, slot, "ends", done=done[slot], last=last)
        memory.free("buffer")
        memory.free("came")
        memory.free("ends", key)
        memory.free("result", key)
        done[slot] += 1
    return memory.most


def _forward(memory: Allocator, stage: StageBytes, slot: int, micro: int) -> None:
    key = slot, micro
    gathers = ("weights", slot, "ends") not in memory.live
    memory.make("ends", key, size=stage.kept - stage.output)
    for number, unit in [("ends", stage.ends), *enumerate(stage.layers)]:
        if gathers:
            memory.make("own buffer", size=unit.gathered)
            memory.make("weights", slot, number, size=unit.gathered)
            memory.live["buffer before",] = memory.live.pop(("own buffer",))
        if isinstance(unit, LayerBytes):
            memory.make("layer", key, number, size=unit.kept)
            if gathers or unit is stage.layers[-1]:
                memory.briefly(work=unit.forward)
    memory.free("buffer before")
    memory.make("ends output", key, size=stage.output)
    memory.make("result", key, size=0 if stage.is_last else stage.stream)
    memory.briefly(loss=stage.loss_forward)


def _finish(memory: Allocator, unit: Unit, slot: int, number: object, *, done: int, last: bool) -> None:
    """The gradients of a unit, when they are all there."""
    if not last:
        if not done:
            memory.make("whole", slot, number, size=unit.reduced)
        return
    memory.free("weights", slot, number)
    memory.free("buffer")
    before = unit.last if not done else unit.last * unit.reduced // max(1, unit.gathered)
    if done:
        memory.make("buffer", size=unit.reduced)
        memory.free("whole", slot, number)
    else:
        memory.make("made", size=unit.gathered)
        memory.make("buffer", size=unit.reduced)
        memory.free("made")
    memory.make("shard", slot, number, size=unit.shard)
    memory.briefly(last=before)


@st.composite
def stage_bytes(draw: st.DrawFn, is_first: bool, is_last: bool) -> StageBytes:
    def unit() -> dict[str, int]:
        gathered = draw(st.integers(0, 40))
        # The last weight is a part, and all is reduced in a type that is as wide or twice as wide.
        return {"gathered": gathered, "reduced": gathered * width, "shard": draw(sizes),
                "last": draw(st.integers(0, gathered))}  # fmt: skip

    width = draw(st.sampled_from([1, 2]))
    layers = [
        LayerBytes(**unit(), kept=draw(sizes), forward=draw(sizes), backward=draw(sizes), matrix=draw(sizes))
        for _ in range(draw(st.integers(1, 3)))
    ]
    output = draw(sizes) if is_last else 0
    return StageBytes(
        layers=layers, ends=Unit(**unit()), is_first=is_first, is_last=is_last, stream=draw(sizes),
        kept=output + draw(sizes), output=output, loss_forward=draw(sizes) if is_last else 0,
        loss_backward=draw(sizes) if is_last else 0, table=draw(sizes) if is_first or is_last else 0,
    )  # fmt: skip


@given(st.data(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.booleans())
@settings(max_examples=300)
def test_the_most_is_that_of_tensors_one_by_one(
    data: st.DataObject, ranks: int, slots: int, micro: int, is_narrow: bool
) -> None:
    if slots > 1:
        micro *= ranks
    rank = data.draw(st.integers(0, ranks - 1))
    stages = [
        data.draw(stage_bytes(is_first=number == 0, is_last=number == ranks * slots - 1))
        for number in range(rank, ranks * slots, ranks)
    ]
    actions = interleaved(rank, ranks, slots, micro) if slots > 1 else one_forward_one_backward(rank, ranks, micro)
    assert most_in_passes(stages, actions, is_narrow=is_narrow) == played(stages, actions, is_narrow=is_narrow)


W: Final = 1 << 20
"""Values of a layer's weights: products in bf16, gradients reduced in fp32, two ranks."""
LAYER: Final = {"gathered": 2 * W, "reduced": 4 * W, "shard": 2 * W}


@pytest.mark.parametrize("kept", [0, W // 4, W, 8 * W])
def test_one_micro_batch_has_the_gradients_of_a_layer_on_their_way(kept: int) -> None:
    """Middle stage of three layers whose activations are their only other tensors."""
    stage = StageBytes(
        layers=[LayerBytes(**LAYER, kept=kept)] * 3, is_first=False, is_last=False, stream=0
    )  # fmt: skip
    (most,) = {most_in_passes([stage], one_forward_one_backward(0, 2, 1), is_narrow=True)}
    # Third layer gathered: copied out, its buffer and that of the second. With its activations: its own buffer alone.
    gathering = max(6 * W + 4 * W + 2 * kept, 6 * W + 2 * W + 3 * kept)
    # Third layer done: its gradients are copied into their buffer, its weights are gone.
    first = 4 * W + 2 * W + 4 * W + 2 * kept
    # Second: what the third reduces and its shard; weights of two layers, gradients of this one.
    second = 4 * W + 4 * W + 2 * W + 2 * W + kept
    assert most == max(gathering, first, second)


def test_weights_in_bf16_over_many_ranks_need_most_when_they_are_gathered() -> None:
    stage = StageBytes(
        layers=[LayerBytes(gathered=2 * W, reduced=2 * W, shard=1, kept=0)] * 3, is_first=False, is_last=False, stream=0
    )  # fmt: skip
    actions = one_forward_one_backward(0, 2, 1)
    assert most_in_passes([stage], actions, is_narrow=False) == 6 * W + 2 * W + 2 * W


def test_gradients_of_several_micro_batches_wait_whole_for_the_last() -> None:
    stage = StageBytes(
        layers=[LayerBytes(**LAYER, kept=0)] * 3, is_first=False, is_last=False, stream=0
    )  # fmt: skip
    for micro in (2, 3):
        actions = one_forward_one_backward(1, 2, micro)
        # Weights and whole gradients of all, and in a later pass a layer's new ones, to be added in fp32.
        assert most_in_passes([stage], actions, is_narrow=True) == 18 * W + 2 * W
        # In one type they are added as they are made; at the end of the last one there is the buffer, without a weight.
        one_type = StageBytes(
            layers=[LayerBytes(gathered=2 * W, reduced=2 * W, shard=W, kept=0)] * 3, is_first=False, is_last=False,
            stream=0,
        )  # fmt: skip
        assert most_in_passes([one_type], actions, is_narrow=False) == 12 * W
