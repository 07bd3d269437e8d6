"""For all tests."""

import os

# Before the first import of numpy. The models here are tiny, and BLAS threads that wait for each other where two cores are shared
# make the reference five times slower than one thread is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
