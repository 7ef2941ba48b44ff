"""Record batches: the unit in which records travel, are stored and are checked.

The order in which a batch meets these files: `batch` (its 61-byte header and CRC), `validation` (what a broker refuses),
`compression` (bounded both ways), `record` (its records one by one), `builder` (making batches), `control` (markers), and
`columnar` (a run of batches as Arrow columns). Importing this package loads none of them, and only `columnar` loads
numba and pyarrow, so that a broker starts without either.
"""
