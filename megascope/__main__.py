"""The console entry: one parser over all verbs, one place where a user's error becomes one line and an exit code."""

from __future__ import annotations

import argparse
import difflib
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from . import __version__
from .store.errors import EXIT_MEANING, Exit, MegascopeError, Usage
from .store.signals import Ended, ending
from .streams import guarded
from .verbs import REGISTRY, verb


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line with a suggestion, and options stand anywhere among a verb's arguments."""

    _mixing = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Options first, then the rest: else an argument that may be missing is taken for missing at an option."""
        if self._mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        raise Usage(f"cannot read the command line of {self.prog}", message, f"see {self.prog} --help")


def _parser(names: Iterable[str]) -> _Parser:
    """A parser of the verbs of these names: a verb brings its modules, and none waits for another's."""
    codes = ", ".join(f"{code.value} {meaning}" for code, meaning in EXIT_MEANING.items())
    parser = _Parser(
        prog="megascope",
        description="Record, keep and question what happens inside a persistent GPU megakernel.",
        epilog=f"Exit codes: {codes}. Data goes to stdout, notes to stderr.",
    )
    parser.add_argument("--version", action="version", version=f"megascope {__version__}")
    choices = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    for one in map(verb, names):
        text = type(one).__doc__ or ""
        sub = choices.add_parser(
            one.name,
            help=text.splitlines()[0].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_arguments(sub)
        sub.set_defaults(run=one.run)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Raises MegascopeError for a user's error."""
    # What stands after `--` is another command's, and none of argparse's business.
    at = list(argv).index("--") if "--" in argv else len(argv)
    argv, command = argv[:at], argv[at + 1 :]
    first = next((a for a in argv if not a.startswith("-")), None)
    if first is not None and first not in REGISTRY:
        close = difflib.get_close_matches(first, REGISTRY, 1)
        todo = f"did you mean {close[0]}?" if close else f"it has {', '.join(REGISTRY)}"
        raise Usage("cannot read the command line", f"megascope has no verb {first!r}", todo)
    # An option before the verb is the parser's own, and its help is of all verbs.
    ahead = argv[0] if argv else ""
    parser = _parser([ahead] if ahead in REGISTRY else [] if ahead == "--version" else REGISTRY)
    args = parser.parse_args(argv)
    if args.verb is None:
        parser.print_help()
        return Exit.USAGE
    if command and args.verb != "capture":
        raise Usage(f"cannot run {args.verb}", f"it takes no command after --: {' '.join(command)!r}")
    args.command = list(command)
    code: int = args.run(args)
    return code


def main() -> int:
    """The `megascope` command."""
    with guarded(), ending() as ended:
        try:
            return _ended(sys.argv[1:])
        except MegascopeError as e:
            if e.excerpt:
                print(e.excerpt, file=sys.stderr)
            print(f"megascope: {e}", file=sys.stderr)
            return int(e.code)
        except KeyboardInterrupt as e:
            return _told(e.code if isinstance(e, Ended) else Exit.INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): nothing is wrong.
            return 128 + signal.SIGPIPE
        except Exception:
            # What a signal interrupts may say so with an error of its own.
            if not ended.is_set():
                raise
            return _told(ended.code)


def _ended(argv: Sequence[str]) -> int:
    """The exit code, once all output is written."""
    try:
        code = run(argv)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else Exit.DONE if e.code is None else Exit.FAILED
    sys.stdout.flush()
    return code


def _told(code: Exit) -> int:
    print(f"megascope: {EXIT_MEANING[code]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
