"""The size rule and the order of preference once more, by trying every set of leaves. Slow, and plain to read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from topo_scheduler.api.labels import UNLABELLED

Path = tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """A node. ``place`` its name at each level that any node has, UNLABELLED where it is not told."""

    name: str
    place: Path
    gpus: int
    cpu: int
    used_gpus: int = 0
    used_cpu: int = 0
    model: str = ""
    usable: bool = True


@dataclass(frozen=True)
class Want:
    """A gang of members that ask for the same."""

    members: int
    gpus: int
    cpu: int = 0
    required: bool = True
    mixed: bool = False
    gang: bool = True
    max_nodes: int = 0
    max_gpus: int = 0


@dataclass(frozen=True)
class Rule:
    depth: int
    leaves: int


@dataclass(frozen=True)
class Option:
    """A set of leaves that holds the gang. ``rank`` the order of preference before the score, lowest first."""

    rank: tuple[int, int, int, int]
    leaves: tuple[Path, ...]
    model: str | None


@dataclass
class Reference:
    machines: Sequence[Machine]
    want: Want
    leaves: list[Path] = field(init=False)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        self.leaves = sorted({machine.place for machine in self.machines}, key=self._order)
        self.depth = len(self.leaves[0]) if self.leaves else 1

    @staticmethod
    def _order(path: Path) -> tuple[tuple[bool, str], ...]:
        return tuple((name == UNLABELLED, name) for name in path)

    # ------------------------------------------------------------ what fits

    def on_machine(self, machine: Machine, *, empty: bool = False) -> int:
        """How many members fit on a node."""
        want, fit = self.want, 10**6
        for asked, has, used in (
            (want.gpus, machine.gpus, machine.used_gpus),
            (want.cpu, machine.cpu, machine.used_cpu),
        ):
            if asked:
                fit = min(fit, max(0, has - (0 if empty else used)) // asked)
        return fit if machine.usable else 0

    def in_leaf(self, leaf: Path, model: str | None, *, empty: bool = False) -> int:
        """How many members a leaf holds on nodes of one model (None: any), within the limits."""
        want = self.want
        fits = sorted(
            (
                self.on_machine(machine, empty=empty)
                for machine in self.machines
                if machine.place == leaf and (model is None or machine.model == model)
            ),
            reverse=True,
        )
        if want.gang and want.max_nodes:
            fits = fits[: want.max_nodes]
        total = sum(fits)
        if want.gang and want.max_gpus and want.gpus:
            total = min(total, want.max_gpus // want.gpus)
        return total

    def models(self) -> list[str | None]:
        """The models the gang may keep to; None when it need not."""
        if self.want.mixed or not self.want.gpus or not self.want.gang:
            return [None]
        return list({machine.model for machine in self.machines if machine.usable})

    def domains(self, depth: int, *, labelled: bool) -> Iterator[list[Path]]:
        """The leaves of each domain at a depth; only those with a full path where ``labelled``."""
        for domain in sorted({leaf[:depth] for leaf in self.leaves}, key=self._order):
            inside = [leaf for leaf in self.leaves if leaf[:depth] == domain]
            yield [leaf for leaf in inside if not labelled or UNLABELLED not in leaf]

    def _fewest(self, fits: Mapping[Path, int], depth: int, *, labelled: bool) -> int:
        """The fewest leaves of one domain at a depth that hold the gang, 0 when none do."""
        for count in range(1, len(self.leaves) + 1):
            for inside in self.domains(depth, labelled=labelled):
                if any(
                    sum(fits[leaf] for leaf in leaf_set) >= self.want.members
                    for leaf_set in combinations(inside, count)
                ):
                    return count
        return 0

    def _lowest(self, fits: Mapping[Path, int], *, labelled: bool) -> Rule | None:
        """The lowest level of which one domain holds the gang, and in how few leaves."""
        for depth in range(self.depth - 1, -1, -1):
            if fewest := self._fewest(fits, depth, labelled=labelled):
                return Rule(depth, fewest)
        return None

    def rule(self) -> Rule | None:
        """What the size rule asks, None when the gang is larger than the cluster."""
        candidates = []
        for model in self.models():
            empty = {leaf: self.in_leaf(leaf, model, empty=True) for leaf in self.leaves}
            for labelled in (True, False):
                rule = self._lowest(empty, labelled=labelled)
                if rule is not None:
                    candidates.append((not labelled, -rule.depth, rule.leaves))
                    break
        if not candidates:
            return None
        _, depth, leaves = min(candidates)
        return Rule(-depth, leaves)

    # ------------------------------------------------------------ what may be chosen

    def options(self) -> list[Option]:
        """Every set of leaves the gang may take now, with how much it is preferred."""
        rule = self.rule()
        if rule is None:
            return []
        options = []
        for model in self.models():
            now = {leaf: self.in_leaf(leaf, model) for leaf in self.leaves}
            for labelled in (True, False):
                fitting = self._options(now, rule, labelled=labelled, model=model)
                if not fitting and not self.want.required:
                    beyond = self._lowest(now, labelled=labelled)
                    fitting = self._options(now, beyond, labelled=labelled, model=model) if beyond else []
                options += fitting
                if fitting:
                    break
        return options

    def _options(self, fits: Mapping[Path, int], rule: Rule, *, labelled: bool, model: str | None) -> list[Option]:
        place = {leaf: at for at, leaf in enumerate(self.leaves)}
        return [
            Option(
                (not labelled, -rule.depth, len(leaf_set), place[leaf_set[-1]] - place[leaf_set[0]]), leaf_set, model
            )
            for inside in self.domains(rule.depth, labelled=labelled)
            for count in range(1, rule.leaves + 1)
            for leaf_set in combinations(inside, count)
            if sum(fits[leaf] for leaf in leaf_set) >= self.want.members
        ]

    def best(self) -> list[Option]:
        """The options between which only the score decides."""
        options = self.options()
        rank = min((option.rank for option in options), default=None)
        return [option for option in options if option.rank == rank]

    def fewest_nodes(self, leaf: Path, model: str | None) -> int:
        """The fewest nodes of a leaf that hold the gang."""
        fits = [
            self.on_machine(machine)
            for machine in self.machines
            if machine.place == leaf and (model is None or machine.model == model)
        ]
        for count in range(1, len(fits) + 1):
            if sum(sorted(fits, reverse=True)[:count]) >= self.want.members:
                return count
        return 0
