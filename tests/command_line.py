"""The command line, in the test's own process."""

from typer.testing import CliRunner

from flows.cli import app


def terrine(*arguments: object) -> str:
    """Run a command that must succeed, and return what it wrote to its standard output."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return done.stdout
