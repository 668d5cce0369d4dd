"""The Common Expression Language of DRA's device selectors, as Kubernetes 1.36 evaluates it.

`compile_selector` compiles an expression once; `DeviceSelector.matches` evaluates it for a device. The outcome is a
bool, an `EvaluationError` (kube-scheduler fails too) or an `ExpressionNotUnderstoodError` (it may have an answer).

Imported by: `scheduling.devices`.
"""

from .errors import CelError, EvaluationError, ExpressionNotUnderstoodError, InvalidExpressionError
from .frames import CostError, DeviceView
from .quantities import Quantity, parse_quantity
from .reads import Reads
from .selector import DeviceSelector, compile_selector
from .slices import SelectorDevice, read_device
from .versions import Version, parse_version

__all__ = [
    "CelError",
    "CostError",
    "DeviceSelector",
    "DeviceView",
    "EvaluationError",
    "ExpressionNotUnderstoodError",
    "InvalidExpressionError",
    "Quantity",
    "Reads",
    "SelectorDevice",
    "Version",
    "compile_selector",
    "parse_quantity",
    "parse_version",
    "read_device",
]
