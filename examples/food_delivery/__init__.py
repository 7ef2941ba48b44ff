"""A food-delivery service on one log: orders for the kitchen, for billing and for analytics, each at its own pace.

`events` makes up what happens in a city, `generate` sends it, `pipeline.toml` says what Spark makes of it, `run` starts all of it and shows the results.
`expected` calculates the same results in plain Python: tests compare the two.
"""
