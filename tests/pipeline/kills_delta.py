"""The pipeline that `test_kills_delta` kills: a topic to a Delta table until it has caught up. `python -m tests.pipeline.kills_delta SERVERS TOPIC STATE TABLE MASTER`."""

from __future__ import annotations

import sys

from tests.pipeline.kills import RUNNING


def main() -> None:
    from tidelog.pipeline.context import JobContext
    from tidelog.pipeline.jobs import ingest
    from tidelog.spark.session import spark_session

    servers, topic, state, table, master = sys.argv[1:]
    settings = {"spark.driver.memory": "768m", "spark.executor.memory": "768m", "spark.cores.max": "2"}
    context = JobContext(
        spark=spark_session("kills", master=master, settings=settings),
        name=topic,
        brokers=servers,
        state=state,
        trigger={"availableNow": True},
    )
    options = ingest.Options(
        topics=(topic,),
        table=table,
        schema="id bigint, text string",
        max_offsets_per_batch=500,
        compact_every_batches=4,
    )
    query = ingest.start(context, options)
    print(RUNNING, flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
