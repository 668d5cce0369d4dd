"""The queue: each workload in one place, the most urgent first, nothing polled."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topo_scheduler.scheduling.queueing.fair_queue import Order
from topo_scheduler.scheduling.queueing.queue import Place, Queue

ids = st.sampled_from("abcde")


class Line(RuleBasedStateMachine):
    """Against a plain list of the place of each workload."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.now = 0.0
        self.places: dict[str, tuple[Place, float | None, Order]] = {}

    def order(self, id_: str, priority: int = 0) -> Order:
        return Order(priority, float(ord(id_) % 3), id_)

    def release(self) -> None:
        for id_, (_, until, order) in list(self.places.items()):
            if until is not None and until <= self.now:
                self.places[id_] = (Place.ACTIVE, None, order)

    @rule(id_=ids, priority=st.integers(0, 2))
    def activate(self, id_: str, priority: int) -> None:
        order = self.order(id_, priority)
        self.queue.activate(order)
        self.places[id_] = (Place.ACTIVE, None, order)

    @rule(id_=ids, wait=st.integers(0, 5))
    def back_off(self, id_: str, wait: int) -> None:
        self.queue.back_off(self.order(id_), self.now + wait)
        self.places[id_] = (Place.BACKOFF, self.now + wait, self.order(id_))

    @rule(id_=ids, wait=st.one_of(st.none(), st.integers(0, 5)))
    def wait(self, id_: str, wait: int | None) -> None:
        until = None if wait is None else self.now + wait
        self.queue.wait(self.order(id_), until)
        self.places[id_] = (Place.WAITING, until, self.order(id_))

    @rule(id_=ids)
    def park(self, id_: str) -> None:
        self.queue.mark_unschedulable(self.order(id_))
        self.places[id_] = (Place.UNSCHEDULABLE, None, self.order(id_))

    @rule(id_=ids)
    def remove(self, id_: str) -> None:
        self.queue.remove(id_)
        self.places.pop(id_, None)

    @rule(seconds=st.integers(0, 6))
    def pop(self, seconds: int) -> None:
        self.now += seconds
        self.release()
        active = [order for place, _, order in self.places.values() if place is Place.ACTIVE]
        expected = min(active, key=lambda order: (-order.priority, order.created, order.id), default=None)
        popped = self.queue.pop(self.now)
        assert popped == (expected.id if expected else None)
        if expected:
            del self.places[expected.id]

    @invariant()
    def everybody_is_in_one_place(self) -> None:
        assert len(self.queue) == len(self.places)
        for id_ in "abcde":
            known = self.places.get(id_)
            assert self.queue.place(id_) == (known[0] if known else None)
            assert self.queue.until(id_) == (known[1] if known else None)
        assert set(self.queue.unschedulable()) == {
            id_ for id_, (place, _, _) in self.places.items() if place is Place.UNSCHEDULABLE
        }

    @invariant()
    def the_next_due_is_the_earliest(self) -> None:
        due = [until for _, until, _ in self.places.values() if until is not None]
        assert self.queue.next_due() == min(due, default=None)

    @invariant()
    def there_is_something_to_do_when_anything_is_active(self) -> None:
        if any(place is Place.ACTIVE for place, _, _ in self.places.values()):
            assert self.queue.has_active


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_unschedulable_workloads_that_are_woken_have_their_turns_in_order() -> None:
    queue = Queue()
    orders = {
        order.id: order
        for order in (Order(1, 5, "late"), Order(1, 2, "early"), Order(9, 9, "urgent"), Order(1, 2, "alike"))
    }
    for order in orders.values():
        queue.mark_unschedulable(order)
    assert sorted(queue.unschedulable()) == ["alike", "early", "late", "urgent"]
    for id_ in queue.unschedulable():
        queue.activate(orders[id_])
    assert [queue.pop(0) for _ in range(5)] == ["urgent", "alike", "early", "late", None]


def test_gangs_that_wait_for_ever_leave_nothing_behind() -> None:
    queue = Queue()
    for number in range(100):
        queue.wait(Order(0, 0, str(number)), None)
        queue.remove(str(number))
    assert queue.next_due() is None
    assert not queue._due
