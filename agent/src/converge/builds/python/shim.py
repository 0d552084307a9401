"""Runs one Python function: PID 1 of each replica of a Function, started as `python3 /minik8s/shim.py`.

Reads the MINIK8S_ variables and the user's module; answers `POST /` with what the handler returns for the JSON object
in the body; writes the function's output to its own stdout and stderr, each line behind the id of its call.

The parent imports the module, forks a worker, and only then listens: who can connect can call. It is one loop over
epoll that owns all connections and never waits for one; it passes the bytes of a body to an idle worker and those of
the answer back, unparsed. A worker runs one call at a time and keeps its state for the next. Workers are forked when
calls come at once, at most MINIK8S_CONCURRENCY, and stay. A call that takes too long dies with its worker, and with
nothing else.

What the author of a function has to know:
- Workers are forked after the import: they share what it made, and from then on each has its own copy. Threads that
  the import started run in the parent only, and a lock that one of them held stays locked in the workers: start
  threads in calls.
- A call goes on when its caller hangs up. What a thread prints after the end of its call carries no id, or that of the
  worker's next call. Processes that calls leave behind die with the worker.

`_socket`, `_signal`, `_struct` and `_json` are the C halves of the modules without the underscore. The Python halves
load `enum`, `re` and `selectors`, and would double the CPU time until a function listens: 10 ms, with them 18 (Python
3.11).
"""

import faulthandler
import gc
import os
import sys
import time
from select import EPOLLIN, EPOLLOUT, epoll

import _signal
import _socket
from _struct import Struct

CHUNK = 65_536  # bytes per read; as many as a pipe of Linux holds, so that one read gets all that a call has printed
HEAD_LIMIT = 16_384  # bytes of a request's head; the limits of nginx and hyper are of this size
LINE_LIMIT = 16_384  # bytes of a line of output: Docker splits longer ones, too
OUTPUT_LIMIT = 1 << 20  # bytes of output that wait for a slow reader before functions wait in their next print
LOSS_LIMIT = 16 << 20  # bytes of output that wait before more is lost: the ends of calls add theirs to a full buffer
MESSAGE_LIMIT = 8_192  # characters of an error's message, and of each line of its traceback
FRAMES_LIMIT = 64  # innermost frames of a traceback
ANSWER_SLACK = 4 << 20  # bytes by which an answer may pass the limit of results: an error with its traceback
SPARE_CONNECTIONS = 512  # beside one per call: hundreds of gateways keep some each
STALL_SECONDS = 30  # for the rest of a request that has begun, and for an answer to be taken
LINGER_SECONDS = 2  # for the peer to close first; closed with bytes unread, it would lose the answer to a reset
DRAIN_SECONDS = 1  # from SIGTERM to our end, at least: for gateways to learn of it
KEPT_SECONDS = 3  # a gateway sends no call on a connection that has been idle for 2 s; the rest is its way to us
ACCEPT_RETRY_SECONDS = 0.1  # when there is no room for a connection
NEVER = float("inf")

CALL = Struct("<IIIIIQ")  # bytes of activation id, function's name, key, heartbeat URL, body; deadline in ms since 1970
ANSWER = Struct("<IqI")  # status, microseconds in the handler or -1, bytes of the body
REASONS = {
    200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed", 411: b"Length Required",
    413: b"Content Too Large", 421: b"Misdirected Request", 431: b"Request Header Fields Too Large", 500: b"Internal Server Error",
    502: b"Bad Gateway", 503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # cgroup v2, v1
OWN_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGCHLD, _signal.SIGPIPE)


class Settings:
    """What the environment says, in the units of the variables' names."""

    def __init__(self, environ):
        def value(name, default):
            return type(default)(environ.get("MINIK8S_" + name) or default)

        self.source, self.packages = value("SOURCE", "/function"), value("PACKAGES", "/function-packages")
        self.handler, self.function = value("HANDLER", "main"), value("FUNCTION", "")
        self.port, self.concurrency = value("PORT", 8080), max(1, value("CONCURRENCY", 1))
        self.timeout_seconds = value("TIMEOUT_SECONDS", 60.0)
        self.body_limit, self.result_limit = value("BODY_LIMIT_BYTES", 1 << 20), value("RESULT_LIMIT_BYTES", 1 << 20)
        self.log_limit = value("LOG_LIMIT_BYTES", 10 << 20)


# JSON and errors ---------------------------------------------------------------------------------------------------


def json_codec():
    """`decode(text)` and `encode(value)`, without NaN: made as `json` makes its own, and its own where that fails."""

    def refuse(value):
        raise TypeError(f"a value of type {type(value).__name__} is not JSON")

    def refuse_constant(name):
        raise ValueError(f"{name} is not JSON")

    def finite(text):  # an infinity could be sent on to nobody
        number = float(text)
        if number - number != 0:
            raise ValueError(f"the number {text[:20]} is too large")
        return number

    class Context:
        strict, object_hook, object_pairs_hook, memo = True, None, None, {}
        parse_float, parse_int, parse_constant = staticmethod(finite), int, staticmethod(refuse_constant)

    def decode_and_explain(text):
        from json import JSONDecoder

        return JSONDecoder(parse_float=finite, parse_constant=refuse_constant).decode(text)

    def decode(text):
        try:
            value, end = scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, SystemError):  # SystemError: its exception is in `json.decoder`, which is not loaded
            pass
        return decode_and_explain(text)

    def encode(value):
        try:
            return "".join(make_encoder({}, refuse, plain, None, ":", ",", False, False, False)(value, 0)).encode()
        except UnicodeEncodeError:  # half of a surrogate pair: JSON can escape it, UTF-8 has no bytes for it
            return "".join(make_encoder({}, refuse, escaped, None, ":", ",", False, False, False)(value, 0)).encode()

    try:
        from _json import encode_basestring as plain, encode_basestring_ascii as escaped, make_encoder, make_scanner

        scan = make_scanner(Context)
        if encode({"ä": decode("[1, 0.5]")}).decode() == '{"ä":[1,0.5]}':
            return decode, encode
        raise ImportError("_json works otherwise here")
    except (ImportError, AttributeError, TypeError):  # not CPython, or one newer than this file
        from json import dumps

        return decode_and_explain, lambda value: dumps(value, allow_nan=False, separators=(",", ":")).encode()


decode_json, encode_json = json_codec()


def error_body(kind, message, **more):
    """The body of an answer that the handler did not give."""
    return encode_json({"error": {"type": kind, "message": message[:MESSAGE_LIMIT], **more}})


def text_of(error):
    """What an exception says, though its own `__str__` may fail."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def traceback_of(error):
    """Its lines as Python prints them, without the frames of the shim and of what lies between it and the function."""

    def is_function(file):
        return not (file == main.__code__.co_filename or file.startswith("<frozen ") or "/asyncio/" in file)

    try:
        import traceback

        frames = error.__traceback__
        while frames is not None and not is_function(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        parts = traceback.format_exception(type(error), error, frames, limit=-FRAMES_LIMIT)
        return [line[:MESSAGE_LIMIT] for line in "".join(parts).rstrip("\n").split("\n")]
    except Exception:  # the user has a `traceback.py`; the exception cannot be shown
        return [f"{type(error).__name__}: {text_of(error)}"]


# Loading: the user's module, in the parent -------------------------------------------------------------------------


def load_handler(settings):
    """Imports the module and finds the function in it. What the module raises passes through."""
    os.chdir(settings.source)
    path = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]
    if os.path.isdir(settings.packages):
        # Behind the standard library, but before what the base image has installed: requirements.txt decides.
        installed = [at for at, folder in enumerate(path) if folder.endswith(("site-packages", "dist-packages"))]
        path.insert(installed[0] if installed else len(path), settings.packages)
    sys.path[:] = [settings.source, *path]

    module_name, _, name = settings.handler.rpartition(".")
    if not module_name:
        module_name = next((file for file in ("main", "func") if os.path.exists(file + ".py")), None)
        if module_name is None:
            raise LookupError(f"there is neither main.py nor func.py in {settings.source}")
    __import__(module_name)
    handler = getattr(sys.modules[module_name], name, None)
    if not callable(handler):
        raise LookupError(f"the module `{module_name}` has no function `{name}`")
    if getattr(getattr(handler, "__code__", None), "co_flags", 0) & 0x80:  # `async def`: for all workers at once
        import asyncio  # noqa: F401
    return handler


def fail_to_load(handler, error):
    """Says why there is no function here, and ends the process."""
    is_ours = type(error) is LookupError
    reason = text_of(error) if is_ours else f"{type(error).__name__}: {text_of(error)}"
    hint = " (is it in requirements.txt?)" if isinstance(error, ModuleNotFoundError) else ""
    lines = [] if is_ours else traceback_of(error)
    lines.append(f"minik8s: cannot load the handler `{handler}`: {' '.join(reason.split())}{hint}")
    flush_output()
    os.write(2, "".join(line + "\n" for line in lines).encode(errors="backslashreplace"))
    os._exit(1)  # not sys.exit, for which threads of the module would keep us


# A worker: one call after the other, in a process of its own -------------------------------------------------------


def serve_calls(channel, handler, settings):
    """Takes calls from the parent until the parent is gone."""
    process = os.getpid()
    while (call := receive_call(channel)) is not None:
        names, body = call
        os.environ.update(names)
        status, micros, answer = answer_call(handler, body, settings)
        flush_output()
        if os.getpid() != process:  # the function forked, and its child returned as well
            os._exit(0)
        unsent = memoryview(ANSWER.pack(status, micros, len(answer)) + answer)
        while unsent:
            unsent = unsent[os.write(channel, unsent) :]


def receive_call(channel):
    """The environment of a call, by OpenWhisk's names, and its body; None at the end."""
    data = bytearray()
    while len(data) < CALL.size or len(data) < CALL.size + sum(CALL.unpack_from(data)[:5]):
        if not (chunk := os.read(channel, CHUNK)):
            return None
        data += chunk
    activation_bytes, function_bytes, key_bytes, heartbeat_bytes, _, deadline_ms = CALL.unpack_from(data)
    end_of_id = CALL.size + activation_bytes
    end_of_name = end_of_id + function_bytes
    end_of_key = end_of_name + key_bytes
    body = end_of_key + heartbeat_bytes
    names = {
        "__OW_ACTIVATION_ID": data[CALL.size : end_of_id].decode(),
        "__OW_ACTION_NAME": data[end_of_id:end_of_name].decode(),
        "MINIK8S_IDEMPOTENCY_KEY": data[end_of_name:end_of_key].decode(),
        "MINIK8S_HEARTBEAT_URL": data[end_of_key:body].decode(),
        "__OW_DEADLINE": str(deadline_ms),
    }
    return names, data[body:]


def answer_call(handler, body, settings):
    """Status, microseconds in the handler (-1: it was not called), body of the answer."""
    try:
        params = decode_json(body.decode().strip(" \t\n\r"))
    except (ValueError, RecursionError) as error:
        return 400, -1, error_body("BadRequest", f"the body is not JSON: {error}")
    if not isinstance(params, dict):
        return 400, -1, error_body("BadRequest", "the body is not a JSON object")
    started_ns = time.perf_counter_ns()
    try:
        result = handler(params)
        if hasattr(type(result), "__await__"):
            result = run_async(result)
    except BaseException as error:  # sys.exit and KeyboardInterrupt, too: they end this call only
        micros = (time.perf_counter_ns() - started_ns) // 1000
        return 500, micros, raised(error)
    micros = (time.perf_counter_ns() - started_ns) // 1000
    try:
        if not isinstance(result, dict):
            raise TypeError(f"the function returned {type(result).__name__}, not a dict")
        answer = encode_json(result)
        if len(answer) > settings.result_limit:
            raise ValueError(f"the result has {len(answer)} bytes; the limit is {settings.result_limit}")
    except Exception as error:  # whatever a class of the user's raises when it is read
        return 502, micros, error_body("InvalidResult", text_of(error))
    return 200, micros, answer


def run_async(awaitable):
    """What an `async def` handler returns, in an event loop of this call's own."""
    import asyncio

    async def wait():
        return await awaitable

    return asyncio.run(wait())


def raised(error):
    """The answer to a call whose handler raised. The log gets the traceback, too."""
    lines, message = traceback_of(error), text_of(error)
    try:
        sys.stderr.write("\n".join(lines) + "\n")
    except Exception:  # the function closed or replaced it
        pass
    if isinstance(error, SystemExit):
        message = f"the function called sys.exit({message})"
    return error_body(type(error).__name__, message, stackTrace=lines)


def flush_output():
    """Empties the buffers of Python, and those of C if `ctypes` is loaded, into what the parent reads."""
    flushes = [stream.flush for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if stream]
    if (ctypes := sys.modules.get("ctypes")) is not None:
        flushes.append(lambda: ctypes.pythonapi.fflush(None))
    for flush in flushes:
        try:
            flush()
        except Exception:  # closed or replaced by the function
            pass


# The parent's files: none of them is ever waited for ---------------------------------------------------------------


class Stream:
    """A file in the loop. What its other side does not take yet is kept, and sent when it does."""

    def __init__(self, replica, fd, interest=EPOLLIN):
        os.set_blocking(fd, False)
        self.replica, self.fd, self.interest, self.unsent = replica, fd, interest, bytearray()
        replica.watch(self, interest)

    def read(self):
        """What is there, at most a chunk: b"" at the end, None when there is nothing now."""
        try:
            return os.read(self.fd, CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # the other side was reset, or died
            return b""

    def send(self, data):
        """Sends or keeps all of `data`. False: the other side is gone."""
        if self.unsent:
            self.unsent += data
            return True
        try:
            sent = os.write(self.fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(data):
            self.unsent += memoryview(data)[sent:]
            self.replica.watch(self, self.interest | EPOLLOUT)
        return True

    def send_rest(self):
        """Sends what was kept, as far as possible. False: the other side is gone."""
        is_there = True
        try:
            del self.unsent[: os.write(self.fd, self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()
            is_there = False
        if not self.unsent:
            self.replica.watch(self, self.interest)
        return is_there

    def close(self):
        if self.fd is not None:
            self.replica.watch(self, 0)
            os.close(self.fd)
            self.fd = None


class Output(Stream):
    """Our own stdout or stderr, which Docker reads."""

    def __init__(self, replica, fd):
        super().__init__(replica, fd, 0)
        self.waiting = []  # pipes of workers that are not read until there is room

    def is_full(self):
        return len(self.unsent) > OUTPUT_LIMIT

    def send(self, data):
        if len(self.unsent) < LOSS_LIMIT:
            super().send(data)

    def on_event(self):
        self.send_rest()
        if not self.is_full():
            waiting, self.waiting = self.waiting, []
            for pipe in waiting:
                if pipe.fd is not None:
                    self.replica.watch(pipe, EPOLLIN)


class LogPipe(Stream):
    """A worker's stdout or stderr: puts the call's id before each line, and ends at the call's limit."""

    def __init__(self, worker, fd, output):
        super().__init__(worker.replica, fd)
        self.worker, self.output, self.line = worker, output, b""

    def on_event(self):
        if self.output.is_full():  # the function will wait in a print
            self.replica.watch(self, 0)
            self.output.waiting.append(self)
        else:
            self.pass_on()

    def pass_on(self):
        """One chunk: a function that prints without end gets no more of our time."""
        if not (data := self.fd is not None and self.read()):
            if data == b"":
                self.close()
            return
        worker, room = self.worker, self.worker.log_room
        worker.log_room -= len(data)
        if room < 0:
            return
        lines, newline, self.line = (self.line + data[:room]).rpartition(b"\n")
        if newline:
            self.output.send(worker.prefix + lines.replace(b"\n", b"\n" + worker.prefix) + newline)
        if worker.log_room < 0 or len(self.line) > LINE_LIMIT:
            self.end_line()
        if worker.log_room < 0:
            worker.say(f"the output of this call was cut after {self.replica.settings.log_limit} bytes")

    def end_line(self):
        if self.line:
            self.output.send(self.worker.prefix + self.line + b"\n")
            self.line = b""


# The parent: workers -----------------------------------------------------------------------------------------------


class Worker(Stream):
    """A forked process, behind the channel to it, and the call that it runs."""

    def __init__(self, replica, pid, channel, stdout, stderr):
        super().__init__(replica, channel)
        self.pid, self.received = pid, bytearray()
        self.prefix, self.log_room = b"", replica.settings.log_limit
        self.pipes = (LogPipe(self, stdout, replica.stdout), LogPipe(self, stderr, replica.stderr))
        self.connection, self.started = None, 0.0  # while it runs a call

    def start(self, connection, activation, call):
        """Hands a call over. False: the process is dead, and has not seen it."""
        if not self.send(call):
            return False
        self.prefix, self.log_room = b"[" + activation + b"] ", self.replica.settings.log_limit
        self.connection, self.started = connection, time.monotonic()
        return True

    def on_event(self):
        if self.unsent:
            self.send_rest()  # if it died, `reap` learns of it
        if (data := self.read()) is None:
            return
        self.received += data
        if not data:
            self.replica.watch(self, 0)
        elif len(self.received) >= ANSWER.size:
            status, micros, size = ANSWER.unpack_from(self.received)
            limit = self.replica.settings.result_limit + ANSWER_SLACK
            if self.connection is None or status not in REASONS or size > limit:
                self.kill()  # the function has written into our channel
            elif len(self.received) >= ANSWER.size + size:
                body, self.received = self.received[ANSWER.size :], bytearray()
                self.finish(status, micros, body)

    def finish(self, status, micros, body):
        """The answer has come, and before it all that the call has printed."""
        self.end_output()
        self.prefix = b""
        self.replica.idle.append(self)
        self.end_call(status, micros, body)

    def end_output(self):
        for pipe in self.pipes:
            pipe.pass_on()
            pipe.end_line()

    def end_call(self, status, micros, body):
        connection, self.connection = self.connection, None
        self.replica.running -= 1
        self.replica.set_timer(self, NEVER)
        connection.end_call(status, body, b"X-Handled-Micros: %d\r\n" % micros if micros >= 0 else b"")

    def fail_call(self, status, kind, message):
        """Answers in the place of a process that will not."""
        self.say(message)
        self.end_call(status, int((time.monotonic() - self.started) * 1e6), error_body(kind, message))

    def on_timer(self):
        self.kill()
        self.fail_call(504, "Timeout", f"the call was ended after {time.monotonic() - self.started:.3f} s")

    def kill(self):
        """Ends the process and those that it started; `reap` takes it away."""
        if self in self.replica.idle:
            self.replica.idle.remove(self)
        try:
            os.killpg(self.pid, _signal.SIGKILL)
        except ProcessLookupError:
            pass

    def on_death(self, wait_status):
        """The process is gone. Its last answer may still lie in the channel."""
        before = -1
        while self.connection is not None and before < len(self.received):
            before = len(self.received)
            self.on_event()
        self.kill()
        self.end_output()
        for stream in (*self.pipes, self):
            stream.close()
        if self.connection is not None:
            self.fail_call(502, *self.replica.cause_of_death(wait_status))

    def say(self, message):
        self.replica.stderr.send(self.prefix + b"minik8s: " + message.encode() + b"\n")


def signal_name(number):
    """`SIGSEGV` for 11, without the module `signal`. Of two names the first: SIGABRT, not SIGIOT."""
    names = [name for name, value in vars(_signal).items() if value == number and name.startswith("SIG")]
    return min((name for name in names if "_" not in name), default=f"signal {number}")


def count_oom_kills(files=OOM_COUNTERS):
    """How many processes of this container the kernel has ended for their memory; None where it does not say."""
    for file in files:
        try:
            with open(file, "rb") as counters:
                words = counters.read().split()
            return int(words[words.index(b"oom_kill") + 1])
        except (OSError, ValueError):
            pass
    return None


# The parent: connections -------------------------------------------------------------------------------------------


class Refused(Exception):
    """Status, error type and message for a request that is not read to its end."""


class Request:
    """What counts of a request's head. `head` includes the end of its last line."""

    def __init__(self, head, body_limit):
        self.is_call = head.startswith(b"POST / HTTP/1.1\r\n")
        if not self.is_call:
            self.check_line(head[: head.index(b"\r\n")].split(b" "))
        lowered = head.lower()

        def value_of(name):
            if (at := lowered.find(name)) < 0:
                return b""
            return head[at + len(name) : head.index(b"\r\n", at + 2)].strip()

        length = value_of(b"\r\ncontent-length:")
        if b"\r\ntransfer-encoding:" in lowered or (self.is_call and not length):
            raise Refused(411, "LengthRequired", "a body needs a Content-Length")
        if (length and not is_number(length)) or lowered.count(b"\r\ncontent-length:") > 1:
            raise Refused(400, "BadRequest", "Content-Length is not one number")
        self.body_bytes = int(length or 0)
        if self.body_bytes > body_limit:
            raise Refused(413, "TooLarge", f"the body has {self.body_bytes} bytes; the limit is {body_limit}")
        self.closes = b"close" in value_of(b"\r\nconnection:").lower()
        self.activation = value_of(b"\r\nx-activation-id:") or os.urandom(16).hex().encode()
        self.function = value_of(b"\r\nx-function:")
        self.key = value_of(b"\r\nidempotency-key:")
        self.heartbeat = value_of(b"\r\nx-heartbeat-url:")
        self.timeout_ms = value_of(b"\r\nx-timeout-ms:")
        # From a gateway of an older version, by its own clock.
        self.deadline_ms = b"" if self.timeout_ms else value_of(b"\r\nx-deadline:")
        if not self.activation.replace(b"-", b"").isalnum() or len(self.activation) > 128:
            raise Refused(400, "BadRequest", "X-Activation-Id is not of letters, digits and dashes")
        if not (b"x" + self.function).translate(None, b"-._/").isalnum():
            raise Refused(400, "BadRequest", "X-Function is not namespace/name")
        for name, value in (("Idempotency-Key", self.key), ("X-Heartbeat-Url", self.heartbeat)):
            if not value.isascii() or b"\0" in value or len(value) > 512:
                raise Refused(400, "BadRequest", f"{name} has more than 512 characters, or some that are not ASCII")
        for name, value in (("X-Timeout-Ms", self.timeout_ms), ("X-Deadline", self.deadline_ms)):
            if value and not is_number(value):
                raise Refused(400, "BadRequest", f"{name} is not a number of milliseconds")

    @staticmethod
    def check_line(words):
        """Lets `GET /` pass, and refuses all else."""
        if len(words) != 3 or words[2] != b"HTTP/1.1":
            raise Refused(400, "BadRequest", "this is not HTTP/1.1")
        if words[1] != b"/":
            raise Refused(404, "NotFound", "only / is served")
        if words[0] != b"GET":
            raise Refused(405, "MethodNotAllowed", "only POST and GET are served")


def is_number(text):
    return text.isdigit() and len(text) < 16


class Connection(Stream):
    """One caller: its requests, one after the other."""

    def __init__(self, replica, fd):
        super().__init__(replica, fd)
        self.received, self.request, self.idle_since = bytearray(), None, time.monotonic()
        self.is_in_call = self.closes = self.lingers = False
        replica.connections[self] = None

    def on_event(self):
        if self.unsent:
            if not self.send_rest():
                self.close()
            elif not self.unsent:
                self.end_answer()
            if self.fd is None:
                return
        if (data := self.read()) is None:
            return
        if not data:
            self.close()  # a call goes on without it
        elif not self.lingers:
            self.received += data
            if len(self.received) > CHUNK + HEAD_LIMIT + self.replica.settings.body_limit:
                self.close()  # it sends on and on and takes no answer
            else:
                self.serve()

    def serve(self):
        """Serves all requests that have come in full, but waits for the end of each."""
        while not (self.is_in_call or self.unsent or self.lingers or self.fd is None) and self.serve_one():
            pass

    def serve_one(self):
        try:
            if self.request is None:
                self.request = self.take_head()
        except Refused as refused:
            status, kind, message = refused.args
            self.closes = True
            self.answer(status, error_body(kind, message))
            return False
        request = self.request
        if request is None or len(self.received) < request.body_bytes:
            if (self.received or request) and self not in self.replica.timers:
                self.replica.set_timer(self, time.monotonic() + STALL_SECONDS)
            return False
        body = self.received[: request.body_bytes]
        del self.received[: request.body_bytes]
        self.request, self.closes = None, request.closes
        self.replica.set_timer(self, NEVER)
        if request.is_call:
            self.replica.start_call(self, request, body)
        else:
            state = b"draining" if self.replica.is_draining else b"ready"
            self.answer(200, b'{"state":"%b","inFlight":%d}' % (state, self.replica.running))
        return True

    def take_head(self):
        """The next request's head; None while it is incomplete."""
        if (end := self.received.find(b"\r\n\r\n", 0, HEAD_LIMIT)) < 0:
            if len(self.received) >= HEAD_LIMIT:
                raise Refused(431, "TooLarge", f"the head has more than {HEAD_LIMIT} bytes")
            return None
        head = bytes(self.received[: end + 2])
        del self.received[: end + 4]
        return Request(head, self.replica.settings.body_limit)

    def end_call(self, status, body, headers):
        self.is_in_call = False
        if self.fd is not None:
            self.answer(status, body, headers)
            self.serve()

    def answer(self, status, body, headers=b""):
        self.closes, self.idle_since = self.closes or self.replica.is_draining, time.monotonic()
        head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n"
        head %= (status, REASONS[status], len(body), headers, b"Connection: close\r\n" if self.closes else b"")
        if not self.send(head + body):
            self.close()
        elif self.unsent:
            self.replica.set_timer(self, time.monotonic() + STALL_SECONDS)
        elif self.closes:
            self.linger()

    def end_answer(self):
        """All of an answer that had to wait is sent."""
        self.idle_since = time.monotonic()
        self.replica.set_timer(self, NEVER)
        if self.closes:
            self.linger()
        else:
            self.serve()

    def linger(self):
        """Closes our half, and waits for the peer to close its own."""
        self.lingers = True
        self.replica.set_timer(self, time.monotonic() + LINGER_SECONDS)
        half = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, self.fd)
        try:
            half.shutdown(_socket.SHUT_WR)
        except OSError:  # it has gone already
            pass
        half.detach()

    def on_timer(self):
        self.close()

    def close(self):
        self.replica.set_timer(self, NEVER)
        self.replica.connections.pop(self, None)
        super().close()


class Listener(Stream):
    """The port. It is open only while there is a function to call."""

    def __init__(self, replica, port):
        self.socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        self.socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)  # connections inherit it
        self.socket.bind(("0.0.0.0", port))
        self.socket.listen(1024)
        super().__init__(replica, self.socket.fileno())

    def on_event(self):
        replica = self.replica
        limit = SPARE_CONNECTIONS + replica.settings.concurrency
        while len(replica.connections) < limit or replica.close_idlest():
            try:
                Connection(replica, self.socket._accept()[0])
            except BlockingIOError:
                return
            except OSError:  # no file or no memory is left
                replica.close_idlest()
                break
        replica.watch(self, 0)
        replica.set_timer(self, time.monotonic() + ACCEPT_RETRY_SECONDS)

    def on_timer(self):
        self.replica.watch(self, self.interest)


class Signals(Stream):
    """The pipe into which Python writes the numbers of the signals that came."""

    def __init__(self, replica):
        out, self.end = os.pipe()
        super().__init__(replica, out)
        os.set_blocking(self.end, False)
        _signal.set_wakeup_fd(self.end, warn_on_full_buffer=False)
        for number in OWN_SIGNALS:
            _signal.signal(number, _signal.SIG_IGN if number == _signal.SIGPIPE else lambda *_: None)

    def on_event(self):
        numbers = self.read() or b""
        if _signal.SIGCHLD in numbers:
            self.replica.reap()
        if _signal.SIGTERM in numbers or _signal.SIGINT in numbers:
            self.replica.drain()


# The parent --------------------------------------------------------------------------------------------------------


class Replica:
    """The loop: whose file is ready, whose time has come, who runs a call and who could."""

    def __init__(self, settings, handler, inherited_signals):
        self.settings, self.handler, self.inherited_signals = settings, handler, inherited_signals
        self.epoll, self.watched = epoll(), {}
        self.timers, self.next_timer = {}, NEVER
        self.workers, self.idle, self.running = {}, [], 0
        self.connections = {}  # in the order in which they came
        self.is_draining = self.is_drained = False
        self.oom_kills = count_oom_kills()
        self.stdout, self.stderr = Output(self, 1), Output(self, 2)
        self.listener = None
        self.signals = Signals(self)

    def run(self):
        """Serves until SIGTERM and the end of the last call."""
        if (worker := self.spawn()) is not None:
            self.idle.append(worker)
        self.listener = Listener(self, self.settings.port)
        while not self.is_done():
            wait = -1 if self.next_timer == NEVER else max(0.0, self.next_timer - time.monotonic())
            for fd, _ in self.epoll.poll(wait, 256):
                # An event only says "look": its file may have been closed, and its number given anew, in this round.
                if (stream := self.watched.get(fd)) is not None:
                    stream.on_event()
            if time.monotonic() >= self.next_timer:
                self.run_timers(time.monotonic())
        for worker in list(self.workers.values()):
            worker.kill()
        for output in (self.stdout, self.stderr):
            os.set_blocking(output.fd, True)
            output.send_rest()

    def is_done(self):
        """No call runs, no answer is under way, and no connection is left on which a gateway may send a call."""
        if not self.is_drained or self.running > 0 or any(connection.unsent for connection in self.connections):
            return False
        last = max((one.idle_since for one in self.connections if not one.lingers), default=-NEVER)
        if last + KEPT_SECONDS <= time.monotonic():
            return True
        self.set_timer(self, last + KEPT_SECONDS)
        return False

    def watch(self, stream, interest):
        """Calls the stream's `on_event` when it is ready for `interest`; never, if that is 0."""
        fd = stream.fd
        if fd not in self.watched:
            if interest:
                self.epoll.register(fd, interest)
                self.watched[fd] = stream
        elif interest:
            self.epoll.modify(fd, interest)
        else:
            self.epoll.unregister(fd)
            del self.watched[fd]

    def set_timer(self, owner, at):
        """Calls the owner's `on_timer` then, and not at the time that was set before. NEVER: takes that back."""
        if at == NEVER:
            self.timers.pop(owner, None)  # `next_timer` may now be too early, which costs one look
        else:
            self.timers[owner] = at
            self.next_timer = min(self.next_timer, at)

    def run_timers(self, now):
        for owner, at in list(self.timers.items()):
            if at <= now and self.timers.pop(owner, None) is not None:
                owner.on_timer()
        self.next_timer = min(self.timers.values(), default=NEVER)

    def close_idlest(self):
        """Closes the oldest connection that has no request. False: there is none."""
        for connection in self.connections:
            if not (connection.is_in_call or connection.unsent or connection.received or connection.request):
                connection.close()
                return True
        return False

    def start_call(self, connection, request, body):
        """Hands a call to a worker, or refuses it before it has begun."""
        own = self.settings.function.encode()
        if own and request.function not in (b"", own):
            # The pod that had this address before was another function's, and a gateway has not learned that yet.
            message = f"this replica is of function {self.settings.function}"
            return connection.answer(421, error_body("OtherFunction", message), b"X-Minik8s-Busy: other-function\r\n")
        if self.is_draining or self.running >= self.settings.concurrency:
            return self.refuse(connection, "draining" if self.is_draining else "busy")
        now_ms = int(time.time() * 1000)
        deadline_ms = now_ms + int(self.settings.timeout_seconds * 1000)
        if request.timeout_ms:
            deadline_ms = min(deadline_ms, now_ms + int(request.timeout_ms))
        if request.deadline_ms:
            deadline_ms = min(deadline_ms, int(request.deadline_ms))
        if deadline_ms <= now_ms:
            return connection.answer(504, error_body("Timeout", "the deadline had passed before the call began"))
        function = b"/" + (request.function or own)
        parts = (request.activation, function, request.key, request.heartbeat, body)
        call = b"".join((CALL.pack(*map(len, parts), deadline_ms), *parts))
        while (worker := self.idle.pop() if self.idle else self.spawn()) is not None:
            if worker.start(connection, request.activation, call):
                connection.is_in_call = True
                self.running += 1
                self.set_timer(worker, time.monotonic() + (deadline_ms - now_ms) / 1000)
                return
        self.refuse(connection, "out of processes")

    def refuse(self, connection, state):
        connection.answer(503, error_body("Busy", f"this replica is {state}"), b"X-Minik8s-Busy: 1\r\n")

    def spawn(self):
        """Forks a worker; None when there is no process, file or memory for one."""
        files = []
        try:
            ours, theirs = (end.detach() for end in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM))
            files += (ours, theirs)
            files += (stdout := os.pipe())
            files += (stderr := os.pipe())
            gc.freeze()  # no collection in a worker writes to, and so copies, what all share now
            pid = os.fork()
        except OSError:
            for fd in files:
                os.close(fd)
            return None
        if pid == 0:
            self.be_worker(theirs, stdout[1], stderr[1], files)
        try:
            os.setpgid(pid, pid)  # here, too: `kill` may come before the child has run at all
        except OSError:
            pass
        for fd in (theirs, stdout[1], stderr[1]):
            os.close(fd)
        worker = self.workers[pid] = Worker(self, pid, ours, stdout[0], stderr[0])
        return worker

    def be_worker(self, channel, stdout, stderr, files):
        """The child's life: gives back what is the parent's, then serves calls. Does not return."""
        try:
            os.setpgid(0, 0)  # for `kill` to meet the processes that calls start
            _signal.set_wakeup_fd(-1)
            for number, action in self.inherited_signals.items():
                _signal.signal(number, action)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            streams = [*self.connections, self.signals, self.listener, *self.workers.values()]
            streams += [pipe for worker in self.workers.values() for pipe in worker.pipes]
            own = [self.epoll.fileno(), self.signals.end, *files, *(stream.fd for stream in streams if stream)]
            for fd in own:
                if fd is not None and fd != channel:
                    os.close(fd)
            try:
                with open("/proc/self/oom_score_adj", "w") as score:  # out of memory: take a worker, not the parent
                    score.write("1000")
            except OSError:
                pass
            serve_calls(channel, self.handler, self.settings)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            flush_output()
            os._exit(1)

    def reap(self):
        """Takes away dead workers, and as PID 1 the processes that they left behind."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (worker := self.workers.pop(pid, None)) is not None:
                worker.on_death(wait_status)

    def cause_of_death(self, wait_status):
        """Error type and message for the call that a process ran when it ended."""
        if not os.WIFSIGNALED(wait_status):
            return "Crashed", f"the function's process ended with exit code {os.WEXITSTATUS(wait_status)}"
        name = signal_name(os.WTERMSIG(wait_status))
        if name != "SIGKILL":
            return "Crashed", f"the function's process was ended by {name}"
        before, self.oom_kills = self.oom_kills, count_oom_kills()
        if before is not None and self.oom_kills is not None and self.oom_kills > before:
            return "OutOfMemory", "the function's process was ended: the container reached its memory limit"
        return "Crashed", "the function's process was ended by SIGKILL; perhaps the container was out of memory"

    def drain(self):
        """Refuses calls from now on. The loop ends with the last one, but lets gateways learn of it first, and answers
        on connections that they keep for as long as they may send on them: one that is closed under a call loses it."""
        if not self.is_draining:
            self.is_draining = True
            self.set_timer(self, time.monotonic() + DRAIN_SECONDS)

    def on_timer(self):
        self.is_drained = True


def prepare_process():
    """Before the module is loaded: what it shall find."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=False)
    faulthandler.enable(2)  # a crash in C code says where
    if hasattr(sys, "set_int_max_str_digits") and "PYTHONINTMAXSTRDIGITS" not in os.environ:
        sys.set_int_max_str_digits(0)  # numbers of any length; body limit and timeout bound what they cost
    for number in (_signal.SIGTERM, _signal.SIGINT):  # PID 1 gets no signal that it does not handle
        _signal.signal(number, stop_loading)


def stop_loading(*_):
    os._exit(0)


def main():
    prepare_process()
    settings = Settings(os.environ)
    try:
        handler = load_handler(settings)
    except BaseException as error:  # sys.exit in the module, too
        fail_to_load(settings.handler, error)
    flush_output()
    defaults = {_signal.SIGTERM: _signal.SIG_DFL, _signal.SIGINT: _signal.default_int_handler}
    inherited = {number: _signal.getsignal(number) or _signal.SIG_DFL for number in OWN_SIGNALS}
    inherited.update({number: default for number, default in defaults.items() if inherited[number] is stop_loading})
    Replica(settings, handler, inherited).run()
    os._exit(0)  # not sys.exit, for which threads of the module would keep us


if __name__ == "__main__":
    main()
