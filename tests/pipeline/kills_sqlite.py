"""The pipeline that `test_kills_sqlite` kills: a topic of changes to a table of state until it has caught up. `python -m tests.pipeline.kills_sqlite SERVERS TOPIC STATE DATABASE`."""

from __future__ import annotations

import sys

from tests.pipeline.kills import RUNNING
from tidelog.pipeline.jobs import materialize


def options(topic: str, database: str) -> materialize.Options:
    return materialize.Options(
        topics=(topic,),
        database=database,
        database_table="kept",
        schema="id bigint, text string",
        key=("id",),
        position_columns=True,
        max_offsets_per_batch=400,
    )


def main() -> None:
    from tidelog.pipeline.context import JobContext
    from tidelog.spark.session import spark_session

    servers, topic, state, database = sys.argv[1:]
    context = JobContext(
        spark=spark_session("kills", master="local[2]", settings={"spark.driver.memory": "768m"}),
        name=topic,
        brokers=servers,
        state=state,
        trigger={"availableNow": True},
    )
    query = materialize.start(context, options(topic, database))
    print(RUNNING, flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
