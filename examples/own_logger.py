"""A custom logger: any object with log(step, metrics) and close().

python examples/own_logger.py
proxrl train CartPole-v1 --logger examples.own_logger:CsvLogger --logger-kwargs path=metrics.csv
"""

import csv
from pathlib import Path

import proxrl


class CsvLogger:
    """Writes one row per number, because iterations have different metrics: returns, for example, only if an episode ended."""

    def __init__(self, path: str) -> None:
        self.file = Path(path).open("a", newline="")  # a resumed run continues the same file
        self.rows = csv.writer(self.file)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.rows.writerows((step, name, value) for name, value in metrics.items())

    def close(self) -> None:
        self.file.close()


if __name__ == "__main__":
    Path("metrics.csv").unlink(missing_ok=True)
    proxrl.train("CartPole-v1", loggers=[CsvLogger("metrics.csv")], total_steps=10_240, clobber=True)
    with Path("metrics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    steps, names = {row[0] for row in rows}, {row[1] for row in rows}
    print(f"metrics.csv has {len(names)} metrics of {len(steps)} iterations, charts/SPS among them: {'charts/SPS' in names}")
