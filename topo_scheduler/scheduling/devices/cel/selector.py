"""Selectors of devices, compiled from CEL expressions."""

from contextlib import suppress

from .checker import check
from .compiler import ExpressionCompiler
from .errors import CelError, EvaluationError, ExpressionNotUnderstoodError
from .frames import COST_LIMIT, COST_SLOT, DeviceView, Frame, Run
from .parser import parse
from .reads import Reads, reads_of
from .values import type_name


class DeviceSelector:
    """A compiled expression.

    Attributes:
        expression: the text.
        reads: what it reads of a device; devices with equal ``reads.key(device)`` get the same answer.
    """

    __slots__ = ("_budget", "_run", "_variables", "expression", "reads")

    def __init__(self, expression: str, run: Run, variables: int, cost: int, reads: Reads) -> None:
        self.expression = expression
        self.reads = reads
        self._run = run
        self._variables = [None] * variables
        self._budget = COST_LIMIT - cost

    def matches(self, device: DeviceView) -> bool:
        """Return whether a device matches.

        Raises:
            EvaluationError: kube-scheduler fails on this device too; it does not mean "does not match".
            ExpressionNotUnderstoodError: the evaluation needs what is not supported here, or too many steps.
        """
        return self._evaluate([device, self._budget, *self._variables])

    def judge(self, device: DeviceView, max_steps: int = COST_LIMIT) -> tuple[bool | CelError, int]:
        """Return whether a device matches or why that is unknown, and how many steps the evaluation took.

        It ends with a `CostError` after ``max_steps``.
        """
        frame: Frame = [device, self._budget - COST_LIMIT + max_steps, *self._variables]
        answer: bool | CelError
        try:
            answer = self._evaluate(frame)
        except CelError as error:
            answer = error
        return answer, max_steps - frame[COST_SLOT]

    def steps(self, device: DeviceView) -> int:
        """Return how many steps evaluating for a device takes, also where it fails: never less than upstream's cost."""
        frame: Frame = [device, self._budget, *self._variables]
        with suppress(CelError):
            self._evaluate(frame)
        remaining: int = frame[COST_SLOT]
        return COST_LIMIT - remaining

    def _evaluate(self, frame: Frame) -> bool:
        try:
            value = self._run(frame)
        except RecursionError:
            raise ExpressionNotUnderstoodError("the expression nests too deeply: simplify it") from None
        if value is True or value is False:
            return bool(value)
        raise EvaluationError(f"the expression returns a {type_name(value)}, not a bool")


def compile_selector(expression: str) -> DeviceSelector:
    """Return the compiled form of an expression.

    Raises:
        InvalidExpressionError: the API server refuses it too.
        ExpressionNotUnderstoodError: it uses what is not supported here.
    """
    try:
        tree = parse(expression)
        check(tree, expression)
        compiler = ExpressionCompiler(tree, expression)
    except RecursionError:
        raise ExpressionNotUnderstoodError("the expression nests too deeply: simplify it") from None
    return DeviceSelector(expression, compiler.run, compiler.slots - 2, compiler.cost, reads_of(tree))
