"""Client libraries that record what they do: each wrapper takes a client of its library, has the calls of it that matter, and hands all others through.

    recorder = Recorder(Path("p1.jsonl"))
    producer = ConfluentProducer(confluent_kafka.Producer(settings), recorder, "p1")
    producer.produce("orders", b"pizza", partition=0)

Libraries are imported when a wrapper needs something of them, so that whoever has one of them can use its wrapper. What a wrapper does not know how to
record, such as iterating over a consumer, it does not offer.
"""
