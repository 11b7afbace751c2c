"""The command line: one short function a command.

With ``--json`` a command prints one JSON object on standard output and everything else on standard error. What is
raised becomes the exit code that `tabgpu.errors` documents: 1 is a bug in tabgpu, 130 and 143 an interruption. What a
command prints is held until it has ended, and written at once: so there is one place where writing can fail.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any, NoReturn

import click

from . import __version__
from .errors import TabgpuError
from .interrupts import deferred

_came: list[int] = []  # signals that the handlers were called for
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Commands(click.Group):
    """Lists commands in the order they are used, and suggests the nearest one for a misspelt name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from .errors import nearest

            message = f"There is no command {args[0]!r}. {nearest(args[0], self.commands)}"
            raise click.UsageError(message, ctx) from error


@click.group(cls=_Commands, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="tabgpu")
def cli() -> None:
    """Train and serve tabular models on data that does not fit in memory.

    Start with: tabgpu inspect DATA, then tabgpu plan and tabgpu run on a pipeline file.
    """


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
_debug = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
_set = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, as model.rounds=50."
)
_quiet = click.option("--quiet", is_flag=True, help="Say nothing while working.")
_pipeline = click.argument("pipeline", type=click.Path())
_bundle = click.argument("bundle", type=click.Path())
_data = click.argument("data", nargs=-1, required=True)
_out = click.option("--out", required=True, type=click.Path(), help="Folder for the output files.")
_keep = click.option("--keep", multiple=True, metavar="COLUMN", help="Column of the input to keep; may be repeated.")
_table = click.option(
    "--table", "tables", multiple=True, metavar="NAME=PATH", help="Use another file for a joined table."
)
_engine = click.option("--engine", default="auto", metavar="ENGINE", help="auto, cpu or gpu.")
_cluster = click.option(
    "--cluster", metavar="KEY=VALUE", multiple=True, help="Work on workers, as workers=4 or address=tcp://host:8786."
)
_overwrite = click.option("--overwrite", is_flag=True, help="Replace the output folder if it is not empty.")


@cli.command()
@_data
@_json
@_debug
def inspect(data: tuple[str, ...], as_json: bool, debug: bool) -> None:
    """List rows, columns and differences of the files in DATA, from their footers."""
    report, workflow = _modules()
    _print(workflow.inspect(data), as_json, report.inspection)


@cli.command()
@_pipeline
@_set
@_json
@_debug
def plan(pipeline: str, overrides: tuple[str, ...], as_json: bool, debug: bool) -> None:
    """Say what a run of PIPELINE would do: engine, passes, memory and why."""
    report, workflow = _modules()
    _print(workflow.plan(pipeline, set=overrides).to_json(), as_json, report.plan)


@cli.command()
@_pipeline
@_set
@click.option("--sample", metavar="SHARE", help="Use this share of the rows alone, as 2%.")
@_json
@_quiet
@_debug
def run(pipeline: str, overrides: tuple[str, ...], sample: str | None, as_json: bool, quiet: bool, debug: bool) -> None:
    """Fit, train and evaluate PIPELINE; write a run folder."""
    _, workflow = _modules()
    with redirect_stdout(sys.stderr):  # XGBoost prints what params.verbosity asks for
        done = workflow.run(pipeline, set=overrides, sample=sample, progress=_progress(quiet))
    _print(done.summary, as_json, lambda _: str(done))


@cli.command()
@_bundle
@_data
@_out
@_keep
@_table
@_overwrite
@_engine
@_cluster
@_json
@_debug
def score(bundle: str, data: tuple[str, ...], out: str, as_json: bool, debug: bool, **options: Any) -> None:
    """Predict the rows of DATA with BUNDLE; write one Parquet file for each input file."""
    report, workflow = _modules()
    done = workflow.score(bundle, data, out, **_write_options(options))
    _print(done, as_json, report.written)


@cli.command()
@_bundle
@_data
@_out
@_keep
@_table
@_overwrite
@_engine
@_cluster
@_json
@_debug
def transform(bundle: str, data: tuple[str, ...], out: str, as_json: bool, debug: bool, **options: Any) -> None:
    """Write the features of DATA as the model of BUNDLE sees them."""
    report, workflow = _modules()
    done = workflow.transform(bundle, data, out, **_write_options(options))
    _print(done, as_json, report.written)


@cli.command()
@_json
@_debug
def doctor(as_json: bool, debug: bool) -> None:
    """Check machine, GPUs and installed packages, and try the engines; exit 0 if all can work, else 4."""
    with deferred():
        from .doctor import examine
    found = examine()
    _print(found.to_json(), as_json, lambda _: str(found))
    if not found.healthy:
        raise click.exceptions.Exit(4)


def _write_options(options: dict[str, Any]) -> dict[str, Any]:
    tables = {}
    for pair in options.pop("tables"):
        name, equals, path = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--table is {pair!r}. Expected NAME=PATH.")
        tables[name] = path
    cluster = {}
    for pair in options.pop("cluster"):
        name, equals, value = ("workers", "=", pair) if pair.isdecimal() else pair.partition("=")
        if not equals:
            raise click.UsageError(
                f"--cluster is {pair!r}. Expected KEY=VALUE. Write --cluster workers=4, or address=tcp://host:8786."
            )
        cluster[name] = int(value) if value.isdecimal() else value
    return {**options, "tables": tables, "cluster": cluster or None}


def _modules() -> tuple[ModuleType, ModuleType]:
    """What all commands work with, imported when one is called: the help does without.

    An interrupt waits until they are there: in the middle of an import some libraries swallow it, or make another error
    of it.
    """
    with deferred():
        from . import report, workflow
    return report, workflow


def _print(value: dict[str, Any], as_json: bool, text: Any) -> None:
    click.echo(json.dumps(value, default=str) if as_json else text(value))


def _progress(quiet: bool) -> Any:
    def say(message: str) -> None:
        if _came:  # where it could not be raised, or some library swallowed it in the middle of an import
            _raise(_came[0])
        if not quiet:
            click.echo(message, err=True)

    return say


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code of what happened."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    sys.unraisablehook = _unraisable
    code = _guarded(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: an interrupt would only spoil the exit code
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def _interrupt(number: int, frame: Any) -> None:
    """Raise at the first signal; the second is impatience, and would cut through what the first has begun to tidy."""
    _came.append(number)
    if len(_came) != 2:
        _raise(number)


def _unraisable(what: Any) -> None:
    """An interrupt that came where Python cannot raise it, as while a weak reference ends; `_came` knows of it."""
    if not (_came and isinstance(what.exc_value, KeyboardInterrupt | SystemExit)):
        sys.__unraisablehook__(what)


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _guarded(words: list[str]) -> int:
    """Exit code of a command line, once all is written."""
    held = io.StringIO()
    with redirect_stdout(held):
        code = _answered(words)
    written = _write(held.getvalue())
    return code or written


def _answered(words: list[str]) -> int:
    """Exit code of a command."""
    as_json, debug = "--json" in words, "--debug" in words
    try:
        code = cli.main(args=words, prog_name="tabgpu", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except TabgpuError as error:
        if debug:
            traceback.print_exc()
        return _fail(str(error), error.exit_code, as_json, type(error).__name__)
    except (KeyboardInterrupt, click.Abort):
        return _interrupted(signal.SIGINT, as_json)
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:
            return _interrupted(signal.SIGTERM, as_json)
        return 141  # click ends like this where nobody reads standard error on
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, it is a bug in tabgpu
        if _came:  # and some make another error of it
            return _interrupted(_came[0], as_json)
        traceback.print_exc()
        return _fail(f"This is a bug in tabgpu: {type(error).__name__}: {error}", 1, as_json, "Bug")
    return code or 0  # of `Exit`, which click does not raise here


def _write(text: str) -> int:
    """Write to standard output; the exit code."""
    if sys.stdout is None or not text:
        return 0
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # what is left goes nowhere, so that the interpreter does not try it again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # nobody reads on: not an error of ours
            return 141
        click.echo(
            f"tabgpu: Standard output cannot be written to: {error.strerror or error}. "
            "Expected room for what the command prints. Free some, or send it elsewhere.",
            err=True,
        )
        return 4
    return 0


def _interrupted(number: int, as_json: bool) -> int:
    if number == signal.SIGINT:
        return _fail("Interrupted.", 130, as_json, "KeyboardInterrupt")
    return _fail("Terminated.", 143, as_json, "SystemExit")


def _fail(message: str, code: int, as_json: bool, kind: str) -> int:
    click.echo(f"tabgpu: {message}", err=True)
    if as_json:
        click.echo(json.dumps({"status": "failed", "exit_code": code, "error": kind, "message": message}))
    return code
