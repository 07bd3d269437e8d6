"""Make the demo model: fetch, tokenizer, train, export, evaluate (README.md). Each step reads what those before it left."""

import argparse
import os
import sys
from datetime import datetime, timedelta
from pathlib import Path

import data
import fetch

ROOT = Path(__file__).parents[2]
CACHE = Path.home() / ".cache" / "headrace-demo"
# Large tensors come and go in every step: keep their pages instead of returning them to the system each time.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30), "MALLOC_TOP_PAD_": str(256 << 20)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("fetch", "tokenizer", "train", "export", "evaluate"))
    parser.add_argument("--cache", type=Path, default=CACHE, help="where everything is kept (not in the repository)")
    parser.add_argument("--minutes", type=float, default=90, help="train: time in all, that of earlier runs included")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / "svc" / "models", help="export: folder of the GGUF files"
    )
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))  # for svc, which need not be installed where torch is
    match args.step:
        case "fetch":
            fetch.fetch(args.cache)
        case "tokenizer":
            data.train_tokenizer(args.cache)
            data.encode_streams(args.cache)
        case "train":
            os.environ.update(MALLOC)
            from train import train

            print("ends about", datetime.now() + timedelta(minutes=args.minutes), flush=True)
            train(args.cache, args.minutes * 60)
        case "export":
            from export import export

            export(args.cache, args.out)
        case "evaluate":
            from evaluate import evaluate

            evaluate(args.cache, args.out, ROOT)


if __name__ == "__main__":
    main()
