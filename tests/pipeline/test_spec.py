"""A specification: what is read from it, and that everything wrong with it is told at once, with its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.pipeline.tiny_job import Options as TinyOptions
from tidelog.pipeline.options import OptionsError
from tidelog.pipeline.spec import SpecError, checked, flow, load, parse
from tidelog.pipeline.values import Pipeline, with_overrides

TINY = "tests.pipeline.tiny_job"


def read(text: str, **environ: str) -> Pipeline:
    return parse(textwrap.dedent(text), file="/srv/shop/pipeline.toml", environ=environ)


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(SpecError) as error:
        read(text, **environ)
    return [line.removeprefix("/srv/shop/pipeline.toml:") for line in str(error.value).splitlines()]


def test_a_file_and_python_give_the_same_values() -> None:
    written = read(
        f"""
        [pipeline]
        name = "shop"
        brokers = "a:1,b:2"
        state = "state"
        trigger = "500 milliseconds"
        on_failure = "restart"
        [pipeline.client]
        security.protocol = "SASL_SSL"
        "ssl.ca" = "${{CA}}"
        [pipeline.spark]
        spark.driver.memory = "2g"
        spark.sql.shuffle.partitions = 4

        [[flow]]
        name = "orders"
        job = "{TINY}"
        topics = "orders"
        file = "out/orders"
        labels = {{ a.b = true }}

        [[flow]]
        name = "late"
        job = "{TINY}"
        pattern = "late-.*"
        trigger = "available now"
        file = "/elsewhere/late"
        """,
        CA="/etc/ca",
    )
    made = Pipeline(
        name="shop",
        brokers="a:1,b:2",
        state="/srv/shop/state",
        trigger="500 milliseconds",
        on_failure="restart",
        client={"security.protocol": "SASL_SSL", "ssl.ca": "/etc/ca"},
        spark={"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "4"},
        flows=(
            flow("orders", TINY, topics="orders", file="/srv/shop/out/orders", labels={"a.b": "true"}),
            flow("late", TINY, pattern="late-.*", trigger="available now", file="/elsewhere/late"),
        ),
        file="/srv/shop/pipeline.toml",
        secrets={"/etc/ca": "${CA}"},
    )
    assert written == made
    assert checked(made) is made
    assert written.flows[0].options == TinyOptions(
        topics=("orders",), file="/srv/shop/out/orders", labels={"a.b": "true"}
    )
    assert [written.trigger_of(each) for each in written.flows] == [
        {"processingTime": "500 milliseconds"},
        {"availableNow": True},
    ]
    once = with_overrides(written, once=True, master="spark://h:1")
    assert {str(once.trigger_of(each)) for each in once.flows} == {"{'availableNow': True}"}
    assert once.master == "spark://h:1"


def test_every_problem_at_once_each_with_its_line() -> None:
    assert problems(
        f"""\
        [pipeline]
        trigger = "often"
        brokrs = "x"
        [pipeline.spark]
        driver.memory = "1g"
        [[flow]]
        name = "a b"
        job = "{TINY}"
        topics = [
          "orders",
        ]
        fil = "x"
        [[flow]]
        job = "ingst"
        [[flow]]
        name = "c"
        job = "{TINY}"
        triger = "1 second"
        file = 7
        max_offsets_per_batch = "many"
        [flows]
        """
    ) == [
        "3: pipeline: brokrs: there is no such option: did you mean brokers?",
        "6: flow a b: file is missing",
        "7: flow a b: name: 'a b' is no name for a directory: use letters, digits, dots, underscores and dashes, at most 100",
        "12: flow a b: fil: there is no such option: did you mean file?",
        "13: flow 2: name is missing",
        "14: flow 2: job: there is no job 'ingst': did you mean ingest? A job of your own is named by its module, with a dot in it",
        "18: flow c: triger: there is no such option: did you mean trigger?",
        "19: flow c: file: must be a text, not 7",
        "20: flow c: max_offsets_per_batch: must be a whole number, not 'many'",
        "21: flows: there is no such table: did you mean flow?",
    ]


def test_what_no_type_says() -> None:
    assert problems(
        f"""\
        [pipeline]
        trigger = "often"
        restarts_max = -1
        [pipeline.client]
        kafka.acks = "all"
        bootstrap.servers = "x"
        [pipeline.spark]
        driver.memory = "1g"
        [[flow]]
        name = "a"
        job = "{TINY}"
        file = "x/"
        pattern = "("
        """
    ) == [
        '2: pipeline: trigger: must be an interval such as "1 second", or "available now", not \'often\'',
        "3: pipeline: restarts_max: must not be negative, and is -1",
        "5: pipeline: client.kafka.acks: is written without kafka. here: acks",
        "6: pipeline: client.bootstrap.servers: is said by brokers",
        "8: pipeline: spark.driver.memory: settings of Spark begin with spark.: did you mean spark.driver.memory?",
        "12: flow a: file: is a directory",
        "13: flow a: pattern: is no regular expression: missing ), unterminated subpattern at position 0",
    ]


def test_flows_that_get_in_each_others_way() -> None:
    assert problems(
        f"""\
        [pipeline]
        state = "state"
        [[flow]]
        name = "a"
        job = "{TINY}"
        topics = ["x"]
        file = "out/x"
        [[flow]]
        name = "A"
        job = "{TINY}"
        topics = ["x"]
        file = "out/y"
        [[flow]]
        name = "b"
        job = "{TINY}"
        pattern = "x.*"
        to_topic = "x-dead"
        file = "other/../out/x"
        [[flow]]
        name = "c"
        job = "{TINY}"
        topics = ["x"]
        file = "out"
        [[flow]]
        name = "d"
        job = "{TINY}"
        topics = ["x"]
        file = "state/d/x"
        """
    ) == [
        "9: flow A: name: there is a flow a already, and its checkpoint is kept under that name",
        "17: flow b: to_topic: the flow reads x-dead, too: it would read what it has written, for ever",
        "18: flow b: file: flow a writes to /srv/shop/out/x, too: each needs a place of its own",
        "23: flow c: file: flow a writes to /srv/shop/out/x, which is inside it",
        "28: flow d: file: /srv/shop/state/d/x is inside /srv/shop/state, which is for checkpoints: write elsewhere",
    ]


def test_secrets_come_from_the_environment_and_stay_out_of_messages() -> None:
    text = f"""\
        [pipeline]
        name = "$${{not}} ${{NAME}}"
        [[flow]]
        name = "a"
        job = "{TINY}"
        topics = ["orders", "${{TOPIC}}"]
        file = "x"
        """
    found = read(text, NAME="shop", TOPIC="hunter2")
    assert found.name == "${not} shop"
    assert found.flows[0].options.reads_topic("hunter2")
    assert found.told("no password hunter2 here") == "no password ${TOPIC} here"
    assert problems(text, NAME="shop") == ["6: flow.topics: the environment variable TOPIC is not set"]
    assert problems(text.replace("${TOPIC}", "${a b}"), NAME="shop") == [
        "6: flow.topics: ${a b} names no environment variable; write $${ where ${a b} itself is meant"
    ]
    wrong = text.replace('file = "x"', 'file = "x"\nmax_offsets_per_batch = "${TOPIC}"')
    assert problems(wrong, NAME="shop", TOPIC="hunter2") == [
        "8: flow a: max_offsets_per_batch: must be a whole number, not '${TOPIC}'"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\nb = \n", "2: is no TOML: Invalid value"),
        ('a = "\n', "1: is no TOML: Illegal character '\\n'"),
        ("a = [1,\n2", "2: is no TOML: Unclosed array"),
        ("[pipeline]\n[pipeline]\n", "2: is no TOML: Cannot declare ('pipeline',) twice"),
        ("[flow]\nname = 'a'\n", "1: flows are written as [[flow]], with two brackets"),
        ("[[pipeline]]\nname = 'a'\n", "1: pipeline: is written as [pipeline], with one bracket"),
    ],
)
def test_text_that_is_no_specification(text: str, expected: str) -> None:
    assert any(each.startswith(expected) for each in problems(text))


def test_a_file_without_flows(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("")
    with pytest.raises(SpecError, match=r"p.toml: there is no \[\[flow\]\]"):
        load(str(file))
    file.write_bytes(b"# \xff\n")
    with pytest.raises(SpecError, match=r"p\.toml:1: is no UTF-8"):
        load(str(file))


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("tests.pipeline.nothing", "there is no module 'tests.pipeline.nothing' on Python's path"),
        ("tests.pipeline.conftest", "is no job: it has no Options and no start or run"),
    ],
)
def test_modules_that_are_no_jobs(job: str, why: str) -> None:
    (found,) = problems(f"[[flow]]\nname = 'a'\njob = '{job}'\n")
    assert found.startswith("3: flow a: job: ") and why in found


def test_a_job_whose_packages_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_jobs").mkdir()
    (tmp_path / "shop_jobs" / "needy.py").write_text("import deltalake.nothing_like_it\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = problems("[[flow]]\nname = 'a'\njob = 'shop_jobs.needy'\n")
    assert found == "3: flow a: job: job shop_jobs.needy needs deltalake: pip install 'tidelog[pipeline]'"


def test_flows_made_in_python_are_held_to_the_same_rules() -> None:
    with pytest.raises(OptionsError, match="fil: flow a: there is no such option: did you mean file"):
        flow("a", TINY, topics="x", fil="y")
    with pytest.raises(SpecError, match="it has no flows"):
        checked(Pipeline())
    both = (flow("a", TINY, topics="x", file="y"), flow("b", TINY, topics="x", file="y"))
    with pytest.raises(SpecError, match=r"flow b: file: flow a writes to .*/y, too"):
        checked(Pipeline(flows=both))
