"""What users reported about a peak, in small: each has its right value, worked out from the shapes."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from captured import Captured, Simulated
from handmade import MIB

from peakcast.featurizer.vocabulary import PHASES

CUBLAS = 32 * MIB
LT = MIB


class TestEager:
    """Steps as they are written."""

    def test_logits_held_into_the_next_step_make_the_first_one_lower(self, simulated: Simulated) -> None:
        """What a step returned lives until the next overwrites it: exactly one logits tensor, and it is named."""
        prior = simulated("holds_logits")
        assert prior.steady_allocated_bytes - prior.first_allocated_bytes == 4 * MIB
        held = [tensor for tensor in prior.top_tensors if tensor.bytes == 4 * MIB]
        assert [tensor.node >= 0 for tensor in held].count(False) == 1

    def test_zeroing_gradients_after_the_forward_keeps_them_through_it(self, simulated: Simulated) -> None:
        """The peak is in the forward: later by exactly one gradient of 4 MiB."""
        early, late = simulated("zero_grad_before_forward"), simulated("zero_grad_before_backward")
        forward = [int(prior.watermark_bytes[:4].max()) for prior in (early, late)]
        assert forward[1] - forward[0] == 4 * MIB

    def test_adam_states_appear_at_the_end_of_the_first_step(self, simulated: Simulated) -> None:
        """Two states of 4 MiB are missing in a fresh first step, and there in a resumed one and in later ones."""
        fresh, resumed = simulated("adam", step_of_interest="first"), simulated("adam", step_of_interest="resumed")
        assert resumed.first_allocated_bytes - fresh.first_allocated_bytes == 8 * MIB
        assert fresh.parts.optimizer_state_bytes == 0
        assert resumed.parts.optimizer_state_bytes == pytest.approx(8 * MIB, abs=512)

    def test_autocast_casts_pile_up_under_no_grad(self, simulated: Simulated) -> None:
        """Three weights of 4 MiB, three casts of 2 MiB, cuBLAS; rows of 2 to 4 KiB beside them."""
        prior = simulated("autocast_inference")
        assert prior.steady_allocated_bytes == pytest.approx(3 * 4 * MIB + 3 * 2 * MIB + CUBLAS, abs=16 * 1024)

    def test_cross_entropy_holds_copies_of_the_logits(self, simulated: Simulated) -> None:
        """Log-softmax, its gradient and the logits' gradient, of 32 MiB each: the peak is of the loss."""
        prior = simulated("cross_entropy")
        assert [tensor.bytes for tensor in prior.top_tensors[:4]].count(32 * MIB) == 3
        assert PHASES[prior.peak_phase] in {"loss", "backward"}
        assert "softmax" in prior.top_tensors[0].op + prior.top_tensors[1].op + prior.top_tensors[2].op

    def test_one_linear_takes_cublas_workspaces(self, simulated: Simulated) -> None:
        """32 MiB and 1 MiB of cuBLASLt on an H200; 8,519,680 bytes in place of the 32 MiB on an A100."""
        assert simulated("one_linear").workspace_bytes == CUBLAS + LT
        assert simulated("one_linear", device="NVIDIA A100-SXM4-80GB").workspace_bytes == 8_519_680 + LT

    def test_tied_weights_count_once(self, simulated: Simulated) -> None:
        """One matrix of 4 MiB for embedding and head."""
        assert simulated("tied").parameters_bytes == 4 * MIB

    def test_ddp_holds_a_second_copy_of_the_gradients(self, simulated: Simulated) -> None:
        """Four gradients of 4 MiB once more, in buckets; as views, only the one being copied there (and 4 KiB rows)."""
        alone, copied, views = (simulated(way) for way in ("without_ddp", "ddp_with_buckets", "ddp_with_views"))
        assert copied.steady_allocated_bytes - alone.steady_allocated_bytes == 4 * 4 * MIB
        assert views.steady_allocated_bytes - alone.steady_allocated_bytes == pytest.approx(4 * MIB, abs=16 * 1024)

    @pytest.mark.parametrize("name", ["adam", "cross_entropy", "gelus", "one_linear"])
    def test_the_parts_are_all_of_the_peak(self, simulated: Simulated, name: str) -> None:
        """Not model states alone: activations, temporaries, workspaces and rounding are named, and add up."""
        prior = simulated(name)
        assert sum(dataclasses.astuple(prior.parts)) == prior.steady_allocated_bytes

    def test_expandable_segments_reserve_less_for_growing_sizes(self, simulated: Simulated) -> None:
        """Temporaries of 11, 19, 27, 35 and 43 MiB, one after the other, beside an input of 44.

        Each gets a segment of its own, 12 + 20 + 28 + 36 + 44 MiB; in one that grows the 44 + 43 take five pages of 20.
        Small tensors take 2 MiB either way.
        """
        native = simulated("growing")
        grown = simulated("growing", allocator="expandable_segments:True")
        # The rest of 1 MiB of the last one's 44 is not split off, but in a segment that grows.
        assert native.steady_allocated_bytes - grown.steady_allocated_bytes == MIB
        assert native.steady_reserved_bytes == (44 + 12 + 20 + 28 + 36 + 44 + 2) * MIB
        assert grown.steady_reserved_bytes == (5 * 20 + 2) * MIB


class TestCompiled:
    """What the compiler makes of a step."""

    def test_a_batch_of_matrix_vector_products_is_never_spread_out(
        self, simulated: Simulated, reported: Captured
    ) -> None:
        """Taken apart into product and sum it would take 3 MB more, in float32 6; fused, or left whole, it does not."""
        prior = simulated("matrix_vector", "inductor")
        library = CUBLAS if "aten.bmm.default" in reported.ops("matrix_vector", "inductor") else 0
        assert prior.steady_allocated_bytes == pytest.approx(3_072_000 + 512_000 + 12_000 + library, rel=0.001)

    def test_pointwise_chains_take_less_when_compiled(self, simulated: Simulated) -> None:
        """Eager holds the input and two steps of the chain; compiled the input and the result."""
        assert simulated("pointwise").steady_allocated_bytes == 24 * MIB
        assert simulated("pointwise", "inductor").steady_allocated_bytes == 16 * MIB

    def test_tuning_kernels_takes_a_buffer_in_the_first_step_alone(self, simulated: Simulated) -> None:
        """Input and result of 8 MiB, and 60 MiB that empty an H200's L2 cache between two trials."""
        prior = simulated("pointwise", "inductor")
        assert prior.first_allocated_bytes == 16 * MIB + 60 * MIB
        assert prior.steady_allocated_bytes == 16 * MIB

    def test_compiled_training_saves_less(self, simulated: Simulated) -> None:
        """Eager keeps the input of each operation, compiled the first one's alone: no fall-back for memory's sake."""
        eager, compiled = simulated("gelus"), simulated("gelus", "inductor")
        assert compiled.steady_allocated_bytes < eager.steady_allocated_bytes

    @pytest.mark.parametrize("plan", ["eager", "inductor"])
    def test_writing_one_token_does_not_copy_the_cache(self, simulated: Simulated, plan: str) -> None:
        """16 MiB of cache and some rows of 4 KiB: a functionalised write is put back in place."""
        assert simulated("cache_write", plan).steady_allocated_bytes == pytest.approx(16 * MIB, abs=32 * 1024)

    def test_a_graph_that_travels_keeps_its_in_place_operators(self, reported: Captured) -> None:
        """Sent as its own JSON, never as a pickled torch graph: the write is still one into the cache."""
        spec = reported.spec("cache_write")
        sent = pickle.loads(pickle.dumps(spec))  # noqa: S301  # our own bytes
        assert sent.to_json() == spec.to_json()
        written = [sent.ops[op] for op in sent.traces["eager"].op]
        assert "aten.copy_.default" in written
        assert (sent.lines, sent.traces["eager"].line.tolist()) == (spec.lines, spec.traces["eager"].line.tolist())

    @pytest.mark.parametrize("plan", ["eager", "inductor"])
    def test_a_condition_counts_as_its_larger_branch(self, simulated: Simulated, plan: str) -> None:
        """4 MiB outside and 12 in the larger branch; not 20 for both, and what lives outside is there."""
        assert simulated("branches", plan).steady_allocated_bytes == pytest.approx(16 * MIB, abs=2 * MIB)


class TestBeyondTheReports:
    """Quantised weights, 8-bit states, offloading and generation."""

    def test_quantised_weights_are_taken_apart_one_at_a_time(self, simulated: Simulated) -> None:
        """1 MiB of int8; eager takes it apart into floats and scales those, 4 MiB each; compiled in one; cuBLAS."""
        eager, compiled = simulated("quantised"), simulated("quantised", "inductor")
        assert eager.steady_allocated_bytes == pytest.approx(MIB + 8 * MIB + CUBLAS, abs=64 * 1024)
        assert compiled.steady_allocated_bytes == pytest.approx(MIB + 4 * MIB + CUBLAS, abs=64 * 1024)

    def test_eight_bit_states_are_a_quarter(self, simulated: Simulated) -> None:
        """Two states of 1 MiB for a weight of 4 MiB, and the mean as floats during the step."""
        prior = simulated("eight_bit_optimizer", step_of_interest="resumed")
        start = sum(int(prior.steps.steady.bytes[tensor]) for tensor in prior.steps.steady.start)
        # Weight, states, row, workspaces of both threads.
        assert start == pytest.approx(4 * MIB + 2 * MIB + 2 * CUBLAS, abs=64 * 1024)

    def test_offloaded_weights_take_one_weight(self, simulated: Simulated) -> None:
        """Three weights of 4 MiB on the host, one of which is on the card at a time; cuBLAS."""
        assert simulated("offloaded").steady_allocated_bytes == pytest.approx(4 * MIB + CUBLAS, abs=64 * 1024)

    def test_pinned_memory_is_none_of_the_cards(self, simulated: Simulated, reported: Captured) -> None:
        """9 MiB come to the card; the 9 on the host, and the 16 that pinning rounds them up to, do not count."""
        assert simulated("pinned").steady_allocated_bytes == pytest.approx(9 * MIB, abs=2 * 1024)
        assert "aten._pin_memory.default" in reported.ops("pinned")

    def test_a_growing_cache_holds_the_old_and_the_new_one(self, simulated: Simulated) -> None:
        """The third token: 12 MiB of old cache and 16 of new, and its keys of 4."""
        assert simulated("generate").steady_allocated_bytes == (4 + 12 + 16) * MIB
