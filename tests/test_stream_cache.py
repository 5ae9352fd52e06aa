"""The expert cache's books against a slow model of them: loads, segments, victims and counters are equal, in whatever
order reads come in."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from glm52_rt import ArgumentError
from glm52_rt.native import POLICIES, NativeCache
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

Id = tuple[int, int]
NO_CLASS = 255
HEAT_MAX = 2**32 - 1


@dataclass
class Known:
    """What is known of an expert."""

    use: int = 0
    heat: int = 0
    tick: int = 0


@dataclass
class Model:
    """The rules of the cache, written for reading: every choice scans everything."""

    class_of: list[int]
    experts: int
    slots: list[int]
    policy: str
    pins: list[Id]
    known: dict[Id, Known] = field(default_factory=dict)
    there: set[Id] = field(default_factory=set)  # in a slot, loaded or not
    loading: set[Id] = field(default_factory=set)
    leased: set[Id] = field(default_factory=set)
    held: set[Id] = field(default_factory=set)
    pinned: set[Id] = field(default_factory=set)
    use: int = 0
    tick: int = 0
    tokens: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    routes: int = 0
    segments: int = 0
    stolen: int = 0
    preloaded: int = 0
    ahead_count: int = 0
    ahead_used: int = 0
    unasked: set[Id] = field(default_factory=set)  # loaded ahead, not selected since
    repins: int = 0
    layer: int = -1
    left: list[list[int]] = field(default_factory=list)  # segments not yet given up
    reserved: int = 0  # of them
    counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pinned = set(self.pins)
        self.known = {(lr, e): Known() for lr in range(len(self.class_of)) for e in range(self.experts)}

    def of_class(self, ids: set[Id], size: int) -> set[Id]:
        return {i for i in ids if self.class_of[i[0]] == size}

    def dynamic(self, size: int) -> int:
        return self.slots[size] - len(self.of_class(self.pinned, size))

    def lfru(self, i: Id) -> int:
        return self.known[i].heat * 256 + max(0, 255 - (self.tick - self.known[i].tick))

    def rank(self, i: Id) -> tuple[int, int]:
        known = self.known[i]
        first = {"lru": known.use, "hotness": known.heat, "lfru": self.lfru(i)}[self.policy]
        return first, known.use

    def touch(self, i: Id, routes: int) -> None:
        self.use += 1
        known = self.known[i]
        known.use, known.tick, known.heat = self.use, self.tick, min(HEAT_MAX, known.heat + routes)

    def make_room(self, size: int) -> None:
        """A slot that is not pinned, for one more expert."""
        taken = self.of_class(self.there - self.pinned, size)
        if len(taken) < self.dynamic(size):
            return
        idle = taken - self.loading - self.leased - self.held
        if idle:
            victim = min(idle, key=self.rank)
        else:
            victim = max(self.held)
            self.held.discard(victim)
            self.stolen += 1
        self.there.discard(victim)
        self.unasked.discard(victim)
        self.evictions += 1

    def reserve(self, segment: list[int]) -> list[Id]:
        ids = [(self.layer, e) for e in segment]
        missing = [i for i in ids if i not in self.there]
        for i in ids:
            if i not in missing:
                self.ahead_used += i in self.unasked
                self.unasked.discard(i)
                self.held.discard(i)
                self.leased.add(i)
                self.hits += 1
                self.touch(i, self.counts[i[1]])
        for i in missing:
            if i not in self.pinned:
                self.make_room(self.class_of[self.layer])
            self.there.add(i)
            self.loading.add(i)
            self.leased.add(i)
            self.misses += 1
            self.touch(i, self.counts[i[1]])
        return missing

    def reserve_ahead(self) -> list[Id]:
        loads: list[Id] = []
        while self.reserved < min(len(self.left), 2 if self.ahead else 1):
            loads += self.reserve(self.left[self.reserved])
            self.reserved += 1
        return loads

    def begin(self, layer: int, ids: list[int]) -> list[Id]:
        self.layer = layer
        self.counts = {e: ids.count(e) for e in ids}
        self.routes += len(ids)
        union = sorted(self.counts)
        dynamic = self.dynamic(self.class_of[layer])
        free = [e for e in union if (layer, e) not in self.pinned]
        fits = len(free) <= dynamic
        self.ahead = not fits and dynamic > 1
        part = max(len(free), 1) if fits else max(1, dynamic // 2)
        self.left, taken = [[]], 0
        for e in union:
            is_free = (layer, e) not in self.pinned
            if is_free and taken == part:
                self.left.append([])
                taken = 0
            self.left[-1].append(e)
            taken += is_free
        self.reserved = 0
        self.segments += 1
        if not fits:
            self.held = {(layer, e) for e in free if (layer, e) in self.there}
        return self.reserve_ahead()

    def advance(self) -> list[Id]:
        for e in self.left.pop(0):
            self.leased.discard((self.layer, e))
        self.reserved -= 1
        if not self.left:
            self.layer = -1
            return []
        self.segments += 1
        return self.reserve_ahead()

    def load_ahead(self, i: Id) -> bool:
        size = self.class_of[i[0]]
        taken = self.of_class(self.there - self.pinned, size)
        idle = taken - self.loading - self.leased - self.held
        wholly_reserved = self.reserved == len(self.left)
        if i in self.there or i in self.pinned or not wholly_reserved or not (len(taken) < self.dynamic(size) or idle):
            return False
        self.make_room(size)
        self.there.add(i)
        self.loading.add(i)
        self.unasked.add(i)
        self.touch(i, 0)
        self.ahead_count += 1
        return True

    def has_room(self, layer: int, ids: list[int]) -> bool:
        """The caller's part: what is loaded ahead and not settled may not make a selection's slots too few."""
        size = self.class_of[layer]
        ahead = self.of_class(self.loading, size)
        return not ahead or len(set(ids)) + len(ahead) <= self.dynamic(size)

    def abort(self) -> None:
        self.unasked -= self.loading
        self.there -= self.loading
        self.loading, self.leased, self.held = set(), set(), set()
        self.left, self.reserved, self.layer = [], 0, -1

    def preload(self, i: Id, heat: int) -> bool:
        size = self.class_of[i[0]]
        room = i in self.pinned or len(self.of_class(self.there - self.pinned, size)) < self.dynamic(size)
        if i in self.there or not room:
            return False
        self.there.add(i)
        self.touch(i, heat)
        self.preloaded += 1
        return True

    def halve(self) -> None:
        for known in self.known.values():
            known.heat >>= 1

    def age(self, rows: int) -> None:
        self.tick += 1
        if self.policy == "hotness":
            self.tokens += min(rows, 16)
            if self.tokens >= 16:
                self.tokens -= 16
                self.halve()

    def turn(self, repin: bool) -> None:
        for _ in range(4 if repin else 0):
            gains = []
            for size in range(len(self.slots)):
                cold = min(self.of_class(self.pinned, size), key=lambda i: (self.lfru(i), i), default=None)
                others = self.of_class({i for i in self.known if self.class_of[i[0]] != NO_CLASS}, size) - self.pinned
                hot = max(others, key=lambda i: (self.lfru(i), (-i[0], -i[1])), default=None)
                if cold is None or hot is None:
                    continue
                low, high = self.lfru(cold), self.lfru(hot)
                if high > low + low // 4 + 1024 and (high - low) // 256 > 0:
                    gains.append(((high - low) // 256, -size, cold, hot))
            if not gains:
                break
            _, _, cold, hot = max(gains, key=lambda g: g[:2])
            self.repins += 1
            self.pinned.discard(cold)
            self.pinned.add(hot)
            if hot not in self.there:
                self.there.discard(cold)
        if self.policy == "lfru":
            self.halve()


class CacheMachine(RuleBasedStateMachine):
    """One cache and its model, driven together."""

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.experts = data.draw(st.integers(2, 8), label="experts")
        classes = data.draw(st.integers(1, 2), label="classes")
        layers = data.draw(st.integers(classes, 4), label="layers")
        class_of = [i if i < classes else data.draw(st.integers(0, classes - 1)) for i in range(layers)]
        class_of.insert(0, NO_CLASS)
        slots = [data.draw(st.integers(1, class_of.count(c) * self.experts), label="slots") for c in range(classes)]
        policy = data.draw(st.sampled_from(POLICIES), label="policy")
        pins = self.draw_pins(data, class_of, slots)
        self.cache = NativeCache(class_of, self.experts, slots, policy, pins)
        self.model = Model(class_of, self.experts, slots, policy, pins)
        self.layers = [i for i, c in enumerate(class_of) if c != NO_CLASS]
        self.waiting: list[tuple[int, int, int, int]] = []

    def draw_pins(self, data: st.DataObject, class_of: list[int], slots: list[int]) -> list[Id]:
        every = [(i, e) for i, c in enumerate(class_of) if c != NO_CLASS for e in range(self.experts)]
        wanted = data.draw(st.lists(st.sampled_from(every), unique=True, max_size=6), label="pins")
        left, pins = [n - 1 for n in slots], []
        for pin in wanted:
            if left[class_of[pin[0]]] > 0:
                left[class_of[pin[0]]] -= 1
                pins.append(pin)
        return pins

    def expect(self, loads: list[tuple[int, int, int, int]], wanted: list[Id]) -> None:
        assert [(layer, expert) for layer, expert, _, _ in loads] == wanted
        self.waiting += loads

    @precondition(lambda self: not self.model.left)
    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        layer = data.draw(st.sampled_from(self.layers), label="layer")
        ids = data.draw(st.lists(st.integers(0, self.experts - 1), min_size=1, max_size=12), label="ids")
        if not self.model.has_room(layer, ids):
            self.settle()
        self.expect(self.cache.begin(layer, ids), self.model.begin(layer, ids))

    def settle(self) -> None:
        for _, _, slot, generation in self.waiting:
            self.cache.loaded(slot, generation)
        self.waiting = []
        self.model.loading = set()

    @rule(data=st.data())
    def load_ahead(self, data: st.DataObject) -> None:
        i = (data.draw(st.sampled_from(self.layers)), data.draw(st.integers(0, self.experts - 1)))
        load = self.cache.ahead(*i)
        assert (load is not None) == self.model.load_ahead(i)
        if load is not None:
            self.waiting.append(load)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def one_read_fails(self, data: st.DataObject) -> None:
        """One that no selection wants: else the selection fails."""
        layer, expert, slot, generation = self.waiting[data.draw(st.integers(0, len(self.waiting) - 1))]
        self.cache.dropped(slot, generation + 1)  # of another read: nothing
        self.cache.dropped(slot, generation)
        if (layer, expert) in self.model.unasked:
            self.model.unasked.discard((layer, expert))
            self.model.loading.discard((layer, expert))
            self.model.there.discard((layer, expert))
            self.waiting.remove((layer, expert, slot, generation))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def one_read_is_done(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.waiting) - 1))
        layer, expert, slot, generation = self.waiting.pop(at)
        self.cache.loaded(slot, generation + 1)  # news of another read changes nothing
        self.cache.loaded(slot, generation)
        self.model.loading.discard((layer, expert))

    @precondition(lambda self: self.model.left)
    @rule()
    def advance(self) -> None:
        segment = {(self.model.layer, e) for e in self.model.left[0]}
        if segment & self.model.loading:
            with pytest.raises(ArgumentError, match="not loaded"):
                self.cache.advance()
            for layer, expert, slot, generation in [w for w in self.waiting if w[:2] in segment]:
                self.cache.loaded(slot, generation)
                self.waiting.remove((layer, expert, slot, generation))
            self.model.loading -= segment
        self.expect(self.cache.advance(), self.model.advance())

    @precondition(lambda self: self.model.left)
    @rule()
    def fail(self) -> None:
        self.cache.abort()
        self.model.abort()
        stale = self.cache.stats()["stale"]
        for _, _, slot, generation in self.waiting:
            self.cache.loaded(slot, generation)
        assert self.cache.stats()["stale"] == stale + len(self.waiting)
        self.waiting = []

    @precondition(lambda self: not self.model.left)
    @rule(data=st.data())
    def preload(self, data: st.DataObject) -> None:
        i = (data.draw(st.sampled_from(self.layers)), data.draw(st.integers(0, self.experts - 1)))
        heat = data.draw(st.integers(0, 5))
        load = self.cache.preload(*i, heat)
        assert (load is not None) == self.model.preload(i, heat)
        if load is not None:
            self.cache.loaded(load[2], load[3])

    @rule(rows=st.sampled_from([1, 1, 1, 2, 15, 16, 300]))
    def tick(self, rows: int) -> None:
        self.cache.tick(rows)
        self.model.age(rows)

    @precondition(lambda self: not self.model.left)
    @rule(repin=st.booleans())
    def turn(self, repin: bool) -> None:
        self.settle()
        self.cache.turn(repin)
        self.model.turn(repin)

    @invariant()
    def books_are_equal(self) -> None:
        if not hasattr(self, "cache"):
            return
        stats, model = self.cache.stats(), self.model
        for name in ("hits", "misses", "evictions", "routes", "segments", "stolen", "preloaded", "repins"):
            assert stats[name] == getattr(model, name), name
        assert stats["ahead_used"] == model.ahead_used
        assert stats["ahead"] == model.ahead_count
        assert stats["resident"] == len(model.there - model.loading)
        found = {(lr, e): self.cache.find(lr, e) for lr in self.layers for e in range(self.experts)}
        assert {i for i, slot in found.items() if slot >= 0} == model.there
        assert len({slot for slot in found.values() if slot >= 0}) == len(model.there)  # nobody shares one
        segment = model.left[0] if model.left else []
        assert self.cache.segment() == [(e, found[model.layer, e]) for e in segment]


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_order_of_reads_changes_nothing(policy: str, data: st.DataObject) -> None:
    """Two caches get the same selections; one's reads are done in order, the other's in any order."""
    seed = data.draw(st.randoms(use_true_random=False))
    note(f"seed {seed!r}")
    caches = [NativeCache([0, 0], 16, [6], policy, [(0, 3)]) for _ in range(2)]
    for _ in range(12):
        layer, ids = seed.randrange(2), [seed.randrange(16) for _ in range(seed.randrange(1, 20))]
        loads = [cache.begin(layer, ids) for cache in caches]
        assert loads[0] == loads[1]
        open_loads = list(loads[0])
        while True:
            experts = [cache.segment() for cache in caches]
            assert experts[0] == experts[1]
            if not experts[0]:
                break
            for _, _, slot, generation in open_loads:
                caches[0].loaded(slot, generation)
            seed.shuffle(open_loads)
            for _, _, slot, generation in open_loads:
                caches[1].loaded(slot, generation)
            open_loads = caches[0].advance()
            assert open_loads == caches[1].advance()
        for cache in caches:
            cache.tick(len(ids))
    assert caches[0].stats() == caches[1].stats()


def test_nothing_selected_goes_while_anything_else_can() -> None:
    cache = NativeCache([0], 8, [6])
    cache.select(0, [0, 1, 2, 3, 4, 5])
    cache.begin(0, [0, 6])  # 0 is the oldest, but wanted: 1 goes
    assert cache.find(0, 0) >= 0
    assert cache.find(0, 1) == -1
    assert cache.stats()["stolen"] == 0


def choose(cache: NativeCache, expert: int, times: int) -> None:
    for _ in range(times):
        cache.select(0, [expert])


@pytest.mark.parametrize(
    ("policy", "age", "goes"),
    [
        ("hotness", lambda cache: cache.tick(15), 1),  # 3 choices against 2
        ("hotness", lambda cache: cache.tick(16), 0),  # 1 against 2: heat is halved every 16 tokens
        ("hotness", lambda cache: [cache.tick(1) for _ in range(16)], 0),
        ("hotness", lambda cache: cache.turn(False), 1),
        ("lfru", lambda cache: cache.turn(False), 0),  # 1 against 2: heat is halved every turn
        ("lfru", lambda cache: cache.tick(16), 1),
        ("lru", lambda cache: cache.tick(16), 0),
    ],
)
def test_what_was_hot_cools_down(policy: str, age: Callable[[NativeCache], None], goes: int) -> None:
    cache = NativeCache([0], 4, [2], policy)
    choose(cache, 0, 3)
    age(cache)
    choose(cache, 1, 2)
    cache.select(0, [2])
    assert cache.find(0, goes) == -1 and cache.find(0, 1 - goes) >= 0


def test_a_wide_batch_is_one_step_of_cooling() -> None:
    cache = NativeCache([0], 4, [2], "hotness")
    choose(cache, 0, 8)
    cache.tick(300)  # 8 becomes 4, not 0
    choose(cache, 1, 3)
    cache.select(0, [2])
    assert cache.find(0, 1) == -1


def test_lfru_prefers_the_recent_among_the_equally_hot() -> None:
    cache = NativeCache([0], 4, [2], "lfru")
    choose(cache, 0, 1)
    cache.tick(1)
    choose(cache, 1, 1)
    cache.tick(1)
    cache.select(0, [2])
    assert cache.find(0, 0) == -1


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (([0], 4, [0]), "slots"),
        (([1], 4, [3]), "class 1"),
        (([0], 4, [2], "lru", [(0, 1), (0, 1)]), "twice"),
        (([0], 4, [2], "lru", [(0, 1), (0, 2)]), "free"),
        (([0], 4, [2], "lru", [(1, 1)]), "there is none"),
        (([0], 4, [2], "lru", [(0, 4)]), "there is none"),
    ],
)
def test_refuses(args: tuple, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        NativeCache(*args)


def test_refuses_calls_out_of_turn() -> None:
    cache = NativeCache([0, NO_CLASS], 4, [2])
    for layer, ids in ((1, [0]), (2, [0]), (0, [4]), (0, [-1]), (0, [])):
        with pytest.raises(ArgumentError):
            cache.begin(layer, ids)
    with pytest.raises(ArgumentError, match="no selection"):
        cache.advance()
    cache.begin(0, [1])
    with pytest.raises(ArgumentError, match="under way"):
        cache.begin(0, [2])
    with pytest.raises(ArgumentError, match="no slot"):
        cache.loaded(2, 0)
