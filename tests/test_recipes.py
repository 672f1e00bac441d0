"""The pipelines of recipes/: they parse, their scripts are shell, their commands exist, the comment is replaced."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import click
import pytest
import yaml

from ascend_perf.bench.suite_file import read_suite
from ascend_perf.cli import cli
from ascend_perf.gate.policy import read_policy

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
PIPELINES = sorted([*RECIPES.glob("git*/*.yml"), RECIPES / "jenkins" / "Jenkinsfile"])
BASH = shutil.which("bash")


def named(path: Path) -> str:
    """Name of a case."""
    return f"{path.parent.name}/{path.name}"


def load(path: Path) -> dict[str, object]:
    # YAML 1.1 reads the key `on` as true.
    document = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(document, dict)
    return {("on" if key is True else key): value for key, value in document.items()}


def scripts_of(path: Path) -> list[str]:
    """Every shell script of a pipeline."""
    if path.name == "Jenkinsfile":
        text = path.read_text("utf-8")
        return re.findall(r"'''(.*?)'''", text, re.DOTALL) + re.findall(r"sh '([^'\n]+)'", text)
    found: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "run" and isinstance(value, str):
                    found.append(value)
                elif key in ("script", "before_script") and isinstance(value, list):
                    found.append("\n".join(value))
                else:
                    walk(value)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(load(path))
    return found


@pytest.mark.parametrize("path", PIPELINES, ids=named)
def test_scripts_of_a_pipeline_are_shell_and_take_no_text_of_a_request(path: Path) -> None:
    scripts = scripts_of(path)
    assert scripts
    for script in scripts:
        assert "${{" not in script  # an expression in a script is how a branch name becomes a command
        if BASH:
            done = subprocess.run([BASH, "-n"], input=script, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "schema", "options"), [
    ("github/performance.yml", "vendor.github-workflows", ()), ("github/operators.yml", "vendor.github-workflows", ()),
    ("github/action.yml", "vendor.github-actions", ()),
    ("gitlab/performance.gitlab-ci.yml", "vendor.gitlab-ci", ("--data-transform", "gitlab-ci")),
])  # fmt: skip
def test_a_pipeline_fits_the_published_schema(name: str, schema: str, options: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *options]
    done = subprocess.run([*words, str(RECIPES / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # What the schema would say of a slip.
    text = (RECIPES / name).read_text("utf-8")
    slips = ("runs-on:", "run-on:"), ("using: composite", "using: nothing"), ("policy: pull\n", "policy: x\n")
    for right, wrong in slips:
        text = text.replace(right, wrong)
    (tmp_path / "broken.yml").write_text(text, "utf-8")
    broken = subprocess.run([*words, str(tmp_path / "broken.yml")], capture_output=True, check=False)
    assert broken.returncode == 1


def commands_in(text: str) -> list[list[str]]:
    """Calls of ascend-perf with their words, lines that go on joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(r"^(?!\s*#).*?(?<![\w-])ascend-perf ([a-z-]+ [^\n|;]*)", joined, re.MULTILINE)
    return [shlex.split(call.split("||")[0].split("&&")[0], comments=True) for call in found]


@pytest.mark.parametrize(("name", "called"), [
    ("github/action.yml", ["bench", "gate"]), ("gitlab/performance.gitlab-ci.yml", ["bench", "bench", "gate"]),
    ("jenkins/Jenkinsfile", ["bench", "gate"]), ("gitcode/performance.yml", ["bench", "gate"]),
    ("snapshots.sh", ["snapshot", "gate"]),
])  # fmt: skip
def test_commands_of_a_recipe_exist_with_their_options(name: str, called: list[str]) -> None:
    path = RECIPES / name
    texts = [path.read_text("utf-8")] if path.suffix == ".sh" else scripts_of(path)
    calls = [call for text in texts for call in commands_in(text)]
    assert [call[0] for call in calls] == called
    for word, *words in calls:
        command = cli.get_command(click.Context(cli), word)
        assert command is not None, word
        known = {option for parameter in command.params for option in parameter.opts}
        assert {one for one in words if one.startswith("-")} <= known, (word, words)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("git[hc]*/*.yml")), ids=named)
def test_a_workflow_has_jobs_with_steps_that_do_one_thing(path: Path) -> None:
    document = load(path)
    if path.name == "action.yml":
        runs = document["runs"]
        assert isinstance(runs, dict) and runs["using"] == "composite"
        steps = runs["steps"]
        assert all("shell" in step for step in steps if "run" in step)  # composite actions require it
        inputs, outputs = document["inputs"], document["outputs"]
        assert isinstance(inputs, dict) and isinstance(outputs, dict)
        used = set(re.findall(r"inputs\.([a-z-]+)", path.read_text("utf-8")))
        assert used == set(inputs)
        ids = {step.get("id") for step in steps}
        assert set(re.findall(r"steps\.([a-z-]+)\.outputs", path.read_text("utf-8"))) <= ids
    else:
        assert document["on"] and document["name"]
        jobs = document["jobs"]
        assert isinstance(jobs, dict)
        assert all(job["runs-on"] for job in jobs.values())
        steps = [step for job in jobs.values() for step in job["steps"]]
    for step in steps:
        assert ("run" in step) != ("uses" in step)
        uses = step.get("uses", "")
        if uses.startswith("./"):
            given = step["with"]
            action = load(ROOT / uses / "action.yml")["inputs"]
            assert isinstance(action, dict)
            assert set(given) <= set(action)
            assert {name for name, one in action.items() if one.get("required")} <= set(given)
        elif "/" in uses:
            assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", uses), uses


def test_the_gitlab_pipeline_refers_to_what_is_there() -> None:
    document = load(RECIPES / "gitlab" / "performance.gitlab-ci.yml")
    jobs = {name: job for name, job in document.items() if name != "stages"}
    for job in jobs.values():
        assert isinstance(job, dict)
        assert "extends" not in job or job["extends"] in jobs
        assert job.get("stage", "performance") in document["stages"]  # type: ignore[operator]
    gate = jobs["performance-gate"]
    assert isinstance(gate, dict) and gate["allow_failure"] == {"exit_codes": [3, 4]}


def test_the_jenkinsfile_is_balanced() -> None:
    text = (RECIPES / "jenkins" / "Jenkinsfile").read_text("utf-8")
    text = re.sub(r"'''.*?'''|'[^'\n]*'|\"[^\"\n]*\"|//[^\n]*", "", text, flags=re.DOTALL)
    assert text.count("{") == text.count("}") > 10 and text.count("(") == text.count(")")


def test_files_that_recipes_name_are_there_and_valid() -> None:
    read_policy(RECIPES / "gate.yaml")
    assert not read_policy(RECIPES / "operators.yaml").timing
    suite = read_suite(RECIPES / "suite.yaml")
    assert all(cell.runs >= 5 for cell in suite.cells)
    for path in [*PIPELINES, ROOT / "docs" / "ci.md"]:
        for file in re.findall(r"recipes/[\w./-]+\w", path.read_text("utf-8")):
            assert (ROOT / file).exists(), (path, file)
    assert os.access(RECIPES / "snapshots.sh", os.X_OK)


def test_recipes_name_no_host() -> None:
    for path in RECIPES.rglob("*"):
        if path.is_file() and path.parent.name != "__pycache__":
            assert not re.search(r"https?://\w", path.read_text("utf-8")), path


class Comments(BaseHTTPRequestHandler):
    """Comments of one request, as the three services keep them, and whose the token is."""

    stored: ClassVar[dict[int, str]] = {}
    authors: ClassVar[dict[int, str]] = {}
    """Of comments that were not added with our token."""
    seen: ClassVar[list[tuple[str, str, str]]] = []
    tells_account: ClassVar[bool] = True
    ours: ClassVar[str] = "our-bot[bot]"

    def answer(self, document: object, code: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> str:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return str(document["body"])

    def note(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or query["access_token"][0]
        self.seen.append((self.command, parts.path, token))
        return parts.path, query

    def account(self, document: object) -> None:
        if self.tells_account:
            self.answer(document)
        else:
            self.answer({"message": "not for this token"}, 403)

    def do_GET(self) -> None:
        path, query = self.note()
        if path == "/user":
            return self.account({"id": 5, "login": self.ours, "username": self.ours})
        page, size = int(query["page"][0]), int(query["per_page"][0])
        author, name = ("author", "username") if "/notes" in path else ("user", "login")
        rows = [
            {"id": key, "body": text, author: {name: self.authors.get(key, self.ours)}}
            for key, text in sorted(self.stored.items())
        ]
        self.answer(rows[(page - 1) * size : page * size])

    def do_POST(self) -> None:
        path, _ = self.note()
        if path == "/graphql":
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["query"]
            assert "viewer" in query and "login" in query
            return self.account({"data": {"viewer": {"login": self.ours}}})
        self.stored[max(self.stored, default=0) + 1] = self.body()
        self.answer({}, 201)

    def change(self) -> None:
        path, _ = self.note()
        self.stored[int(path.rsplit("/", 1)[1])] = self.body()
        self.answer({})

    do_PATCH = do_PUT = change

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""


@pytest.fixture
def server() -> Iterator[str]:
    Comments.stored.clear()
    Comments.authors.clear()
    Comments.seen.clear()
    http = HTTPServer(("127.0.0.1", 0), Comments)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def comment(path: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RECIPES / "comment.py"), str(path)], text=True, capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "no_proxy": "*", **variables},
    )  # fmt: skip


def variables_of(service: str, root: str, event: Path) -> dict[str, str]:
    event.write_text(json.dumps({"pull_request": {"number": 7}}), "utf-8")
    return {
        "github": {"GITHUB_ACTIONS": "true", "GITHUB_API_URL": root, "GITHUB_GRAPHQL_URL": f"{root}/graphql",
                   "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t", "GITHUB_EVENT_PATH": str(event)},
        "gitlab": {"GITLAB_CI": "true", "CI_API_V4_URL": root, "CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "7",
                   "GITLAB_TOKEN": "t"},
        "gitcode": {"ATOMGIT_ACTIONS": "true", "ATOMGIT_API_URL": root, "ATOMGIT_REPOSITORY": "o/r",
                    "ATOMGIT_TOKEN": "t", "ATOMGIT_EVENT_PATH": str(event)},
    }[service]  # fmt: skip


SERVICES = ("github", "gitlab", "gitcode")


@pytest.mark.parametrize(("service", "whose", "listed", "changed", "token"), [
    ("github", ("POST", "/graphql"), "/repos/o/r/issues/7/comments",
     ("PATCH", "/repos/o/r/issues/comments/121"), "Bearer t"),
    ("gitlab", ("GET", "/user"), "/projects/5/merge_requests/7/notes",
     ("PUT", "/projects/5/merge_requests/7/notes/121"), "t"),
    ("gitcode", ("GET", "/user"), "/repos/o/r/pulls/7/comments", ("PATCH", "/repos/o/r/pulls/comments/121"), "t"),
])  # fmt: skip
def test_the_comment_is_added_once_and_then_replaced(
    tmp_path: Path, server: str, service: str, whose: tuple[str, str], listed: str, changed: tuple[str, str], token: str
) -> None:
    Comments.stored.update(dict.fromkeys(range(1, 121), "of somebody else"))  # ours comes on the second page
    path = tmp_path / "gate.md"
    variables = variables_of(service, server, tmp_path / "event.json")
    path.write_text("<!-- ascend-perf-gate -->\nfirst", "utf-8")
    first = comment(path, variables)
    path.write_text("<!-- ascend-perf-gate -->\nsecond", "utf-8")
    second = comment(path, variables)

    assert (first.stdout, second.stdout) == ("comment added\n", "comment replaced\n"), first.stderr + second.stderr
    assert len(Comments.stored) == 121 and Comments.stored[121].endswith("second")
    assert Comments.seen[:2] == [(*whose, token), ("GET", listed, token)]
    assert Comments.seen[-1] == (*changed, token)


@pytest.mark.parametrize("service", SERVICES)
def test_a_strangers_comment_that_begins_as_ours_is_left_alone(tmp_path: Path, server: str, service: str) -> None:
    forged = "<!-- ascend-perf-gate -->\nPerformance gate passed"
    Comments.stored[3], Comments.authors[3] = forged, "stranger"
    # Names that are alike are others; the first has the name of our bot without its mark.
    Comments.stored[4], Comments.authors[4] = forged, "our-bot"
    Comments.stored[5], Comments.authors[5] = forged, "Our-Bot[bot]"
    path = tmp_path / "gate.md"
    variables = variables_of(service, server, tmp_path / "event.json")
    said = []
    for text in ("first", "second"):
        path.write_text(f"<!-- ascend-perf-gate -->\n{text}", "utf-8")
        said.append(comment(path, variables).stdout)
    assert said == ["comment added\n", "comment replaced\n"]
    assert {Comments.stored[key] for key in (3, 4, 5)} == {forged}
    assert Comments.stored[6].endswith("second") and len(Comments.stored) == 4


@pytest.mark.parametrize("service", SERVICES)
def test_without_a_name_of_its_own_it_takes_no_comment(
    tmp_path: Path, server: str, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comments, "tells_account", False)
    Comments.stored[3] = "<!-- ascend-perf-gate -->\nan earlier one"
    path = tmp_path / "gate.md"
    path.write_text("<!-- ascend-perf-gate -->\nnew", "utf-8")
    said = comment(path, variables_of(service, server, tmp_path / "event.json"))
    assert said.returncode == 0 and said.stdout.startswith("comment added; whose the token is was not told")
    assert Comments.stored == {3: "<!-- ascend-perf-gate -->\nan earlier one", 4: "<!-- ascend-perf-gate -->\nnew"}


def test_where_there_is_no_request_nothing_is_commented(tmp_path: Path, server: str) -> None:
    path = tmp_path / "gate.md"
    path.write_text("<!-- ascend-perf-gate -->", "utf-8")
    variables = variables_of("github", server, tmp_path / "event.json")
    (tmp_path / "event.json").write_text('{"ref": "refs/heads/main"}', "utf-8")
    said = comment(path, variables)
    assert (said.returncode, Comments.seen) == (0, [])
    path.write_text("something else", "utf-8")
    assert comment(path, variables).returncode == 1
    assert "neither GitHub" in comment(path, {}).stderr or comment(path, {}).returncode == 1


def test_a_refused_token_is_told_without_the_token(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("do_GET", "do_POST"):
        monkeypatch.setattr(Comments, method, lambda self: self.answer({}, 403))
    path = tmp_path / "gate.md"
    path.write_text("<!-- ascend-perf-gate -->", "utf-8")
    said = comment(path, {**variables_of("gitcode", server, tmp_path / "event.json"), "ATOMGIT_TOKEN": "secret"})
    assert said.returncode == 1 and "403" in said.stderr and "secret" not in said.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(BASH is None or shutil.which("git") is None, reason="needs bash and git")
def test_snapshots_of_two_commits_are_compared(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e@example.invalid", *words], cwd=repository, check=True,
            capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    git("init", "--quiet")
    (repository / "policy.yaml").write_text("timing: false\n", "utf-8")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    words = [str(RECIPES / "snapshots.sh"), git("rev-parse", "HEAD"), "policy.yaml", "perf", "resnet50-infer"]
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (repository / "perf" / "gate.md").is_file()
    assert len(git("worktree", "list").splitlines()) == 1  # the tree of the base is gone
