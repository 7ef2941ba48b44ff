"""The data pipeline: jobs on Spark between topics, tables and databases, and one file that says which of them run.

`spec` reads that file, `runner` runs it; each job in `jobs/` can be used alone. Stands on `spark` and `client`, knows no broker.
"""
