"""Plugins in a record: their declarations, their answers, and the plugins that replace them in a replay.

A replay takes the answers of plugins from the record and does not run their code. They need not be installed.
"""

from typing import Any, Final, NoReturn

import msgspec
import numpy as np

from topo_scheduler.recording.calls import encoder
from topo_scheduler.scheduling.extensions.extension import Demand, Filter, Plugin, PluginError, Prefers, Score, Strategy
from topo_scheduler.scheduling.extensions.registry import BUILT_IN, Extensions


class PluginNote(msgspec.Struct, omit_defaults=True):
    """Declaration of a plugin. ``scores``: name, whether of nodes, weight. ``strategies``: name, preference, apart."""

    name: str
    annotations: list[str] = []
    labels: list[str] = []
    node_labels: list[str] = []
    opt_in: bool = False
    filters: list[str] = []
    scores: list[tuple[str, bool, float]] = []
    strategies: list[tuple[str, int, bool]] = []
    size_rule: bool = False


class PluginAnswer(msgspec.Struct, omit_defaults=True):
    """An array of dtype ``type`` in ``data``, a ``demand``, nothing, or a ``failure``: plugin, point, reason, text."""

    type: str = ""
    data: bytes = b""
    demand: Demand | None = None
    failure: tuple[str, str, str, str] | None = None


def notes_of(extensions: Extensions) -> list[PluginNote]:
    """Return the declarations of the plugins, without the built-in one."""
    return [
        PluginNote(
            plugin.name,
            list(plugin.annotations),
            list(plugin.labels),
            list(plugin.node_labels),
            plugin.opt_in,
            [rule.reason for rule in plugin.filters],
            [(score.name, score.nodes is not None, score.weight) for score in plugin.scores],
            [(strategy.name, int(strategy.prefers), strategy.apart) for strategy in plugin.strategies],
            plugin.size_rule is not None,
        )
        for plugin in extensions.plugins
        if plugin.name != BUILT_IN.name
    ]


def _never(*_: Any) -> NoReturn:
    raise AssertionError("a plugin of a record is never run: its guard answers for it")


def extensions_of(notes: list[PluginNote], guard: Any) -> Extensions:
    """Return extensions like the recorded ones. The guard answers all calls of their functions."""
    extensions = Extensions(guard)
    for note in notes:
        extensions.register(
            Plugin(
                note.name,
                annotations=note.annotations,
                labels=note.labels,
                node_labels=note.node_labels,
                opt_in=note.opt_in,
                filters=[Filter(reason, _never) for reason in note.filters],
                scores=[
                    Score(name, _never if nodes else None, None if nodes else _never, weight)
                    for name, nodes, weight in note.scores
                ],
                strategies=[
                    Strategy(name, _never, _never, Prefers(prefers), apart) for name, prefers, apart in note.strategies
                ],
                size_rule=_never if note.size_rule else None,
            )
        )
    return extensions


_PREFIX: Final = "plugin {} failed: {}: "


def encode_answer(answer: object) -> bytes:
    """Return an answer, or the PluginError in place of one, as JSON."""
    if isinstance(answer, PluginError):
        why = str(answer).removeprefix(_PREFIX.format(answer.plugin, answer.point))
        return encoder.encode(PluginAnswer(failure=(answer.plugin, answer.point, answer.reason, why)))
    if isinstance(answer, np.ndarray):
        return encoder.encode(PluginAnswer(str(answer.dtype), answer.tobytes()))
    assert answer is None or isinstance(answer, Demand)
    return encoder.encode(PluginAnswer(demand=answer))


def decode_answer(raw: msgspec.Raw) -> object:
    """Return the answer that `encode_answer` encoded."""
    answer = msgspec.json.decode(raw, type=PluginAnswer)
    if answer.failure is not None:
        return PluginError(*answer.failure)
    if answer.type:
        return np.frombuffer(answer.data, np.dtype(answer.type)).copy()
    return answer.demand
