"""Runs the command line in this process, as the console script would."""

from __future__ import annotations

import pytest

from support.command import Ended, Tapestry
from tapestry.cli.app import run

FACTORIES = """
import torch

def small():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()
    return model, (torch.randn(3, 8),)

def steps():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
        def forward(self, x):
            self.count += 1
            return x * self.count
    return Counter(), [(torch.ones(2),), (torch.ones(2) * 3,)]

def training():
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.0)), (torch.zeros(1, 2),)

def raises():
    raise ValueError("no weights here")

def leaves():
    raise SystemExit(0)

def number():
    return 5

def tensor():
    return torch.nn.Linear(2, 2), torch.zeros(1, 2)

def words():
    return torch.nn.Linear(2, 2), (torch.zeros(1, 2),), 4

def short():
    return (torch.nn.Linear(2, 2),)

def nobody():
    return 3, (torch.zeros(2),)

def nothing():
    return torch.nn.Linear(2, 2), []

def misfit():
    return torch.nn.Linear(2, 2), (torch.zeros(1, 3),)

def dynamic():
    class Dynamic(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x
    return Dynamic(), (torch.zeros(2),)

constant = 3
"""


@pytest.fixture
def tapestry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tapestry:
    """Runs a command; its output is what a terminal of 80 columns would show."""

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr("sys.argv", ["tapestry", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr("logging.raiseExceptions", False)  # torch's handlers keep the stream of an earlier test
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        text = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ended(code, text.out, text.err)

    return call


@pytest.fixture(scope="session")
def factories(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a file of factories, good and bad."""
    path = tmp_path_factory.mktemp("models") / "factories.py"
    path.write_text(FACTORIES)
    return str(path)
