"""Who may post to a full URL, and who is next."""

import random
from collections.abc import Callable

import pytest

from server.webhook.slots import BEGINS, GRANT_S, Lane, Slots, Speed

CAPACITY, EACH = 400, 10


class Planned:
    """A call that the loop makes at its time."""

    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s = at_s
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """Lanes of one bound, and a loop with a clock."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.now_s = 0.0
        self.planned: list[Planned] = []
        self.slots = Slots(capacity, EACH, self._later)
        self.woken: list[Lane] = []
        self.idle: list[Lane] = []
        """Those that have nothing to post."""

    def _later(self, delay_s: float, call: Callable[[], None]) -> Planned:
        self.planned.append(Planned(self.now_s + delay_s, call))
        return self.planned[-1]

    def turn(self) -> None:
        """A turn of the loop."""
        due = [one for one in self.planned if one.at_s <= self.now_s]
        self.planned = [one for one in self.planned if one.at_s > self.now_s]
        for one in due:
            if not one.is_cancelled:
                one.call()

    def lane(self, owner: str = "", speed: Speed = Speed.UNKNOWN) -> Lane:
        made = Lane(owner, lambda: self._wake(made))
        made.speed = speed
        return made

    def _wake(self, lane: Lane) -> bool:
        self.woken.append(lane)
        return lane not in self.idle

    def fill(self, lane: Lane) -> list[Speed]:
        """Begin as much as there is room for."""
        taken = []
        while self.slots.has_room(lane):
            taken.append(self.slots.take(lane))
            self.turn()
        return taken

    def lanes(self, count: int, owner: str = "", speed: Speed = Speed.UNKNOWN) -> list[Lane]:
        return [self.lane(owner, speed) for _ in range(count)]


def post(world: World, lane: Lane, took_ms: float) -> None:
    assert world.slots.has_room(lane)
    world.slots.give(lane, world.slots.take(lane), took_ms)


def test_an_origin_that_has_not_answered_has_one_and_its_bound_when_it_has() -> None:
    world = World()
    lane = world.lane()
    assert len(world.fill(lane)) == 1
    world.slots.give(lane, Speed.UNKNOWN, 20.0)
    assert lane.speed is Speed.QUICK
    assert len(world.fill(lane)) == EACH


def test_one_that_hangs_is_slow_and_one_that_fails_at_once_is_not() -> None:
    world = World()
    hangs, fails = world.lane(), world.lane()
    post(world, hangs, 15_000.0)
    post(world, fails, 1.0)
    assert (hangs.speed, fails.speed) == (Speed.SLOW, Speed.QUICK)


def test_however_many_hang_a_new_origin_and_a_quick_one_find_room() -> None:
    world = World()
    quick = world.lane(speed=Speed.QUICK)
    taken = [world.fill(lane) for lane in world.lanes(2_000, speed=Speed.SLOW)]
    assert sum(map(len, taken)) <= CAPACITY // 2
    assert len(world.fill(world.lane())) == 1
    assert len(world.fill(quick)) == EACH


def test_so_many_begin_in_a_turn_and_the_others_in_the_next() -> None:
    world = World()
    begun = [
        lane
        for lane in world.lanes(BEGINS + 2)
        if world.slots.has_room(lane) and world.slots.take(lane) is not None
    ]
    assert len(begun) == BEGINS
    assert not world.woken
    world.turn()
    assert len(world.woken) == 2
    assert all(world.slots.has_room(lane) for lane in world.woken)


def test_200_that_are_asked_for_the_first_time_leave_room_for_one_more() -> None:
    world = World()
    assert all(world.fill(lane) for lane in world.lanes(200))
    assert world.fill(world.lane())


def test_a_key_with_any_number_of_origins_leaves_room_for_another_key() -> None:
    for speed in Speed:
        world = World()
        for lane in world.lanes(2_000, "a", speed):
            world.fill(lane)
        for theirs in Speed:
            assert world.fill(world.lane("b", theirs)), (speed, theirs)


def test_who_waits_is_served_in_turn_by_key_and_nobody_overtakes() -> None:
    world = World(capacity=8)
    hung = [lane for lane in world.lanes(8, "a") if world.fill(lane)]
    waiting = [*world.lanes(3, "a"), *world.lanes(2, "b"), *world.lanes(1, "c")]
    taken = {id(lane) for lane in waiting if world.fill(lane)}
    waiting = [lane for lane in waiting if id(lane) not in taken]
    assert [lane.owner for lane in waiting] == ["a", "a", "a", "b", "c"]
    for lane in hung:
        world.slots.give(lane, Speed.UNKNOWN, 5_000.0)
    served = [lane for lane in world.woken if lane not in hung]
    assert [lane.owner for lane in served] == ["b", "c", "a", "a", "a"]  # of a there are enough
    late = world.lane("a")
    assert all(len(world.fill(lane)) == 1 for lane in served)
    assert not world.fill(late) or sum(world.slots._open) <= 6


def test_what_is_granted_and_not_used_goes_to_the_next() -> None:
    world = World(capacity=4)
    hung = [lane for lane in world.lanes(4, speed=Speed.SLOW) if world.fill(lane)]
    world.turn()
    first, second = world.lanes(2, speed=Speed.SLOW)
    for lane in world.lanes(4, speed=Speed.SLOW):
        world.slots.remove(lane)
    waiting = [one for one in (first, second) if not world.slots.has_room(one)]
    assert waiting == [first, second]
    for lane in [lane for lane in world.woken if lane not in (first, second)]:
        world.slots.remove(lane)
    world.slots.give(hung[0], Speed.SLOW, 5_000.0)
    while first.granted is None:
        world.now_s += GRANT_S
        world.turn()
    assert not world.slots.has_room(second)
    world.now_s += GRANT_S
    world.turn()
    assert first.granted is None
    assert second.granted is Speed.SLOW
    post(world, second, 5_000.0)


def test_of_unknown_ones_the_newest_and_the_oldest_are_served_by_turns() -> None:
    world = World(capacity=40)
    lanes = world.lanes(60)
    hung = [lane for lane in lanes if world.fill(lane)]
    waiting = [lane for lane in lanes if lane.is_waiting]
    for lane in hung:
        world.slots.give(lane, Speed.UNKNOWN, 5_000.0)
    served = [waiting.index(lane) for lane in world.woken if lane in waiting]
    last = len(waiting) - 1
    assert served[:4] == [last, 0, last - 1, 1]


def test_one_with_nothing_to_post_takes_none() -> None:
    world = World(capacity=4)
    lanes = world.lanes(6)
    hung = [lane for lane in lanes if world.fill(lane)]
    waiting = [lane for lane in lanes if lane.is_waiting]
    world.idle = waiting[:1]
    for lane in hung:
        world.slots.give(lane, Speed.UNKNOWN, 5_000.0)
    assert [lane.granted is None for lane in waiting[:2]] == [True, False]


def test_one_that_is_closed_is_not_served_and_gives_back_what_it_had() -> None:
    world = World(capacity=4)
    lanes = world.lanes(6)
    hung = [lane for lane in lanes if world.fill(lane)]
    waiting = [lane for lane in lanes if lane.is_waiting]
    for lane in waiting:
        world.slots.remove(lane)
    for lane in hung:
        world.slots.give(lane, Speed.UNKNOWN, 10.0)
        world.slots.remove(lane)
    assert not set(world.woken) & set(waiting)
    assert sum(world.slots._open) == 0


def test_of_two_keys_each_has_its_oldest_served_too() -> None:
    """Though the queues of both, and of quick lanes, are served between one another."""
    world = World(capacity=40)
    lanes = [world.lane(owner) for _ in range(60) for owner in ("one", "two")]
    hung = [lane for lane in lanes if world.fill(lane)]
    waiting = [[one for one in lanes if one.is_waiting and one.owner == owner] for owner in ("one", "two")]
    for lane in hung[:16]:
        world.slots.give(lane, Speed.UNKNOWN, 5_000.0)
        world.turn()
    for own in waiting:
        served = [own.index(lane) for lane in world.woken if lane in own]
        assert served[:4] == [len(own) - 1, 0, len(own) - 2, 1]


def test_an_end_looks_at_few_queues_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    lanes = [world.lane(f"key-{number}", Speed.QUICK) for number in range(2_000)]
    open_ = [(lane, speed) for lane in lanes for speed in world.fill(lane)]
    assert sum(world.slots._open) == CAPACITY
    looks = list[str]()
    free = Slots._free

    def counted(slots: Slots, speed: Speed, owner: str) -> int:
        looks.append(owner)
        return free(slots, speed, owner)

    monkeypatch.setattr(Slots, "_free", counted)
    world.slots.give(open_[0][0], open_[0][1], 1.0)
    assert sum(world.slots._open) == CAPACITY
    assert len(looks) <= 5


@pytest.mark.parametrize("seed", range(8))
def test_none_waits_that_there_is_room_for(seed: int) -> None:
    """However lanes begin, end, close and leave what they were granted."""
    dice = random.Random(seed)
    world = World(capacity=24)
    lanes = [world.lane(dice.choice("abc"), dice.choice(list(Speed))) for _ in range(60)]
    posts: list[tuple[Lane, Speed]] = []
    for _ in range(2_000):
        lane = dice.choice(lanes)
        match dice.choice(("begin", "begin", "end", "turn", "wait", "close")):
            case "begin" if world.slots.has_room(lane):
                posts.append((lane, world.slots.take(lane)))
            case "end" if posts:
                lane, speed = posts.pop(dice.randrange(len(posts)))
                world.slots.give(lane, speed, dice.choice((1.0, 5_000.0)))
            case "wait":
                world.now_s += dice.choice((0.1, GRANT_S))
            case "close" if not lane.open:
                world.slots.remove(lane)
            case _:
                world.turn()
        free = [speed for speed in Speed if world.slots._next(speed) is not None]
        assert not free or world.slots._begun >= BEGINS, seed
