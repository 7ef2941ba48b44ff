"""The runtime of a coordinator: what is written, when it is told, and to whom."""

from __future__ import annotations

import pytest

from tests.coordinator.runtime_world import Question, Told, World, get, park, put, release, tell
from tidelog.coordinator.outcome import Answer, CoordinatorRecord, Now, Outcome, answered
from tidelog.coordinator.runtime_ports import HARMLESS, told
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E


def test_records_are_replayed_at_once_and_told_when_they_are_committed() -> None:
    world = World()
    question = world.ask(put(("a", 1), ("b", 2)))
    assert world.shard.numbers == {"a": 1, "b": 2}
    assert len(world.log.batches) == 1
    assert question.answers == []
    world.journal.commit()
    assert question.answer == "written"


def test_what_could_be_lost_is_told_to_nobody() -> None:
    world = World()
    write = world.ask(put(("a", 1)))
    read = world.ask(get("a"))
    assert (write.answers, read.answers) == ([], [])
    world.journal.commit()
    assert (write.answer, read.answer) == ("written", 1)
    assert world.ask(get("a")).answer == 1  # nothing is under way: at once


def test_answers_leave_in_the_order_in_which_they_were_made() -> None:
    world = World()
    questions = [
        world.ask(handler)
        for handler in (put(("a", 1)), get("a"), put(("a", 2)), get("a"), get("b"), put(("b", 1)))
    ]
    world.journal.commit(up_to=1)
    assert world.given == questions[:2]
    world.journal.commit(up_to=2)
    assert world.given == questions[:5]
    world.journal.commit()
    assert world.given == questions


def test_a_commit_covers_all_before_it() -> None:
    world = World()
    first, second = world.ask(put(("a", 1))), world.ask(put(("a", 2)))
    world.log.high_watermark = 2
    world.journal.waiting.pop()[1](E.NONE)
    assert world.given == [first, second]


def test_answers_may_come_with_the_outcome_of_somebody_else() -> None:
    world = World()
    waiting = [world.ask(park), world.ask(park)]
    last = world.ask(release(("generation", 1)))
    world.journal.commit()
    assert world.given == [*waiting, last]
    assert [question.answer for question in world.given] == ["released"] * 3


def test_who_has_an_answer_gets_no_second_one() -> None:
    world = World()
    twice = world.ask(
        lambda shard, waiter, now: Outcome(answers=[Answer(waiter, "first"), Answer(waiter, "second")])
    )
    assert twice.answers == ["first"]


def test_a_partition_that_is_not_led_here_or_not_loaded_yet() -> None:
    world = World(lead=False)
    assert world.ask(get("a")).answer is E.NOT_COORDINATOR
    world.runtime.become_leader(0, 0, world.journal)
    assert world.runtime.is_loading
    assert world.ask(get("a")).answer is E.COORDINATOR_LOAD_IN_PROGRESS
    world.load()
    assert world.ask(get("a")).answer is None
    assert world.ask(get("a"), partition=1).answer is E.NOT_COORDINATOR


# ---- handlers that refuse, and handlers that are wrong


def refusing(shard: object, waiter: object, now: Now) -> Outcome:
    raise RequestError(E.ILLEGAL_GENERATION, "an old generation")


def mistaken(shard: object, waiter: object, now: Now) -> Outcome:
    raise KeyError("a mistake of ours")


def test_a_handler_that_refuses() -> None:
    world = World()
    world.ask(put(("a", 1)))
    refused = world.ask(refusing)
    assert refused.answers == []  # in its order, like any other answer
    world.journal.commit()
    assert refused.answer is E.ILLEGAL_GENERATION


def test_a_mistake_in_a_handler_costs_that_request_only() -> None:
    world = World()
    waiting = world.ask(park)
    with pytest.raises(KeyError):
        world.ask(mistaken)
    assert [question.answer for question in world.given] == [E.UNKNOWN_SERVER_ERROR]
    world.ask(release(("a", 1)))
    world.journal.commit()
    assert waiting.answer == "released"
    assert world.lost == []


def test_records_that_replay_cannot_stand_cost_the_shard() -> None:
    world = World()
    with pytest.raises(RuntimeError):
        world.ask(put(("a", 1), ("unreplayable", 2)))
    assert [question.answer for question in world.given] == [E.NOT_COORDINATOR]
    assert world.runtime.shard(0) is None
    assert len(world.lost) == 1


# ---- writes that are refused


@pytest.mark.parametrize("code", sorted(HARMLESS))
def test_a_refusal_that_leaves_the_log_as_it_was_is_told_to_whoever_asked(code: E) -> None:
    world = World()
    earlier = world.ask(put(("a", 1)))
    world.refuse_next(code)
    refused = world.ask(put(("a", 2)))
    later = world.ask(put(("a", 3)))
    world.journal.commit()
    assert world.given == [earlier, refused, later]
    assert (earlier.answer, refused.answer, later.answer) == ("written", told(code), "written")
    assert world.shard.numbers == {"a": 3}
    assert world.lost == []


def test_a_handler_may_say_what_happens_when_its_write_is_refused() -> None:
    world = World()
    waiting = world.ask(park)
    seen: list[E] = []

    def instead(code: E, now: Now) -> Outcome:
        seen.append(code)
        return answered(waiting, "try again")

    world.refuse_next(E.MESSAGE_TOO_LARGE)
    asked = world.ask(put(("a", 1), on_failed=instead))
    assert seen == [E.UNKNOWN_SERVER_ERROR]
    assert waiting.answer == "try again"
    assert asked.answers == []  # what happens instead has not answered it
    assert world.shard.numbers == {}


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_any_other_refusal_costs_the_shard(code: E, answer: E) -> None:
    world = World()
    uncommitted, waiting = world.ask(put(("a", 1))), world.ask(park)
    world.refuse_next(code)
    refused = world.ask(put(("a", 2)))
    assert world.given == [uncommitted, waiting, refused]
    assert (uncommitted.answer, waiting.answer, refused.answer) == (
        E.NOT_COORDINATOR, E.NOT_COORDINATOR, answer,
    )  # fmt: skip
    assert world.lost[0][1].startswith(f"the log refused a write: {code.name}")
    assert world.ask(get("a")).answer is E.COORDINATOR_LOAD_IN_PROGRESS


def test_a_disk_that_fails_costs_the_shard_and_is_heard_of_above() -> None:
    world = World()
    world.journal.refusals.append(OSError("no such disk"))
    with pytest.raises(OSError, match="no such disk"):
        world.ask(put(("a", 1)))
    assert world.given[0].answer is E.NOT_COORDINATOR
    assert world.lost == [(0, "OSError: no such disk")]


def test_the_table_of_errors_is_that_of_kafka() -> None:
    unavailable = {
        E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_ENOUGH_REPLICAS, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.REQUEST_TIMED_OUT,
    }  # fmt: skip
    elsewhere = {E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR}
    too_large = {E.MESSAGE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE, E.INVALID_FETCH_SIZE}
    for code in E:
        expected = code
        if code in unavailable:
            expected = E.COORDINATOR_NOT_AVAILABLE
        elif code in elsewhere:
            expected = E.NOT_COORDINATOR
        elif code in too_large:
            expected = E.UNKNOWN_SERVER_ERROR
        assert told(code) is expected


# ---- being called in the middle of something


def test_who_is_answered_may_ask_again_before_the_others_are_answered() -> None:
    world = World()
    asked: list[Question] = []

    def ask_again(question: Question) -> None:
        if len(asked) < 2:
            asked.append(world.ask(get("a")))

    waiting = [world.ask(park), world.ask(park)]
    world.on_answer = ask_again
    last = world.ask(release(("a", 1)))
    world.journal.commit()
    assert world.given == [*waiting, last, *asked]
    assert [question.answer for question in asked] == [1, 1]


def test_a_log_that_commits_while_it_appends_finds_the_shard_whole() -> None:
    """The commit of earlier records is heard of before the new ones are replayed: nobody may be served in between."""
    world = World()
    asked: list[Question] = []
    first = world.ask(put(("a", 1)))
    world.on_answer = lambda question: asked.append(world.ask(get("a"))) if question is first else None
    world.journal.commits_at_once = True
    second = world.ask(put(("a", 2)))
    assert asked[0].answer == 2
    assert world.given == [first, second, *asked]


def test_what_is_asked_in_the_middle_of_a_turn_is_handled_after_it() -> None:
    world = World(commits_at_once=True)
    inner: list[Question] = []

    def asks_within(shard: object, waiter: object, now: Now) -> Outcome:
        inner.append(world.ask(get("a")))
        world.runtime.for_each(lambda shard, now: release(("b", 1))(shard, None, now), now)
        assert inner[0].answers == []
        return put(("a", 1))(shard, waiter, now)

    outer = world.ask(asks_within)
    assert world.given == [outer, *inner]
    assert inner[0].answer == 1
    assert world.shard.numbers == {"a": 1, "b": 1}


def test_resigning_in_the_middle_of_a_turn_answers_everybody_once() -> None:
    world = World()
    waiting = world.ask(park)

    def resigns(shard: object, waiter: object, now: Now) -> Outcome:
        world.runtime.resign(0, 1)
        return release(("a", 1))(shard, waiter, now)

    asked = world.ask(resigns)
    assert world.log.batches == []
    assert [waiting.answer, asked.answer] == [E.NOT_COORDINATOR] * 2


# ---- work that nobody asked for


def test_all_shards_hear_what_happened() -> None:
    world = World(commits_at_once=True)
    world.runtime.become_leader(1, 0, type(world.journal)(type(world.log)(), commits_at_once=True))
    world.load()
    world.runtime.for_each(
        lambda shard, now: Outcome([CoordinatorRecord("topics changed", shard.partition)]), world.now
    )
    assert world.ask(get("topics changed"), partition=0).answer == 0
    assert world.ask(get("topics changed"), partition=1).answer == 1


def test_deadlines_of_all_shards_and_each_is_dealt_with_before_the_next() -> None:
    world = World(commits_at_once=True)
    found: list[object] = []

    def plan(shard: object, waiter: object, now: Now) -> Outcome:
        def expired(name: str) -> object:
            def write(now: Now) -> Outcome:
                found.append(dict(world.shard.numbers))
                return Outcome([CoordinatorRecord(name, now.ms)])

            return write

        world.shard.timers.schedule("late", now.ms + 300, expired("late"))  # type: ignore[arg-type]
        world.shard.timers.schedule("soon", now.ms + 100, expired("soon"))  # type: ignore[arg-type]
        return answered(waiter, tell(world.shard, "planned"))

    world.ask(plan)
    assert world.runtime.next_deadline_ms() == 1100
    world.pass_time(50)
    assert found == []
    world.pass_time(500)
    assert found == [{}, {"soon": 1550}]
    assert world.shard.numbers == {"soon": 1550, "late": 1550}
    assert world.runtime.next_deadline_ms() is None


def test_what_a_timer_writes_answers_those_who_waited_for_it() -> None:
    world = World()
    waiting = world.ask(park)
    world.shard.timers.schedule(
        "rebalance", 2000, lambda now: release(("generation", 1))(world.shard, None, now)
    )
    world.pass_time(1000)
    assert waiting.answers == []
    world.journal.commit()
    assert waiting.answer == "released"


@pytest.mark.parametrize("code", [E.MESSAGE_TOO_LARGE, E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR])
def test_a_timer_whose_write_is_refused_costs_the_shard_because_nobody_would_ask_again(code: E) -> None:
    world = World()
    waiting = world.ask(park)
    world.shard.timers.schedule("session", 2000, lambda now: release(("member", 0))(world.shard, None, now))
    world.refuse_next(code)
    world.pass_time(1000)
    assert waiting.answer is told(code)
    assert len(world.lost) == 1


def test_a_timer_may_say_what_happens_when_its_write_is_refused() -> None:
    world = World()
    again: list[int] = []

    def expired(now: Now) -> Outcome:
        def failed(code: E, now: Now) -> Outcome:
            again.append(now.ms)
            return Outcome()

        return Outcome([CoordinatorRecord("a", 1)], on_failed=failed)

    world.shard.timers.schedule("session", 2000, expired)
    world.refuse_next(E.NOT_ENOUGH_REPLICAS)
    world.pass_time(1000)
    assert again == [2000]
    assert world.lost == []


def test_a_timer_that_is_wrong_costs_the_shard() -> None:
    world = World()

    def expired(now: Now) -> Outcome:
        raise KeyError("a mistake of ours")

    world.shard.timers.schedule("session", 2000, expired)
    with pytest.raises(KeyError):
        world.pass_time(1000)
    assert world.runtime.shard(0) is None
    assert len(world.lost) == 1


def test_answers_say_what_the_log_will_say() -> None:
    """The helper of the other tests tells how much of the log an answer rests on; it must not lie."""
    world = World(commits_at_once=True)
    written = world.ask(put(("a", 1), ("b", 2)))
    assert written.answers == [Told("written", 2, 1)]
    assert world.ask(get("a")).answers == [Told(1, 2, 2)]
