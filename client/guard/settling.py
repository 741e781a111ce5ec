"""The verdict for each signature, asked for before the call or while it is compiled, whatever goes wrong with it."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from peakcast.client.guard.ahead import Ahead
from peakcast.client.guard.deciding import Decider
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.question import Call, StepNotCapturedError
from peakcast.client.guard.ranks import Ranks, adopted, easy_proposal
from peakcast.client.guard.signature import Signature
from peakcast.client.guard.verdict import Verdict

_log = logging.getLogger("peakcast")


class NothingFitsError(RuntimeError):
    """No plan fits, and the policy says to refuse then. `largest_batch` is the largest that does, where known."""

    def __init__(self, message: str, largest_batch: int | None = None) -> None:
        super().__init__(message)
        self.largest_batch = largest_batch


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """A signature whose plan is compiled while its verdict is in the making."""

    signature: Signature
    call: Call
    ahead: Ahead

    def stands(self, plan: str, policy: Policy) -> bool:
        """Wait for the verdict, and tell whether the compile of `plan` that has begun may go on under it."""
        try:
            verdict = self.ahead.verdict()
        except StepNotCapturedError:  # there is another way to ask, which the compile is in the way of
            return False
        except Exception:  # noqa: BLE001  (told when it is concluded: nothing speaks against the plan)
            return True
        return verdict.plan == plan and not _is_refused(verdict, policy)


class Settler:
    """Find verdicts, and remember them by signature.

    Args:
        plans: the plan wanted, then the others.
        decider: reaches verdicts.
        policy: how many questions, and what happens where nothing fits.
        bare: shows the model as its user made it.
        counts: gets questions, unknown and warnings.
        decided: is told each verdict that was asked for.
    """

    def __init__(
        self,
        plans: Sequence[str],
        decider: Decider,
        policy: Policy,
        *,
        bare: Callable[[], contextlib.AbstractContextManager[None]],
        counts: Counter[str],
        decided: Callable[[Verdict], None],
    ) -> None:
        self.verdicts: dict[Signature, Verdict] = {}
        self._plans = plans
        self._decider = decider
        self._policy = policy
        self._bare = bare
        self._counts = counts
        self._decided = decided
        self._ranks = Ranks(policy.agree_time)
        self._warned: set[str] = set()

    def may_ask_meanwhile(self, signature: Signature) -> bool:
        """Tell whether this signature is a question, and one for this process alone."""
        return self._covering(signature) is None and self._may_ask() and not self._ranks.are_several()

    def settle(self, signature: Signature, call: Call, plan: str) -> Verdict:
        """Return the verdict for a signature that is new; `plan` is what runs now.

        Raises:
            NothingFitsError: if no plan is predicted to fit, where the policy says to refuse.
        """
        covering = self._covering(signature)
        if covering is not None:
            verdict = covering
        elif not self._may_ask():
            asked = f"{self._policy.questions} signatures were asked about, as many as allowed"
            verdict = self._unknown(asked, plan)
        else:
            self._counts["questions"] += 1
            verdict = self._asked(call, plan)
        self.verdicts[signature] = verdict
        return verdict

    def ask_ahead(self, signature: Signature, call: Call) -> Meanwhile:
        """Have a verdict made while the call begins.

        Raises:
            CannotDescribeError: if the step cannot be sent to the capturing process.
        """
        self._counts["questions"] += 1
        with self._bare():
            return Meanwhile(signature, call, self._decider.decide_ahead(call))

    def conclude(self, meanwhile: Meanwhile, plan: str) -> Verdict:
        """Return the verdict that was in the making, waiting for it; never from inside a compile.

        Raises:
            NothingFitsError: as `settle` does.
        """
        try:
            verdict = meanwhile.ahead.verdict()
        except StepNotCapturedError:
            verdict = self._asked(meanwhile.call, plan)
        except Exception as error:  # noqa: BLE001  (fails open: nothing that asking does may stop the training)
            verdict = self.unanswered(error, plan)
        else:
            verdict = self._answered(replace(verdict, waited_s=meanwhile.ahead.waited_s), meanwhile.call)
        self.verdicts[meanwhile.signature] = verdict
        return verdict

    def unanswered(self, error: Exception, plan: str) -> Verdict:
        """Return the verdict where asking has failed: as asked for, with one warning."""
        self._counts["unknown"] += 1
        told = first_line(error)
        self.warn_once("unknown", "no prediction, so %s runs as asked: %s", self._plans[0], told)
        return self._unknown(told, plan)

    def warn_once(self, kind: str, message: str, *values: object) -> None:
        """Say it once for each kind; later ones are only counted."""
        self._counts[f"warned_{kind}"] += 1
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning(message, *values)

    def _covering(self, signature: Signature) -> Verdict | None:
        """Return a verdict that holds for this signature too."""
        covering = next((v for known, v in self.verdicts.items() if known.covers(signature)), None)
        if covering is not None and (covering.plan == self._plans[0] or not self._may_ask()):
            return covering
        return None

    def _may_ask(self) -> bool:
        return self._counts["questions"] < self._policy.questions

    def _asked(self, call: Call, plan: str) -> Verdict:
        # Later on the ranks' shapes differ, and one that sees a new one would wait for the others in vain.
        ranks = self._ranks if not self.verdicts and self._ranks.are_several() else None
        try:
            with self._bare():
                verdict = self._decider.decide(call, ranks)
        except Exception as error:  # noqa: BLE001  (fails open: nothing that asking does may stop the training)
            verdict = self.unanswered(error, plan)
            return verdict if ranks is None else self._follow(verdict, ranks)
        return self._answered(replace(verdict, waited_s=verdict.captured_s + verdict.asked_s), call)

    def _answered(self, verdict: Verdict, call: Call) -> Verdict:
        self._decided(verdict)
        if _is_refused(verdict, self._policy):
            self._refuse(verdict, call)
        if verdict.action == "smallest":
            self.warn_once("smallest", "%s; running %s", verdict.reason, verdict.plan)
        return verdict

    def _follow(self, verdict: Verdict, ranks: Ranks) -> Verdict:
        """Adopt what the other ranks run: nothing is known here that speaks against it."""
        for plans in (self._plans[:1], self._plans):
            found = ranks.agree(easy_proposal(plans))
            if found.plan is not None:
                break
        return adopted(verdict, found)

    def _unknown(self, reason: str, plan: str) -> Verdict:
        return Verdict(plan=plan if self.verdicts else self._plans[0], action="unknown", reason=reason)

    def _refuse(self, verdict: Verdict, call: Call) -> NoReturn:
        largest = None
        try:
            with self._bare():
                largest = self._decider.largest_batch(call, verdict)
        except Exception as error:  # noqa: BLE001  (the refusal stands without it)
            _log.info("the largest batch that fits is not known: %s", first_line(error))
        more = f"; the largest batch that fits: {largest}, under {verdict.plan}" if largest is not None else ""
        raise NothingFitsError(verdict.reason + more, largest)


def first_line(error: BaseException) -> str:
    """Return an error's kind and the first line of what it says."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else ''}"


def _is_refused(verdict: Verdict, policy: Policy) -> bool:
    return verdict.action == "smallest" and policy.nothing_fits == "refuse"
