"""For spark-submit, which takes a file and not a module: runs what `python -m spark` runs.

python -m zipfile -c rooms.zip timeline shards spark
spark-submit --py-files rooms.zip spark/submit.py split --server http://127.0.0.1:8080 --overfull
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # This file's folder is on the path, where its modules would hide others.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    runpy.run_module("spark", run_name="__main__", alter_sys=True)
