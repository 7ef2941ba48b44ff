"""What a group's history is taken to mean: each trouble is named with its numbers, and a healthy group is left in peace."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli.explain_group import Finding, explain
from tidelog.cli.group_timeline import lives_of, rebalances_of, since_then, span
from tidelog.client.group_description import GroupDescription, MemberInfo
from tidelog.client.group_history import HistoryEntry

START = 1_700_000_000_000
SECOND, MINUTE = 1000, 60_000
NO_ONE_LEFT = "no member is left"


class Story:
    """A history in the order and the words of the classic coordinator."""

    def __init__(self, *, generation: int = 0) -> None:
        self.entries: list[HistoryEntry] = []
        self.at = START
        self.generation = generation

    def wait(self, ms: int) -> Story:
        self.at += ms
        return self

    def note(self, event: str, member: str = "", detail: str = "", *, host: str = "10.0.0.1") -> Story:
        client = f"{member.partition('/')[0]} ({host})" if member else ""
        self.entries.append(HistoryEntry(self.at, event, self.generation, member, client, detail))
        return self

    def rebalance(
        self, took_ms: int = 100, why: str = "", *, end: str = "2 members, assigned by a with range"
    ) -> Story:
        self.note("rebalance began", detail=why)
        self.wait(took_ms)
        self.generation += 1
        self.note("rebalance ended", detail=end)
        return self


def member(client: str, *, instance: str | None = None, epoch: int | None = None) -> MemberInfo:
    return MemberInfo(f"{client}-id", instance, client, "10.0.0.1", frozenset({"t"}), frozenset(), epoch)


def group(
    *members: MemberInfo, protocol: str = "range", kind: str = "classic", state: str = "Stable"
) -> GroupDescription:
    return GroupDescription(
        "g", kind, state, "consumer", protocol, 0, members, 9 if kind == "consumer" else None
    )


def findings(story: Story, about: GroupDescription | None = None, *, now: int | None = None) -> list[Finding]:
    about = group(member("a"), member("b")) if about is None else about
    return explain(story.entries, about, story.at + SECOND if now is None else now).findings


def one(story: Story, about: GroupDescription | None = None, **options: Any) -> Finding:
    (finding,) = findings(story, about, **options)
    return finding


# -- healthy groups -------------------------------------------------------------------------------------------------


def test_nothing_is_said_about_nothing() -> None:
    assert explain([], group(), START) == ([], [])
    assert explain([], None, START) == ([], [])


def test_a_group_that_starts_is_healthy() -> None:
    story = Story().note("joined", "a/1").note("rebalance began", detail="member a/1 joined").wait(2 * SECOND)
    story.note("joined", "b/1").note("joined", "c/1").wait(SECOND).note("rebalance ended")
    for number in range(2, 8):
        story.wait(300).note("joined", f"worker/{number}", host=f"10.0.0.{number}").rebalance(400)
    assert findings(story) == []


def test_ten_members_with_one_name_on_one_host_are_not_flapping() -> None:
    story = Story(generation=5)
    for number in range(10):
        story.wait(2 * SECOND).note("joined", f"worker/{number}").rebalance(200)
    assert findings(story) == []


def test_one_restart_is_healthy() -> None:
    story = (
        Story(generation=5)
        .note("left", "a/1")
        .rebalance(100)
        .wait(8 * SECOND)
        .note("joined", "a/2")
        .rebalance(100)
    )
    assert findings(story) == []


def test_a_lone_consumer_that_is_started_now_and_then_is_healthy() -> None:
    story = Story()
    for number in range(4):
        story.note("joined", f"a/{number}").rebalance(3 * SECOND)
        story.wait(20 * MINUTE).note("left", f"a/{number}").rebalance(0, end=NO_ONE_LEFT).wait(10 * MINUTE)
    assert findings(story, group(protocol="")) == []


def test_growing_and_shrinking_over_a_day_is_healthy() -> None:
    story = Story(generation=3)
    for number in range(6):
        story.wait(60 * MINUTE).note("joined", f"w{number}/1").rebalance(800)
    for number in range(6):
        story.wait(60 * MINUTE).note("left", f"w{number}/1").rebalance(300)
    assert findings(story) == []


def test_a_static_member_that_is_restarted_is_healthy() -> None:
    story = Story(generation=3)
    for number in range(5):
        story.wait(30 * MINUTE).note("fenced", f"a/{number}", "a (10.0.0.2) took its instance id i-1")
    assert findings(story) == []


def test_sticky_members_tell_what_they_own_which_is_no_change_of_mind() -> None:
    story = Story(generation=3)
    for number in range(5):
        story.wait(MINUTE).note("changed its subscription", "a/1").rebalance(100, "changed").wait(number)
    assert findings(story, group(member("a"), protocol="cooperative-sticky")) == []


def test_a_rebalance_that_has_just_begun_is_healthy() -> None:
    story = Story(generation=3).note("joined", "c/1").note("rebalance began", detail="member c/1 joined")
    joining = group(member("a"), state="PreparingRebalance")
    assert findings(story, joining, now=story.at + 5 * SECOND) == []


def test_static_members_that_say_they_will_be_back_are_healthy() -> None:
    story = Story(generation=7)
    for name in ("a", "b", "c"):
        story.note("left", f"{name}/old", "it said that it will be back").wait(10 * SECOND)
        story.note("joined", f"{name}/new").wait(SECOND)
    assert findings(story, group(kind="consumer", state="Empty")) == []


# -- members that come and go ---------------------------------------------------------------------------------------


def test_a_member_that_joins_and_leaves_every_few_seconds_flaps() -> None:
    story = Story(generation=7)
    for number in range(6):
        story.note("joined", f"orders-7/{number}", host="10.0.0.3").rebalance(200)
        story.wait(4 * SECOND).note("left", f"orders-7/{number}", host="10.0.0.3").rebalance(300).wait(500)
    finding = one(story)
    assert (finding.kind, finding.who) == ("flapping", "orders-7 (10.0.0.3)")
    assert finding.numbers == {
        "times": 6,
        "interval_ms": 5000,
        "life_ms": 4200,
        "left": 6,
        "timed_out": 0,
        "rebalances": 12,
    }
    assert "joined 6 times, every 5 s, and was gone again after 4.2 s (6 times it left)" in finding.what
    assert "in its own log" in finding.advice


def test_a_member_that_is_killed_again_and_again_flaps_too() -> None:
    story = Story(generation=7)
    story.note("joined", "x/0").rebalance(100)
    for number in range(1, 5):
        story.wait(5 * SECOND).note("joined", f"x/{number}").rebalance(100)
        story.wait(40 * SECOND).note("timed out", f"x/{number - 1}", "silent for 45000 ms").rebalance(100)
    finding = one(story)
    assert (finding.kind, finding.numbers["timed_out"], finding.numbers["left"]) == ("flapping", 4, 0)
    assert "dies without leaving" in finding.advice


def test_who_works_too_long_between_polls_is_told_so() -> None:
    story = Story(generation=7).note("joined", "b/1").note("rebalance began").wait(5 * MINUTE)
    story.note("missed the rebalance", "slow/1", "did not join again within the rebalance timeout").wait(50)
    story.note("rebalance ended")
    missed, eager = findings(story)
    assert (missed.kind, missed.who) == ("missed rebalance", "slow (10.0.0.1)")
    assert missed.numbers == {"times": 1, "waited_ms_max": 5 * MINUTE}
    assert "the others waited 5 min for it" in missed.what
    assert "max.poll.interval.ms (about 5 min)" in missed.advice
    assert "max.poll.records" in missed.advice
    assert eager.kind == "eager protocol"


def test_the_limit_is_taken_from_the_coordinators_words_where_it_gives_it() -> None:
    story = Story(generation=7).note("rebalance began").wait(70 * SECOND)
    story.note("missed the rebalance", "slow/1", "did not give up its partitions within 60000 ms")
    finding = one(story.wait(50).note("rebalance ended"), group(member("a", epoch=9), kind="consumer"))
    assert "max.poll.interval.ms (about 1 min)" in finding.advice


def test_a_java_client_that_leaves_because_nobody_polled_is_slow_not_flapping() -> None:
    story = Story(generation=7)
    for number in range(4):
        story.note("joined", f"slow/{number}").rebalance(100).wait(MINUTE)
        story.note("left", f"slow/{number}", "consumer poll timeout has expired.").rebalance(100).wait(SECOND)
    finding = one(story)
    assert (finding.kind, finding.numbers["times"]) == ("missed rebalance", 4)


def test_a_member_that_was_held_up_needs_a_longer_session() -> None:
    story = Story(generation=7).note("timed out", "b/1", "silent for 10000 ms").rebalance(100)
    story.wait(3900).note("joined", "b/2").rebalance(100)
    finding = one(story)
    assert (finding.kind, finding.who) == ("timed out", "b (10.0.0.1)")
    assert finding.numbers == {
        "times": 1,
        "session_timeout_ms": 10_000,
        "came_back": 1,
        "away_ms_max": 4000,
        "replaced": 0,
    }
    assert "it was back after 4 s" in finding.what
    assert "session.timeout.ms of 15000 or more" in finding.advice


def test_a_member_that_was_replaced_before_it_timed_out_did_not_say_goodbye() -> None:
    story = Story(generation=7).note("joined", "b/2").rebalance(100).wait(30 * SECOND)
    story.note("timed out", "b/1", "silent for 45000 ms").rebalance(100)
    finding = one(story)
    assert (finding.kind, finding.numbers["replaced"]) == ("timed out", 1)
    assert "close the consumer" in finding.advice


def test_a_member_that_never_came_back_is_not_helped_by_settings() -> None:
    story = Story(generation=7).note("timed out", "b/1", "silent for 45000 ms").rebalance(100)
    finding = one(story)
    assert (finding.kind, finding.numbers["came_back"]) == ("timed out", 0)
    assert "no setting helps" in finding.advice


def rolling() -> Story:
    story = Story(generation=7)
    for number, name in enumerate(("a", "b", "c")):
        story.note("left", f"{name}/old").rebalance(SECOND)
        story.wait(10 * SECOND).note("joined", f"{name}/new", host=f"10.1.0.{number}").rebalance(
            2 * SECOND
        ).wait(SECOND)
    return story


def test_a_rolling_restart_is_a_case_for_static_members() -> None:
    finding = one(rolling())
    assert finding.kind == "rolling restart"
    assert finding.who == "a (10.0.0.1), b (10.0.0.1), c (10.0.0.1)"
    assert finding.numbers == {"members": 3, "rebalances": 6, "paused_ms": 9000, "away_ms_max": 11_000}
    assert "3 members were restarted within 39 s, which cost 6 rebalances, 9 s in all" in finding.what
    assert "group.instance.id" in finding.advice
    assert "up to 11 s" in finding.advice


def test_static_members_are_not_told_to_become_static() -> None:
    static = group(*(member(name, instance=f"i-{name}") for name in "abc"))
    assert findings(rolling(), static) == []


def test_two_processes_with_one_instance_id() -> None:
    story = Story(generation=7)
    for number in range(4):
        story.wait(6 * SECOND).note(
            "fenced", f"p/{number}", f"p (10.0.0.{number % 2}) took its instance id i-1"
        )
    finding = one(story)
    assert (finding.kind, finding.who) == ("shared instance id", "i-1")
    assert (finding.numbers["times"], finding.numbers["interval_ms"]) == (4, 6000)


# -- rebalances as such ---------------------------------------------------------------------------------------------


def test_long_pauses_of_an_eager_group() -> None:
    story = Story(generation=7)
    for number, took in enumerate((500, 6 * SECOND, 12 * SECOND)):
        story.wait(60 * MINUTE).note("joined", f"w{number}/1").rebalance(took)
    finding = one(story)
    assert finding.kind == "eager protocol"
    assert finding.numbers == {
        "rebalances": 3,
        "long": 2,
        "longest_ms": 12_000,
        "paused_ms": 18_500,
        "protocol": "range",
    }
    assert "cooperative-sticky" in finding.advice
    assert "group.protocol=consumer" in finding.advice
    assert findings(story, group(protocol="cooperative-sticky")) == []
    assert findings(story, group(protocol="uniform", kind="consumer")) == []


def test_the_wait_for_first_members_is_nobodys_pause() -> None:
    story = Story()
    for number in range(3):
        story.note("joined", f"w{number}/1").rebalance(9 * SECOND).wait(10 * MINUTE)
        story.note("left", f"w{number}/1").rebalance(0, end=NO_ONE_LEFT).wait(10 * MINUTE)
    assert findings(story) == []


def test_a_subscription_that_changes_all_the_time() -> None:
    story = Story(generation=7)
    for number in range(3):
        story.wait(MINUTE).note("changed its subscription", "a/1").rebalance(100, "changed").wait(number)
    finding = one(story)
    assert (finding.kind, finding.who, finding.numbers) == (
        "changing subscription",
        "a (10.0.0.1)",
        {"times": 3},
    )


def test_a_rebalance_that_does_not_end() -> None:
    story = Story(generation=7).note("joined", "c/1").note("rebalance began", detail="member c/1 joined")
    joining = group(member("a"), state="PreparingRebalance")
    finding = one(story, joining, now=story.at + 95 * SECOND)
    assert (finding.kind, finding.numbers["since_ms"]) == ("unfinished rebalance", story.at)
    assert "for 1 min 35 s" in finding.what
    assert findings(story, group(state="Empty"), now=story.at + 95 * SECOND) == [], "the state knows better"


def test_a_consumer_group_names_those_it_waits_for() -> None:
    waiting = group(member("fast", epoch=9), member("late", epoch=8), kind="consumer", state="Reconciling")
    story = Story(generation=8).note("rebalance began")
    assert one(story, waiting, now=story.at + MINUTE).numbers["behind"] == ["late (10.0.0.1)"]
    assert explain([], waiting, START).findings[0].who == "late (10.0.0.1)"
    assert explain([], group(member("a", epoch=9), kind="consumer"), START).findings == []


# -- the timeline ---------------------------------------------------------------------------------------------------


def test_why_a_rebalance_happened() -> None:
    story = Story(generation=7).note("left", "a/1").note("rebalance began", detail="member a/1 left").wait(50)
    story.note("joined", "b/1").note("joined", "b/2").note("timed out", "c/1", "silent for 10000 ms").wait(50)
    story.note("rebalance began", detail="once more").wait(100)
    story.generation = 8
    story.note("rebalance ended").wait(SECOND)
    story.rebalance(10, "the leader asked for it")
    first, second = rebalances_of(story.entries)
    assert first.why == "a (10.0.0.1) left; b (10.0.0.1) ×2 joined; c (10.0.0.1) timed out"
    assert (first.took_ms, first.generation, first.began_count) == (200, 8, 2)
    assert second.why == "the leader asked for it"


def test_what_happened_since_the_last_rebalance() -> None:
    story = Story(generation=7).note("joined", "a/1").rebalance(100)
    assert since_then(story.entries) == ""
    story.note("left", "a/1")
    assert since_then(story.entries) == "a (10.0.0.1) left"
    assert since_then(story.note("rebalance began").entries) == "", "now it is part of a rebalance"
    assert since_then([]) == ""


def test_a_history_that_lost_its_beginning() -> None:
    story = Story(generation=7).note("rebalance ended").wait(SECOND).note("left", "a/1").rebalance(100)
    (only,) = rebalances_of(story.entries)
    assert only.why == "a (10.0.0.1) left"
    (life,) = lives_of(story.entries)
    assert (life.joined_ms, life.lasted_ms, life.client_id) == (None, None, "a")


def test_events_of_a_newer_broker_are_passed_over() -> None:
    story = Story(generation=7).note("was promoted", "a/1").rebalance(100).note("something else")
    assert findings(story) == []


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (4250, "4.2 s"),
        (59_000, "59 s"),
        (60_000, "1 min"),
        (95_000, "1 min 35 s"),
        (3_600_000, "1 h"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_lengths_of_time(ms: int, text: str) -> None:
    assert span(ms) == text
