"""What the runtime of Python functions promises, asked of a real process: `python3 test_shim.py`.

The rows of its HTTP contract, OpenWhisk's behaviours, and what a function must not be able to do to its replica.
"""

import contextlib
import ctypes
import http.client
import importlib.util
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SHIM = os.path.join(HERE, "shim.py")
PATIENCE_SECONDS = 15
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)  # our own JSON, too, has numbers of any length


def wait_until(condition, what):
    """Looks again and again; fails when it never comes true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.005)
    return value


class Lines:
    """Reads a pipe to its end, beside the test."""

    def __init__(self, pipe):
        self.data = bytearray()
        self.reader = threading.Thread(target=self.read, args=(pipe,), daemon=True)
        self.reader.start()

    def read(self, pipe):
        while chunk := os.read(pipe.fileno(), 1 << 16):
            self.data += chunk
        pipe.close()

    def all(self):
        return bytes(self.data).decode().splitlines()

    def wait_for(self, line):
        wait_until(lambda: line in self.all(), f"the line {line!r} in {self.all()[-20:]}")


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()
        self.json = json.loads(self.body)
        self.error = self.json.get("error", {})


class Shim:
    """A running shim, with a folder of its own as the function's."""

    def __init__(self, files, env=None, before=None, is_read=True):
        self.folder, self.connections = tempfile.TemporaryDirectory(), []
        for name, text in files.items():
            path = os.path.join(self.folder.name, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        env = {f"MINIK8S_{name}": str(value) for name, value in (env or {}).items()}
        self.process = subprocess.Popen(
            [sys.executable, "-u", SHIM],
            env={**os.environ, "MINIK8S_SOURCE": self.folder.name, "MINIK8S_PORT": str(self.port), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before,
        )
        if is_read:
            self.out, self.err = Lines(self.process.stdout), Lines(self.process.stderr)

    def __enter__(self):
        try:
            wait_until(self.listens, "the port accepts")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close_connections(self):
        for connection in self.connections:
            connection.close()

    def close(self):
        self.close_connections()
        self.process.kill()
        self.process.wait()
        for lines in (getattr(self, "out", None), getattr(self, "err", None)):
            lines and lines.reader.join(PATIENCE_SECONDS)
        self.folder.cleanup()

    def listens(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the shim ended: {self.err.all()}")
        with contextlib.suppress(OSError):
            self.raw().close()
            return True
        return False

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def connect(self):
        self.connections.append(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS))
        return self.connections[-1]

    def call(self, params, connection=None, method="POST", path="/", **headers):
        """Headers are written `x_timeout_ms=…`; a body that is not a dict goes as it is."""
        body = json.dumps(params) if isinstance(params, dict) else params
        own = connection or self.connect()
        own.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = Answer(own.getresponse())
        if connection is None:
            self.connections.pop().close()
        return answer

    def begin(self, params, **headers):
        """A call whose answer nobody waits for yet; `Answer(its.getresponse())` does."""
        connection = self.connect()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/", json.dumps(params), names)
        return connection

    @contextlib.contextmanager
    def stopped(self):
        """Meanwhile the parent does nothing: what happens then, it learns of at once."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def in_flight(self):
        return self.call(None, method="GET").json["inFlight"]

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def exists(self, name):
        wait_until(lambda: os.path.exists(self.path(name)), f"the function makes {name}")

    def touch(self, name):
        with open(self.path(name), "w"):
            pass


WAIT = """
import os, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.002)
def touch(name):
    open(name, "w").close()
"""
#: Does what its parameters say.
MAIN = WAIT + """
import subprocess, sys
count = 0
def main(params):
    global count
    count += 1
    if "touch" in params:
        touch(params["touch"])
    if "wait" in params:
        wait_for(params["wait"])
    if "code" in params:
        scope = dict(globals(), params=params)
        exec(params["code"], scope)
        return scope["result"]
    return {"count": count, "pid": os.getpid(), "params": params}
"""


def one(answer):
    """A module that returns one thing."""
    return {"main.py": f"def main(params):\n    return {answer}\n"}


class Answers(unittest.TestCase):
    """OpenWhisk's contract, and what each status means."""

    def test_an_object_goes_in_and_comes_out_whatever_it_holds(self):
        params = {
            "nested": {"list": [1, [2, {"three": None}], True, False], "empty": {}, "none": []},
            "unicode": "äöü → 日本語 🎉 \u0000 \" \\ \n",
            "ключ": "значение",
            "big": 2**200,
            "negative": -(10**30),
            "very big": 7**6000,
            "float": 0.1,
            "small": 5e-324,
            "half a pair": "\ud83c",
        }
        with Shim(one("params")) as shim:
            answer = shim.call(params)
            self.assertEqual(answer.status, 200)
            self.assertEqual(answer.json, params)
            self.assertEqual(answer.headers["Content-Type"], "application/json")
            self.assertEqual(shim.call({"a": "ä", "b": 1}).body, '{"a":"ä","b":1}'.encode())
            self.assertEqual(shim.call({}).json, {})
            self.assertEqual(shim.call(b' \r\n{"a": 1}\n').json, {"a": 1})
            self.assertGreaterEqual(int(answer.headers["X-Handled-Micros"]), 0)

    def test_a_large_body_and_a_large_result_pass(self):
        with Shim(one("params")) as shim:
            params = {"text": "x" * ((1 << 20) - 100)}
            self.assertEqual(shim.call(params).json, params)

    def test_the_handler_may_be_named_and_lie_in_a_package(self):
        files = {
            "main.py": "def other(params): return {'of': 'main.other'}\ndef main(params): return {'of': 'main'}",
            "func.py": "def other(params): return {'of': 'func'}",
            "pkg/__init__.py": "",
            "pkg/mod.py": "from . import near\ndef main(params): return {'of': near.NAME}",
            "pkg/near.py": "NAME = 'pkg.mod'",
        }
        for handler, of in (("", "main"), ("other", "main.other"), ("func.other", "func"), ("pkg.mod.main", "pkg.mod")):
            with self.subTest(handler), Shim(files, {"HANDLER": handler}) as shim:
                self.assertEqual(shim.call({}).json, {"of": of})

    def test_without_main_py_the_handler_is_in_func_py(self):
        with Shim({"func.py": "def main(params): return {'of': __name__}"}) as shim:
            self.assertEqual(shim.call({}).json, {"of": "func"})

    def test_packages_come_behind_the_source_and_the_standard_library(self):
        with tempfile.TemporaryDirectory() as packages:
            for name in ("extra", "near", "colorsys"):
                with open(f"{packages}/{name}.py", "w") as file:
                    file.write("OF = 'packages'")
            files = {
                "main.py": "import colorsys, extra, near, sys, os\n"
                "def main(params): return {'extra': extra.OF, 'near': near.OF, 'std': hasattr(colorsys, 'rgb_to_hsv'),"
                " 'first': sys.path[0], 'cwd': os.getcwd()}",
                "near.py": "OF = 'source'",
            }
            with Shim(files, {"PACKAGES": packages}) as shim:
                folder = shim.folder.name
                expected = {"extra": "packages", "near": "source", "std": True, "first": folder, "cwd": folder}
                self.assertEqual(shim.call({}).json, expected)

    def test_the_environment_describes_the_call(self):
        with Shim(one("dict(__import__('os').environ)"), {"CONCURRENCY": 3, "FUNCTION": "ns/fallback"}) as shim:
            before = time.time()
            url = "http://192.0.2.7:8081/_/heartbeats/0a"
            seen = shim.call(
                {}, x_activation_id="a1-b2", x_function="ns/fallback", idempotency_key="k/1", x_heartbeat_url=url
            ).json
            self.assertEqual(seen["__OW_ACTIVATION_ID"], "a1-b2")
            self.assertEqual((seen["MINIK8S_IDEMPOTENCY_KEY"], seen["MINIK8S_HEARTBEAT_URL"]), ("k/1", url))
            self.assertEqual(seen["__OW_ACTION_NAME"], "/ns/fallback")
            self.assertEqual(seen["MINIK8S_CONCURRENCY"], "3")
            self.assertAlmostEqual(int(seen["__OW_DEADLINE"]) / 1000, before + 60, delta=5)
            seen = shim.call({}, x_timeout_ms="7000").json
            self.assertAlmostEqual(int(seen["__OW_DEADLINE"]) / 1000, before + 7, delta=5)
            deadline = str(int((before + 7) * 1000))
            seen = shim.call({}, x_deadline=deadline).json
            self.assertEqual(seen["__OW_DEADLINE"], deadline)
            self.assertEqual(seen["__OW_ACTION_NAME"], "/ns/fallback")
            self.assertRegex(seen["__OW_ACTIVATION_ID"], "^[0-9a-f]{32}$")
            self.assertEqual((seen["MINIK8S_IDEMPOTENCY_KEY"], seen["MINIK8S_HEARTBEAT_URL"]), ("", ""))

    def test_an_async_handler_is_run(self):
        main = (
            "import asyncio\nasync def main(params):\n    await asyncio.sleep(0)\n"
            "    if params: raise KeyError('late')\n    return {'async': True}"
        )
        with Shim({"main.py": main}) as shim:
            self.assertEqual(shim.call({}).json, {"async": True})
            failed = shim.call({"raise": 1})
            self.assertEqual((failed.status, failed.error["type"]), (500, "KeyError"))
            self.assertIn("/main.py", failed.error["stackTrace"][1])
            self.assertNotIn("asyncio/", "\n".join(failed.error["stackTrace"]))

    def test_a_body_that_is_no_object_is_400(self):
        with Shim(MAIN_FILES) as shim:
            nested = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            values = (b"[1]", b'"x"', b"1", b"null", nested)
            for body in (*values, b"", b"{", b'{"a":1}x', b'{"a":NaN}', b'{"a":1e400}', b"{'a':1}", b'{"a":"\xff"}'):
                with self.subTest(body[:20]):
                    answer = shim.call(body)
                    self.assertEqual((answer.status, answer.error["type"]), (400, "BadRequest"))
                    self.assertNotIn("X-Handled-Micros", answer.headers)
            self.assertIn("line 1 column 2", shim.call(b"{").error["message"])
            self.assertEqual(shim.call({}).json["count"], 1)

    def test_an_answer_that_is_no_object_is_502(self):
        answers = {
            "None": "NoneType",
            "(i for i in [1])": "generator",
            "[{}]": "list",
            "'text'": "str",
            "1": "int",
            "{'a': {1, 2}}": "set",
            "{'a': b'x'}": "bytes",
            "{'a': float('nan')}": "JSON",
            "{'a': float('-inf')}": "JSON",
            "{(1, 2): 3}": "tuple",
            "params.setdefault('self', params) and params": "ircular",
            "__import__('functools').reduce(lambda inner, _: {'a': inner}, range(100000), {})": "",
        }
        for answer, named in answers.items():
            with self.subTest(answer), Shim(one(answer)) as shim:
                got = shim.call({})
                self.assertEqual((got.status, got.error["type"]), (502, "InvalidResult"))
                self.assertIn(named, got.error["message"])
                self.assertIn("X-Handled-Micros", got.headers)

    def test_a_result_above_the_limit_is_502(self):
        with Shim(one("{'text': 'x' * params['size']}"), {"RESULT_LIMIT_BYTES": 1000}) as shim:
            self.assertEqual(shim.call({"size": 1000 - len('{"text":""}')}).status, 200)
            answer = shim.call({"size": 1001 - len('{"text":""}')})
            self.assertEqual((answer.status, answer.error["type"]), (502, "InvalidResult"))
            self.assertIn("1001 bytes", answer.error["message"])

    def test_an_exception_is_500_with_the_users_part_of_its_traceback(self):
        main = (
            "def main(params):\n    try:\n        inner()\n    except KeyError as error:\n"
            "        raise ValueError('the reason: ü') from error\ndef inner():\n    {}['missing']\n"
        )
        with Shim({"main.py": main}) as shim:
            answer = shim.call({}, x_activation_id="id-1")
            self.assertEqual(answer.status, 500)
            self.assertEqual((answer.error["type"], answer.error["message"]), ("ValueError", "the reason: ü"))
            stack = answer.error["stackTrace"]
            self.assertEqual(stack[0], "Traceback (most recent call last):")
            self.assertTrue(any("in inner" in line for line in stack), stack)
            self.assertEqual(stack[-1], "ValueError: the reason: ü")
            self.assertFalse([line for line in stack if "shim.py" in line])
            shim.err.wait_for("[id-1] ValueError: the reason: ü")
            self.assertIn("X-Handled-Micros", answer.headers)

    def test_whatever_is_raised_ends_only_its_call(self):
        cases = {
            "sys.exit(3)": ("SystemExit", "the function called sys.exit(3)"),
            "raise KeyboardInterrupt": ("KeyboardInterrupt", ""),
            "raise MemoryError('none left')": ("MemoryError", "none left"),
            "def f(): f()\nf()": ("RecursionError", "maximum recursion depth exceeded"),
            "class E(Exception):\n __str__ = None\nraise E()": ("E", "(its message cannot be shown)"),
            "raise ValueError('x' * 1000000)": ("ValueError", "x" * 8192),
            "sys.stderr.close(); sys.stdout = None; raise OSError('closed')": ("OSError", "closed"),
        }
        with Shim(MAIN_FILES) as shim:
            first = shim.call({}).json
            for code, (kind, message) in cases.items():
                with self.subTest(code):
                    answer = shim.call({"code": code})
                    self.assertEqual((answer.status, answer.error["type"]), (500, kind))
                    self.assertTrue(answer.error["message"].startswith(message), answer.error["message"])
            last = shim.call({}).json
            self.assertEqual((last["pid"], last["count"]), (first["pid"], len(cases) + 2))

    def test_a_process_that_dies_is_502_and_another_takes_its_place(self):
        cases = {
            "os._exit(7)": "exit code 7",
            "import ctypes; ctypes.string_at(0)": "SIGSEGV",
            "os.abort()": "SIGABRT",
            "os.kill(os.getpid(), 15)": "SIGTERM",
            "os.kill(os.getpid(), 9)": "SIGKILL; perhaps the container was out of memory",
            "os.closerange(3, 100)": "exit code 1",
        }
        with Shim(MAIN_FILES) as shim:
            for code, cause in cases.items():
                with self.subTest(code):
                    answer = shim.call({"code": "print('last words'); result = {};" + code}, x_activation_id="id-2")
                    self.assertEqual((answer.status, answer.error["type"]), (502, "Crashed"))
                    self.assertIn(cause, answer.error["message"])
                    self.assertIn("X-Handled-Micros", answer.headers)
                    self.assertEqual(shim.call({}).json["count"], 1)
            self.assertEqual(shim.out.all().count("[id-2] last words"), len(cases))
            shim.err.wait_for("[id-2] Fatal Python error: Segmentation fault")

    def test_an_answer_counts_though_its_process_dies_behind_it(self):
        with Shim(MAIN_FILES) as shim:
            worker = shim.call({}).json["pid"]
            code = (
                "write = os.write\ndef last_write(fd, data):\n    write(fd, data); os._exit(3)\n"
                "os.write = last_write\ntouch('begun'); wait_for('go'); result = {'text': 'x' * 100_000}"
            )
            running = shim.begin({"code": code})
            shim.exists("begun")
            with shim.stopped():
                shim.touch("go")
                wait_until(lambda: not is_alive(worker), "it has answered and died")
            self.assertEqual(len(Answer(running.getresponse()).json.get("text", "")), 100_000)

    def test_the_kernels_counts_tell_memory_from_other_kills(self):
        spec = importlib.util.spec_from_file_location("shim", SHIM)
        shim = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(shim)
        with tempfile.TemporaryDirectory() as folder:
            v2, v1 = f"{folder}/memory.events", f"{folder}/memory.oom_control"
            with open(v1, "w") as file:
                file.write("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
            self.assertEqual(shim.count_oom_kills((v2, v1)), 3)
            with open(v2, "w") as file:
                file.write("low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n")
            self.assertEqual(shim.count_oom_kills((v2, v1)), 1)
            self.assertIsNone(shim.count_oom_kills((f"{folder}/none",)))
        replica = type("Replica", (), {"oom_kills": 1})()
        shim.count_oom_kills = lambda: 2
        self.assertEqual(shim.Replica.cause_of_death(replica, 9)[0], "OutOfMemory")
        self.assertEqual(shim.Replica.cause_of_death(replica, 9)[0], "Crashed")

    def test_only_post_and_get_of_the_root_are_served(self):
        with Shim(MAIN_FILES, {"BODY_LIMIT_BYTES": 1000}) as shim:
            self.assertEqual(shim.call(None, method="GET").json, {"state": "ready", "inFlight": 0})
            rows = (
                (404, "NotFound", {"path": "/other"}),
                (404, "NotFound", {"path": "/?a=1"}),
                (405, "MethodNotAllowed", {"method": "PUT"}),
                (405, "MethodNotAllowed", {"method": "DELETE"}),
                (413, "TooLarge", {"content_length": "1001"}),
                (413, "TooLarge", {"content_length": "99999999999"}),
                (400, "BadRequest", {"content_length": "+5"}),
                (400, "BadRequest", {"x_deadline": "soon"}),
                (400, "BadRequest", {"x_timeout_ms": "-1"}),
                (400, "BadRequest", {"x_activation_id": "a] b"}),
                (400, "BadRequest", {"x_function": "a b"}),
                (411, "LengthRequired", {"transfer_encoding": "chunked"}),
                (431, "TooLarge", {"x_other": "x" * 20_000}),
            )
            for status, kind, request in rows:
                with self.subTest(request):
                    answer = shim.call({}, **request)
                    self.assertEqual((answer.status, answer.error["type"]), (status, kind))
                    self.assertEqual(answer.headers["Connection"], "close")
            for text, status in (
                (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 411),
                (b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
                (b"POST / HTTP/2.0\r\n\r\n", 400),
                (b"nonsense\r\n\r\n", 400),
                (b"x" * 70_000, 431),
            ):
                with self.subTest(text[:40]), shim.raw() as raw:
                    raw.sendall(text)
                    self.assertIn(b"HTTP/1.1 %d " % status, raw.recv(1000))
            # All of a body that is refused may be on its way: the answer must be read all the same.
            for _ in range(3):
                self.assertEqual(shim.call(b"x" * 20_000_000).status, 413)
            self.assertEqual(shim.call({}).status, 200)


MAIN_FILES = {"main.py": MAIN}


class Calls(unittest.TestCase):
    """Calls beside and after each other."""

    def test_a_call_above_the_timeout_is_504_and_ends_with_what_it_started(self):
        with Shim(MAIN_FILES, {"TIMEOUT_SECONDS": 0.5}) as shim:
            first = shim.call({}).json
            began = time.monotonic()
            command = f"sleep 99.{os.getpid()}"
            answer = shim.call({"code": f"subprocess.run({command.split()})"}, x_activation_id="slow")
            self.assertTrue(0.5 <= time.monotonic() - began < 5)
            self.assertEqual((answer.status, answer.error["type"]), (504, "Timeout"))
            self.assertGreaterEqual(int(answer.headers["X-Handled-Micros"]), 500_000)
            wait_until(lambda: not processes_of(command), "the command ends")
            wait_until(lambda: any("[slow] minik8s: the call was" in line for line in shim.err.all()), "it is logged")
            last = shim.call({}).json
            self.assertEqual(last["count"], 1)
            self.assertNotEqual(last["pid"], first["pid"])

    def test_a_call_goes_on_when_the_one_beside_it_is_ended(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 2}) as shim:
            other = shim.begin({"touch": "other", "wait": "go"})
            shim.exists("other")
            ended = shim.call({"wait": "never"}, x_timeout_ms="200")
            self.assertEqual(ended.status, 504)
            self.assertEqual(shim.call({}).status, 200)
            shim.touch("go")
            self.assertEqual(Answer(other.getresponse()).json["count"], 1)

    def test_a_deadline_that_has_passed_is_504_at_once(self):
        with Shim(MAIN_FILES) as shim:
            self.assertEqual(shim.call({}, x_deadline="1000").status, 504)
            self.assertEqual(shim.call({}).json["count"], 1)

    def test_a_gateway_whose_clock_is_behind_gets_its_calls_answered(self):
        """Seen red with X-Deadline alone, as gateways of older versions send it."""
        with Shim(MAIN_FILES) as shim:
            an_hour_ago = str(int((time.time() - 3600) * 1000))
            self.assertEqual(shim.call({}, x_timeout_ms="60000", x_deadline=an_hour_ago).status, 200)
            self.assertEqual(shim.call({"wait": "never"}, x_timeout_ms="200", x_deadline="9" * 15).status, 504)

    def test_one_call_more_than_concurrency_is_refused_as_busy(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 2}) as shim:
            running = [shim.begin({"touch": f"begun{n}", "wait": "go"}) for n in range(2)]
            for n in range(2):
                shim.exists(f"begun{n}")
            self.assertEqual(shim.in_flight(), 2)
            kept = shim.connect()
            refused = shim.call({"touch": "refused"}, kept)
            self.assertEqual((refused.status, refused.headers["X-Minik8s-Busy"]), (503, "1"))
            self.assertEqual(refused.error["type"], "Busy")
            self.assertNotIn("X-Handled-Micros", refused.headers)
            shim.touch("go")
            answers = [Answer(connection.getresponse()) for connection in running]
            self.assertEqual([answer.status for answer in answers], [200, 200])
            self.assertNotEqual(answers[0].json["pid"], answers[1].json["pid"])
            self.assertEqual(shim.call({}, kept).status, 200)
            self.assertFalse(os.path.exists(shim.path("refused")))

    def test_no_file_left_for_a_worker_is_busy(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (18, 18))  # noqa: E731
        with Shim(MAIN_FILES, {"CONCURRENCY": 10}, before=limit) as shim:
            running = [shim.begin({"touch": "begun0", "wait": "go"})]
            shim.exists("begun0")
            while (answer := shim.call({"wait": "go"}, x_timeout_ms="200")).status == 504:
                running.append(shim.begin({"touch": f"begun{len(running)}", "wait": "go"}))
                self.assertLess(len(running), 10)
            self.assertEqual((answer.status, answer.headers["X-Minik8s-Busy"]), (503, "1"))
            shim.touch("go")
            self.assertEqual(Answer(running[0].getresponse()).status, 200)

    def test_a_hundred_calls_on_one_connection_find_one_state(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 20}) as shim:
            connection = shim.connect()
            answers = [shim.call({"n": n}, connection).json for n in range(100)]
            self.assertEqual([answer["count"] for answer in answers], list(range(1, 101)))
            self.assertEqual(len({answer["pid"] for answer in answers}), 1)

    def test_calls_at_once_have_a_process_each_and_each_its_state(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 8}) as shim:
            running = [shim.begin({"touch": f"begun{n}", "wait": "go", "n": n}) for n in range(8)]
            for n in range(8):
                shim.exists(f"begun{n}")
            shim.touch("go")
            answers = [Answer(connection.getresponse()).json for connection in running]
            self.assertEqual({answer["count"] for answer in answers}, {1})
            self.assertEqual(len({answer["pid"] for answer in answers}), 8)
            self.assertEqual([answer["params"]["n"] for answer in answers], list(range(8)))

    def test_idle_connections_take_no_worker_and_the_oldest_give_way(self):
        with Shim(MAIN_FILES) as shim:
            idle = [shim.raw() for _ in range(700)]
            self.assertEqual(shim.call({}).status, 200)
            wait_until(lambda: is_closed(idle[0]), "the oldest is closed")
            self.assertFalse(is_closed(idle[-1]))
            for connection in idle:
                connection.close()

    def test_a_request_may_come_in_many_packets_and_two_in_one(self):
        with Shim(one("params")) as shim, shim.raw() as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            body = json.dumps({"text": "ä" * 3000}).encode()
            request = b"POST / HTTP/1.1\r\ncontent-length:%d\r\n\r\n%b" % (len(body), body)
            for at in range(0, len(request), 31):
                raw.sendall(request[at : at + 31])
            self.assertEqual(read_answers(raw, 1), [json.loads(body)])
            two = b'POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\n{"a":1}'
            raw.sendall(two + two.replace(b"1}", b"2}") + two.replace(b"1}", b"3}"))
            self.assertEqual(read_answers(raw, 3), [{"a": 1}, {"a": 2}, {"a": 3}])
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 3000)
            self.assertEqual(len(read_answers(raw, 3000)), 3000)
            raw.sendall(two.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            self.assertEqual(read_answers(raw, 1), [{"a": 1}])
            self.assertEqual(raw.recv(1), b"")

    def test_a_caller_that_reads_late_gets_all_of_it(self):
        with Shim(MAIN_FILES, {"RESULT_LIMIT_BYTES": 40_000_000}) as shim:
            slow = shim.begin({"code": "touch('begun'); result = {'text': 'x' * 30_000_000}"})
            shim.exists("begun")
            wait_until(lambda: shim.in_flight() == 0, "the call ends before its answer is read")
            self.assertEqual(len(Answer(slow.getresponse()).json["text"]), 30_000_000)

    def test_a_call_whose_caller_hangs_up_goes_on_and_frees_its_place(self):
        with Shim(MAIN_FILES) as shim:
            gone = shim.begin({"touch": "begun", "wait": "go"})
            shim.exists("begun")
            gone.close()
            self.assertEqual(shim.call({}).status, 503)
            shim.touch("go")
            wait_until(lambda: shim.in_flight() == 0, "the call ends")
            self.assertEqual(shim.call({}).json["count"], 2)

    def test_a_child_that_returns_from_the_handler_answers_nothing(self):
        with Shim(MAIN_FILES) as shim:
            code = "child = os.fork()\nresult = {'child': child}\nchild and os.waitpid(child, 0)"
            connection = shim.connect()
            self.assertGreater(shim.call({"code": code}, connection).json["child"], 0)
            self.assertEqual(shim.call({}, connection).json["count"], 2)


class Output(unittest.TestCase):
    """Logs, which carry the id of their call."""

    def test_all_that_a_call_prints_has_its_id(self):
        code = (
            "print('printed'); print('two\\nlines'); print('to err', file=sys.stderr)\n"
            "subprocess.run(['sh', '-c', 'echo of a child; echo of a child >&2'])\n"
            "os.write(1, b'written\\n'); import logging; logging.warning('logged')\n"
            "import ctypes; ctypes.CDLL(None).printf(b'of C\\n')\n"
            "sys.stdout.write('no end'); result = {}"
        )
        with Shim({"main.py": "print('imported')\nprint('of import', end='')" + MAIN}) as shim:
            self.assertEqual(shim.call({"code": code}, x_activation_id="id-1").status, 200)
            shim.call({"code": "print('next'); result = {}"}, x_activation_id="id-2")
            shim.out.wait_for("[id-2] next")
            out = [line.replace("of import", "") for line in shim.out.all()]
            printed = ("printed", "two", "lines", "of a child", "written", "of C", "no end")
            self.assertEqual(sorted(out), sorted(["imported", *(f"[id-1] {line}" for line in printed), "[id-2] next"]))
            for line in ("to err", "of a child", "WARNING:root:logged"):
                shim.err.wait_for("[id-1] " + line)

    def test_calls_at_once_keep_their_ids_apart(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 4}) as shim:
            code = "wait_for('go')\nfor n in range(2000): print('line of', params['name'])\nresult = {}"
            running = [shim.begin({"code": code, "name": f"id-{n}"}, x_activation_id=f"id-{n}") for n in range(4)]
            wait_until(lambda: shim.in_flight() == 4, "all four run")
            shim.touch("go")
            for connection in running:
                self.assertEqual(Answer(connection.getresponse()).status, 200)
            wait_until(lambda: len(shim.out.all()) >= 8000, "all lines")
            for n in range(4):
                self.assertEqual(shim.out.all().count(f"[id-{n}] line of id-{n}"), 2000)

    def test_what_comes_after_a_call_has_no_id(self):
        code = (
            "import threading\ndef late():\n    wait_for('go'); print('late')\n"
            "threading.Thread(target=late).start(); result = {}"
        )
        with Shim(MAIN_FILES) as shim:
            self.assertEqual(shim.call({"code": code}, x_activation_id="id-1").status, 200)
            shim.touch("go")
            shim.out.wait_for("late")

    def test_output_is_cut_at_the_limit_and_the_next_call_has_its_own(self):
        with Shim(MAIN_FILES, {"LOG_LIMIT_BYTES": 100_000}) as shim:
            code = "print('\\n'.join(str(n) for n in range(100_000))); print('err', file=sys.stderr); result = {}"
            self.assertEqual(shim.call({"code": code}, x_activation_id="id-1").status, 200)
            shim.err.wait_for("[id-1] minik8s: the output of this call was cut after 100000 bytes")
            self.assertEqual(sum("cut after" in line for line in shim.err.all()), 1)
            self.assertNotIn("[id-1] err", shim.err.all())
            shim.call({"code": "print('next'); result = {}"}, x_activation_id="id-2")
            shim.out.wait_for("[id-2] next")
            own = sum(len(line) - len("[id-1] ") + 1 for line in shim.out.all() if line.startswith("[id-1]"))
            self.assertIn(own, (100_000, 100_001))

    def test_a_flood_of_output_stops_neither_other_calls_nor_its_own_end(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 2}) as shim:
            for text in ("'x' * 500 + '\\n'", "'x' * 5000"):
                with self.subTest(text):
                    code = f"touch('begun')\nwhile True: os.write(1, ({text}).encode())"
                    flood = shim.begin({"code": code}, x_timeout_ms="5000", x_activation_id="id-1")
                    shim.exists("begun")
                    os.remove(shim.path("begun"))
                    connection = shim.connect()
                    answers = [shim.call({}, connection).status for _ in range(50)]
                    self.assertEqual(answers, [200] * 50)
                    self.assertEqual(Answer(flood.getresponse()).status, 504)
            self.assertLess(memory_of(shim.process.pid), 100 << 20)
            self.assertEqual(sum("cut after" in line for line in shim.err.all()), 2)
            self.assertLess(max(map(len, shim.out.all())), 100_000)
            self.assertEqual({line[:6] for line in shim.out.all()}, {"[id-1]"})

    def test_nobody_who_reads_our_output_stops_no_call_that_prints_nothing(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 2}, is_read=False) as shim:
            code = "touch('begun')\nfor _ in range(9000): print('x' * 999)\nresult = {}"
            flood = shim.begin({"code": code}, x_activation_id="id-1")
            shim.exists("begun")
            connection = shim.connect()
            for _ in range(200):
                self.assertEqual(shim.call({}, connection).status, 200)
            self.assertEqual(shim.in_flight(), 1)
            shim.out, shim.err = Lines(shim.process.stdout), Lines(shim.process.stderr)
            self.assertEqual(Answer(flood.getresponse()).status, 200)
            wait_until(lambda: shim.out.all().count("[id-1] " + "x" * 999) == 9000, "no line is lost")


    def test_an_output_that_is_closed_stops_nothing(self):
        main = "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)" + MAIN
        with Shim({"main.py": main}, is_read=False) as shim:
            shim.process.stdout.close()
            shim.process.stderr.close()
            for _ in range(3):
                self.assertEqual(shim.call({"code": "print('x' * 9999); result = {}"}).status, 200)


class Lifecycle(unittest.TestCase):
    """From the import to the end."""

    def test_the_port_is_closed_until_the_module_is_imported(self):
        shim = Shim({"main.py": WAIT + "touch('begun'); wait_for('go')\ndef main(params): return {}"})
        shim.exists("begun")
        with self.assertRaises(ConnectionRefusedError):
            shim.raw()
        shim.touch("go")
        with shim:
            self.assertEqual(shim.call({}).status, 200)

    def test_a_stop_during_the_import_is_obeyed(self):
        with contextlib.closing(Shim({"main.py": WAIT + "touch('begun'); wait_for('go')"})) as shim:
            shim.exists("begun")
            shim.process.send_signal(signal.SIGTERM)
            self.assertEqual(shim.process.wait(PATIENCE_SECONDS), 0)

    def test_a_module_that_cannot_be_loaded_says_why(self):
        thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
        cases = (
            ({}, "", "there is neither main.py nor func.py in "),
            ({"main.py": "x = 1"}, "", "the module `main` has no function `main`"),
            ({"main.py": "main = 1"}, "", "the module `main` has no function `main`"),
            ({"main.py": "def main(params:\n  pass"}, "", "SyntaxError: "),
            ({"main.py": "import nowhere"}, "", "No module named 'nowhere' (is it in requirements.txt?)"),
            ({"main.py": "from os import no_such_name"}, "", "ImportError: cannot import name 'no_such_name'"),
            ({"main.py": "import broken", "broken.py": "def f():\n    1 / 0\nf()"}, "", "ZeroDivisionError: "),
            ({"main.py": "import sys; sys.exit(0)"}, "", "SystemExit: 0"),
            ({"main.py": ""}, "missing.main", "No module named 'missing'"),
            ({"main.py": thread + "1 / 0"}, "", "ZeroDivisionError: "),
        )
        for files, handler, sentence in cases:
            with self.subTest(files), contextlib.closing(Shim(files, {"HANDLER": handler})) as shim:
                self.assertEqual(shim.process.wait(PATIENCE_SECONDS), 1)
                shim.err.reader.join(PATIENCE_SECONDS)
                lines = shim.err.all()
                self.assertIn(f"minik8s: cannot load the handler `{handler or 'main'}`: ", lines[-1])
                self.assertIn(sentence, lines[-1])
                self.assertNotIn("shim.py", "\n".join(lines))
                self.assertNotIn("importlib", "\n".join(lines))
                if "broken.py" in files:
                    self.assertTrue(any("in f" in line for line in lines), lines)

    def test_sigterm_lets_the_running_call_end_and_refuses_others(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number), Shim(MAIN_FILES, {"CONCURRENCY": 5}) as shim:
                running = shim.begin({"touch": "begun", "wait": "go"})
                shim.exists("begun")
                kept = shim.connect()
                self.assertEqual(shim.call({}, kept).status, 200)
                began = time.monotonic()
                shim.process.send_signal(number)
                wait_until(lambda: shim.call(None, method="GET").json["state"] == "draining", "it drains")
                for connection in (kept, None):
                    refused = shim.call({}, connection)
                    self.assertEqual((refused.status, refused.headers["X-Minik8s-Busy"]), (503, "1"))
                    self.assertEqual(refused.headers["Connection"], "close")
                wait_until(lambda: time.monotonic() > began + 1.2, "longer than the shortest drain")
                self.assertEqual(shim.in_flight(), 1)
                shim.touch("go")
                answer = Answer(running.getresponse())
                self.assertEqual((answer.status, answer.headers["Connection"]), (200, "close"))
                self.assertEqual(shim.process.wait(PATIENCE_SECONDS), 0)

    def test_without_calls_it_ends_a_second_after_sigterm_whatever_the_module_did(self):
        main = (
            "import signal, threading, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
            "def main(params): return {'same': signal.getsignal(signal.SIGTERM) is signal.SIG_IGN}"
        )
        with Shim({"main.py": main}) as shim:
            self.assertEqual(shim.call({}).json, {"same": True})
            began = time.monotonic()
            shim.process.send_signal(signal.SIGTERM)
            shim.process.send_signal(signal.SIGTERM)
            self.assertEqual(shim.process.wait(PATIENCE_SECONDS), 0)
            self.assertTrue(1.0 <= time.monotonic() - began < 5)

    def test_a_call_on_a_kept_connection_is_refused_and_not_lost_for_as_long_as_a_gateway_may_make_it(self):
        with Shim(MAIN_FILES) as shim:
            kept, old = shim.connect(), shim.connect()
            for connection in (old, kept):
                self.assertEqual(shim.call({}, connection).status, 200)
            began = time.monotonic()
            shim.process.send_signal(signal.SIGTERM)
            wait_until(lambda: time.monotonic() > began + 2.2, "longer than a gateway keeps a connection")
            refused = shim.call({}, kept)
            self.assertEqual((refused.status, refused.headers["X-Minik8s-Busy"]), (503, "1"))
            # `old` is still open on our side, and no gateway would use it any more.
            self.assertEqual(shim.process.wait(PATIENCE_SECONDS), 0)
            self.assertTrue(2.9 <= time.monotonic() - began < 5)

    def test_without_connections_it_does_not_wait_for_calls_on_them(self):
        with Shim(MAIN_FILES) as shim:
            self.assertEqual(shim.call({}).status, 200)
            shim.close_connections()
            began = time.monotonic()
            shim.process.send_signal(signal.SIGTERM)
            self.assertEqual(shim.process.wait(PATIENCE_SECONDS), 0)
            self.assertTrue(1.0 <= time.monotonic() - began < 2.5)

    def test_a_call_for_another_function_does_not_begin(self):
        with Shim(MAIN_FILES, {"FUNCTION": "default/own"}) as shim:
            kept = shim.connect()
            refused = shim.call({"touch": "begun"}, kept, x_function="default/other")
            self.assertEqual((refused.status, refused.headers["X-Minik8s-Busy"]), (421, "other-function"))
            self.assertEqual(refused.error["type"], "OtherFunction")
            self.assertFalse(os.path.exists(os.path.join(shim.folder.name, "begun")))
            for headers in ({"x_function": "default/own"}, {}):
                self.assertEqual(shim.call({}, kept, **headers).status, 200)

    def test_its_workers_end_with_it(self):
        with Shim(MAIN_FILES) as shim:
            pid = shim.call({}).json["pid"]
            shim.process.send_signal(signal.SIGTERM)
            shim.process.wait(PATIENCE_SECONDS)
            wait_until(lambda: not is_alive(pid), "the worker is gone")

    def test_an_idle_worker_that_dies_is_replaced_without_a_failed_call(self):
        with Shim(MAIN_FILES) as shim:
            kept = shim.connect()
            for _ in range(5):
                worker = shim.call({}, kept).json["pid"]
                with shim.stopped():
                    os.kill(worker, signal.SIGKILL)
                    wait_until(lambda: not is_alive(worker), "it is dead")
                    kept.request("POST", "/", "{}")
                answer = Answer(kept.getresponse())
                self.assertEqual((answer.status, answer.json["count"]), (200, 1))

    def test_a_worker_holds_no_file_of_the_parents_and_all_of_the_modules(self):
        main = "import os\nown = open(__file__)" + MAIN
        with Shim({"main.py": main}, {"CONCURRENCY": 2}) as shim:
            other = shim.begin({"touch": "begun", "wait": "go"})
            shim.exists("begun")
            code = (
                "with os.scandir('/proc/self/fd') as files: links = [os.readlink(file.path) for file in files]\n"
                "result = {'files': links, 'read': own.read(9)}"
            )
            answer = shim.call({"code": code}).json
            self.assertEqual(answer["read"], "import os")
            kinds = sorted(link.split(":")[0].replace(shim.folder.name, "") for link in answer["files"])
            kinds = [kind for kind in kinds if "/fd" not in kind]
            self.assertEqual(kinds, ["/dev/null", "/main.py", "pipe", "pipe", "socket"])
            shim.touch("go")
            self.assertEqual(Answer(other.getresponse()).status, 200)

    def test_workers_that_were_ended_leave_nothing_behind(self):
        with Shim(MAIN_FILES, {"CONCURRENCY": 2}) as shim:
            files = len(os.listdir(f"/proc/{shim.process.pid}/fd"))
            for n in range(20):
                self.assertEqual(shim.call({"wait": "never"}, x_timeout_ms=str(1 + n % 5)).status, 504)
            self.assertEqual(shim.call({}).status, 200)
            wait_until(lambda: len(children_of(shim.process.pid)) <= 1, "one worker is left")
            wait_until(lambda: len(os.listdir(f"/proc/{shim.process.pid}/fd")) <= files, "all files are closed")

    def test_orphans_are_reaped_as_the_first_process_must(self):
        be_reaper = lambda: ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # noqa: E731  PR_SET_CHILD_SUBREAPER
        with Shim(MAIN_FILES, before=be_reaper) as shim:
            code = (
                "wait = 'setsid sh -c \"while [ ! -e go ]; do sleep 0.01; done\" >/dev/null 2>&1 & echo $!'\n"
                "result = {'orphan': int(subprocess.run(['sh', '-c', wait], stdout=-1).stdout)}"
            )
            orphan = shim.call({"code": code}).json["orphan"]
            self.assertTrue(is_alive(orphan))
            shim.touch("go")
            wait_until(lambda: not os.path.exists(f"/proc/{orphan}"), "the orphan is gone, not a zombie")
            self.assertEqual(shim.call({}).status, 200)


def read_answers(raw, count):
    """The JSON bodies of `count` answers."""
    data, bodies = b"", []
    while len(bodies) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0) if end else 0
        if end and len(rest) >= size:
            bodies.append(json.loads(rest[:size]))
            data = rest[size:]
        else:
            data += raw.recv(1 << 16)
    return bodies


def is_closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def is_alive(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False


def processes_of(command):
    """Process ids by their command line."""
    words = command.encode().replace(b" ", b"\0") + b"\0"
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if line.read() == words and is_alive(pid):
                    found.append(pid)
    return found


def children_of(parent):
    """Process ids, zombies included."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat") as stat:
                if int(stat.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(pid)
    return found


def memory_of(pid):
    """Its resident bytes."""
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    unittest.main()
