"""Phrases that are not written in this project, each with what is written instead."""

import re
from dataclasses import dataclass
from typing import Final

MOST_WORDS_OF_SENTENCE: Final = 25
MOST_WORDS_OF_PAGE: Final = 1500


@dataclass(frozen=True, slots=True)
class Rule:
    """A phrase to avoid, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


def _rule(pattern: str, instead: str) -> Rule:
    return Rule(re.compile(pattern, re.IGNORECASE), instead)


PHRASES: Final = (
    _rule(r"\b(?:is|are|was|were|be|been) told\b", "is reported, is logged, is published; or name the actor"),
    _rule(r"\btells?\b (?:why|which|what|how|where|that|of)\b", "reports, shows or says which"),
    _rule(r"\bit is (?:looked|asked|tried|held|searched|waited|counted)\b", "name the actor"),
    _rule(
        r"\b(?:is|are|was|were|be|been) (?:\w+ )?looked (?:at|for|up)\b", "the scheduler checks, reads or searches for"
    ),
    _rule(r"\b(?:nobody|somebody|whom|anybody|everybody)\b", "no pod, a pod, which, any user"),
    _rule(r"\bwho (?:waits?|asks?|has|have|runs?|was|were|is|are|goes|gives?)\b", "workloads that"),
    _rule(
        r"(?:\A|[.,:;!?(]|\b(?:and|but|or|so|that|if|as))\s*\bwho\b"
        r"(?! (?:else|waits?|asks?|has|have|runs?|was|were|is|are|goes|gives?)\b)",
        "a user who, a client that, the pod that",
    ),
    _rule(r"\bwho(?:m?ever|soever)\b", "name the actor: any user, the client that"),
    _rule(r"\banew\b", "again"),
    _rule(r"\bwhatever else\b", "name it"),
    _rule(r"\bbeside that\b", "in addition"),
    _rule(r"\bso many more\b", "additional"),
    _rule(r"\bgiv(?:e|es|ing|en) way\b|\bgave way\b", "is preempted, makes room"),
    _rule(r"\bmay not yet\b|\bor not yet(?=[.,;:]|$)", "is pending"),
    _rule(r"\bstands? where (?:it|they) stands?\b", "was placed or is pending"),
    _rule(r"\bheld nothing\b", "gets no reservation"),
    _rule(r"\bwhat is left over\b", "name it"),
    _rule(r"\bwho else\b", "other pods"),
    _rule(r"\b(?:is|are) searched\b", "the scheduler searches for"),
    _rule(r"\bloop has not turned\b", "the event loop stalled"),
    _rule(r"\b(?:we are|this side (?:is|may be)) cut off\b", "is partitioned"),
    _rule(r"\bsomeone else\b", "another client, another user"),
    _rule(r"\brepeat of it\b", "resample"),
    _rule(r"\borderly\b", "graceful"),
    _rule(r"\bways? out\b", "remedy"),
)
SECOND_WORDS: Final = (
    _rule(r"\bback-off\b", "backoff"),
    _rule(r"\bcarried on\b", "continued"),
    _rule(r"\bcool-down\b", "cooldown"),
    _rule(r"\bevacuat(?:e|es|ed|ing|ion)\b", "drain"),
    _rule(r"\bGPU types?\b", "GPU model"),
    _rule(r"\bhalf[- ]bound\b", "partially bound"),
    _rule(r"\bhalf gangs?\b", "partially bound gang"),
    _rule(r"\b(?:held|holds?|holding) back\b", "in backoff, reserved, or protected"),
    _rule(r"\blone pods?\b", "single pod"),
    _rule(r"\bloosen(?:s|ed|ing)?\b(?!:)", "relax"),
    _rule(r"\bmixed gangs?\b", "heterogeneous gang"),
    _rule(r"\bparked\b", "unschedulable"),
    _rule(r"\bseats? (?:is|are|was|were) held\b", "nodes are reserved"),
    _rule(r"\bsets? aside\b|\bsetting aside\b", "unschedulable, in backoff, or disabled"),
    _rule(r"\bunplaceable\b", "unschedulable"),
    _rule(r"\bwhy not\b", "reason"),
)
"""Second words for terms, which the glossary lists."""
TEST_NAMES: Final = _rule(
    r"(?<=_)(?:told|tells|nobody|somebody|whom?|anew)(?=_|$)", "reported or logged, no pod, a pod, which, again"
)
"""Words between the underscores of the name of a test."""
RULES: Final = (*PHRASES, *SECOND_WORDS)
"""Each has an example in `test_prose.py`: deleting a rule fails a test."""
