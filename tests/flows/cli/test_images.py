"""`terrine images` from the outside."""

import typer
from typer.testing import CliRunner

from flows.cli.images import images
from terrine.errors import SettingError


def command(*arguments: str):
    app = typer.Typer()
    app.command()(images)
    return CliRunner().invoke(app, list(arguments))


def test_a_set_is_written_and_a_damaged_shard_is_reported(tmp_path):
    folder = tmp_path / "set"
    arguments = ["--kind", "gaussian", "--count", "10", "--size", "8", "--shard", "4", "--out", str(folder)]
    assert command(*arguments).exit_code == 0
    (folder / "shard-000001.npy").write_bytes(b"damaged")
    result = command(*arguments)
    assert result.exit_code == 0
    assert "shard-000001.npy did not match its digest and was drawn again" in result.output


def test_bad_input_is_one_sentence(tmp_path):
    for arguments, part in (
        (["--kind", "leaves"], "Expected one of"),
        (["--kind", "gaussian", "--size", "4"], "must be between 8 and 320"),
        (["--kind", "gaussian", "--count", "20000"], "too many"),
    ):
        error = command(*arguments, "--out", str(tmp_path / "sheet.png")).exception
        assert isinstance(error, SettingError)
        assert part in str(error)
    assert isinstance(command("--kind", "gaussian", "--out", str(tmp_path / "a.jpg")).exception, SettingError)
    assert not list(tmp_path.iterdir())
