"""datatrove's tokenizer pipeline (https://github.com/huggingface/datatrove) as a whole command, with its default settings.

    python datatrove_command.py TOKENIZER EOT OUTPUT WORKERS FOLDER

Each Parquet file of FOLDER is a task. Run by command.py in datatrove's environment.
"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main(tokenizer: str, eot: str, output: str, workers: str, folder: str) -> None:
    steps = [
        ParquetReader(folder, glob_pattern="*.parquet"),
        DocumentTokenizer(output, tokenizer_name_or_path=tokenizer, eos_token=eot, seed=0),
    ]
    LocalPipelineExecutor(pipeline=steps, tasks=int(workers), workers=int(workers), logging_dir=f"{output}-logs").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
