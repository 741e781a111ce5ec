"""From a call of the model to a verdict, while the call waits or while the compiler is at work on it already."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from peakcast.client.guard.ahead import Ahead
from peakcast.client.guard.asking import Asking
from peakcast.client.guard.largest_batch import batch_of, first_of, largest_batch
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.question import Call, Means, Question
from peakcast.client.guard.ranks import Ranks, adopted, proposal_of
from peakcast.client.guard.verdict import Verdict
from peakcast.featurizer.run import DeviceSpec

# Of the room, for the largest batch: the bounds of the user's step and of the loop that stands for it differ by some
# percent more at one size than at another.
_SURE_SHARE: Final = 0.95


class Decider:
    """Reach verdicts for one model.

    Args:
        plans: those that the model can run under.
        asking: answers questions.
        policy: bounds on everything.
        device: the card; None: the current CUDA device at the time of the question, or an empty H200 without one.
        modules: those that the model's classes are from, for the capturing process to import ahead.
    """

    def __init__(
        self,
        plans: tuple[str, ...],
        asking: Asking,
        policy: Policy,
        device: DeviceSpec | None,
        *,
        modules: Sequence[str] = (),
    ) -> None:
        self._plans = plans
        self._asking = asking
        self._means = Means(asking, policy, device, modules)
        # There is one capturing process. A decision that nobody waits for any more may still be using it.
        self._one_at_a_time = threading.Lock()

    def decide(self, call: Call, ranks: Ranks | None = None) -> Verdict:
        """Return the verdict for a call. Where the plan wanted fits, no other is captured.

        With `ranks` it is one that all ranks can run: first they see whether that plan fits everywhere.

        Raises:
            CannotDescribeError: if the step cannot be sent to the capturing process.
            CaptureError: if it cannot be captured.
            AskError: if there is no answer to the question.
        """
        return self._asking.while_it_answers(lambda: self._verdict(Question(self._means, call), ranks=ranks))

    def decide_ahead(self, call: Call) -> Ahead:
        """Return the verdict in the making; the call may begin, and its model be changed, as soon as this returns.

        Raises:
            CannotDescribeError: if the step cannot be sent to the capturing process.
        """
        question = Question(self._means, call, stays_bare=False)
        return Ahead(lambda doubt: self._asking.while_it_answers(lambda: self._verdict(question, doubt=doubt)))

    def _verdict(
        self, question: Question, *, ranks: Ranks | None = None, doubt: Callable[[], None] = lambda: None
    ) -> Verdict:
        wanted, *others = self._plans
        with self._one_at_a_time:
            try:
                question.ask([wanted])
                verdict, settled = question.verdict(), question.fits()
                if ranks is not None:
                    found = ranks.agree(proposal_of(verdict))
                    verdict, settled = adopted(verdict, found), found.plan is not None
                if settled or not others:
                    return verdict
                doubt()
                question.ask(others)
                verdict = question.verdict()
                return verdict if ranks is None else adopted(verdict, ranks.agree(proposal_of(verdict)))
            finally:
                self._means.renew()

    def largest_batch(self, call: Call, verdict: Verdict) -> int | None:
        """Return the largest batch that fits under the verdict's plan, or None where none was found.

        Raises as `decide` does.
        """
        inputs = (call.args, dict(call.kwargs))
        batch = batch_of(inputs)
        if batch is None or verdict.device is None or (verdict.room_bytes or 0) <= 0:
            return None
        device, plan = verdict.device, verdict.plan

        @functools.cache
        def required_bytes(size: int) -> int:
            args, kwargs = first_of(inputs, size)
            captured = self._means.capture(replace(call, args=args, kwargs=kwargs, step=None).described(), [plan])
            return self._means.answer(captured.spec, [plan], device, verdict.run).plan(plan).required.upper_bytes

        # What the user's step takes beyond the standard loop that stands for it at other sizes: activations, mostly.
        ratio = max(1.0, verdict.required[plan] / required_bytes(batch))
        room_bytes = int((verdict.room_bytes or 0) * _SURE_SHARE / ratio)
        return largest_batch(required_bytes, too_large=batch, room_bytes=room_bytes)

    def close(self) -> None:
        """End the capturing process."""
        self._means.close()
