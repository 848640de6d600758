"""Interpreters that need not start: one imports what takes seconds, and forks for every script.

    with Interpreter("torch", "nvidia.dali.fn") as warm:
        done = warm.run("examples/train.py", "--epochs", 1)

A script is the main program of its process: arguments, exit status, tracebacks, signals and the end of the interpreter
are those of ``python script.py``. Only its imports are there already, so what tests imports needs a new interpreter.
"""

from __future__ import annotations

import builtins
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, cast

__all__ = ["QUIET", "Interpreter", "Script"]

QUIET = ("error", "ignore::DeprecationWarning")
"""Warnings are errors, as in the tests themselves."""


class Script:
    """One that runs. Leaving ``with`` ends it."""

    def __init__(self, status: int, out: IO[bytes], err: IO[bytes], files: ExitStack):
        self._status = files.enter_context(os.fdopen(status))
        self._out, self._err, self._files = out, err, files
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    @property
    def stdout(self) -> str:
        """What it has written so far. Files and no pipes: nothing waits for orphans that hold them."""
        return _text(self._out)

    @property
    def stderr(self) -> str:
        return _text(self._err)

    @property
    def said(self) -> str:
        """``stderr`` without the tracebacks of torch's workers, which may be about to hand memory over when the process
        ends that asked for it."""
        start = "Traceback (most recent call last):"
        return start.join(part for part in self.stderr.split(start) if ", in _serve\n" not in part)

    def line(self, timeout: float = 60) -> str:
        """The first line that it writes; shorter if it ends before."""
        until = time.monotonic() + timeout
        while "\n" not in self.stdout and self.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        return self.stdout.partition("\n")[0]

    def poll(self) -> int | None:
        with suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its status, negative of a signal. Raises TimeoutError."""
        if self.returncode is None:
            poller = select.poll()  # select() takes numbers below 1,024 only
            poller.register(self._status, select.POLLIN)
            if not poller.poll(1000 * timeout):
                raise TimeoutError(f"process {self.pid} has not ended after {timeout} s:\n{self.stdout}{self.stderr}")
            self.returncode = int(self._status.readline())
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def abort(self) -> None:
        """The same, and where each of its threads stood is on ``stderr``."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGABRT)

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._files:
            self.kill()
            self.wait(10)


class Interpreter:
    """A process that has imported some modules.

    Args:
        modules: their names; not those that the scripts are to import themselves.
    """

    def __init__(self, *modules: str):
        self._modules = modules
        self._control, self._end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Interpreter:
        command = [sys.executable, __file__, str(self._end.fileno()), *self._modules]
        # One thread each: several would fight for the cores, and only a process with one thread may be forked.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, env=env, pass_fds=[self._end.fileno()])
        self._end.close()
        return self

    def __exit__(self, *exc: object) -> None:
        self._control.shutdown(socket.SHUT_RDWR)  # also if a forked process has a copy of it
        self._control.close()
        assert self._process is not None
        with self._process as process:
            process.wait(60)

    def start(
        self,
        *argv: object,
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        warn: Sequence[str] = (),
        session: bool = False,
    ) -> Script:
        """Run a file with arguments, or ``code`` as by ``python -c``.

        Args:
            argv: the file and its arguments.
            env: in place of this process's environment.
            cwd: another working directory.
            warn: as by ``-W``: an action, or ``action::Category``.
            session: in a session of its own, so that a signal can be sent to all that it starts.
        """
        job = {
            "argv": [str(a) for a in argv],
            "code": code,
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or os.getcwd()),
            "warn": list(warn),
            "session": session,
        }
        with ExitStack() as files:
            out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            read, write = os.pipe()
            socket.send_fds(self._control, [json.dumps(job).encode()], [out.fileno(), err.fileno(), write])
            os.close(write)
            return Script(read, out, err, files.pop_all())

    def run(self, *argv: object, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """The same, to its end. Raises TimeoutError."""
        with self.start(*argv, **options) as script:
            code = script.wait(timeout)
            return subprocess.CompletedProcess(list(map(str, argv)), code, script.stdout, script.stderr)


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 24, 0).decode()


# ---- in the other process


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """In a forked child: what it has to run. In the process that forks: ``None``, once nothing more is asked."""
    signal.signal(signal.SIGCHLD, _collect)
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not message:
            return None
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            out, err, status = fds
            pid = os.fork()
            if not pid:
                control.close()
                os.close(status)
                for fd, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
                    os.dup2(fd, number)
                    os.close(fd)
                job: dict[str, Any] = json.loads(message)
                return job
            os.write(status, b"%d\n" % pid)
            ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(status, b"%d\n" % ended)
            os._exit(0)
        for fd in fds:
            os.close(fd)


def _collect(*_: object) -> None:
    """Those that have waited for a script."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(job: dict[str, Any]) -> tuple[types.CodeType, types.ModuleType]:
    """Settle everything as a new interpreter would have it; the program, and the module that it runs in."""
    if job["session"]:
        os.setsid()
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    tempfile.tempdir = None  # of TMPDIR, which may be another one
    faulthandler.enable()
    for option in job["warn"]:
        action, _, category = option.partition("::")
        warnings.simplefilter(cast(Any, action), getattr(builtins, category or "Warning"))
    sys.warnoptions[:] = job["warn"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if job["code"] is not None:
        sys.argv, sys.path[0] = ["-c", *job["argv"]], ""
        return compile(job["code"], "<string>", "exec"), main
    sys.argv, file = job["argv"], Path(job["argv"][0]).resolve()
    sys.path[0], main.__file__ = str(file.parent), str(file)
    return compile(file.read_bytes(), str(file), "exec"), main


if __name__ == "__main__":
    for name in sys.argv[2:]:
        __import__(name)
    gc.collect()
    gc.freeze()  # collecting at the end of a script would look at a million objects of modules, several times
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        program, module = _become(wanted)
        del wanted
        exec(program, module.__dict__)
