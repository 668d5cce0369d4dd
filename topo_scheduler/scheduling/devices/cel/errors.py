"""What can go wrong with a selector: upstream refuses it, upstream fails on it, or it is outside our subset."""


class CelError(ValueError):
    """A selector without an answer. The text is for the pod's user."""


class InvalidExpressionError(CelError):
    """The API server refuses this expression too: a syntax error, a type error or an undeclared name."""


class ExpressionNotUnderstoodError(CelError):
    """The expression, or this evaluation of it, needs something that this scheduler does not support.

    kube-scheduler may have an answer. Never treat it as "does not match".
    """


class EvaluationError(CelError):
    """The evaluation failed, as it does in kube-scheduler, which gives the pod up with this error."""


def located(message: str, expression: str, position: int) -> str:
    """Return a message with the line and column of a position, both counted from 1."""
    line = expression.count("\n", 0, position) + 1
    column = position - (expression.rfind("\n", 0, position) + 1) + 1
    return f"{message} (line {line}, column {column} of the CEL expression)"
