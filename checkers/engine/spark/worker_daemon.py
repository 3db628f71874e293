"""The process that Spark forks its Python workers from: it has imported already what they run.

pyspark's own daemon imports nothing of theirs, so that each worker spends a second of CPU on it
before its first row. What is imported here must start no thread: a fork copies none.
"""

from __future__ import annotations

import os

# A pool of threads would not outlive the fork, and tasks share the machine's cores as it is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyarrow.parquet  # noqa: F401
import pyspark.worker  # noqa: F401
import scipy.sparse.csgraph  # noqa: F401
from pyspark.daemon import manager

import checkers.engine.spark.executor
import checkers.lists.checker
import checkers.promises.lost_write  # noqa: F401
from checkers.engine.arrays import keep_freed_memory
from harness.arrow import without_pandas

if __name__ == "__main__":
    without_pandas()
    keep_freed_memory()
    manager()
