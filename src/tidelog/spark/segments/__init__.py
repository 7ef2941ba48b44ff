"""Segments as a table: the files of a data directory read without a broker, for backfill, forensics and audit.

From the files up: `layout` finds partitions and their segments, `stored` looks into a log without changing a byte, `transactions` derives what is stable, `bounds` says which
offsets are read, `plan` makes tasks of them, `pieces` reads and decodes, `rows` gives the columns that were asked for, `reader` is what Spark calls. Only `reader` and
`schema` know Spark: `tidelog log export` and the audit read through the same pieces.

The one part of `tidelog.spark` that may import `tidelog.storage`, whose formats it reads. It never writes, and never repairs.
"""
