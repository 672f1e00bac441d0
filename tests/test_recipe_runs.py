"""The pipelines of recipes/ run: their scripts by bash in a fresh checkout, as each service would start them.

What is not ours is played: `pip`, `ascend-perf` (it writes what the real one writes, and ends with the code that the
case wants), caches of the service, and its API for comments. The order of steps, conditions, folders, exit codes and
the comment are the recipe's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.test_recipes import BASH, RECIPES, Comments, load, scripts_of, variables_of
from tests.test_recipes import server as server  # the fixture

pytestmark = pytest.mark.skipif(BASH is None or shutil.which("git") is None, reason="needs bash and git")

ASCEND_PERF = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
command=$1 out=""; shift
rest=()
while [ "$#" -gt 0 ]; do
  case $1 in
    -o) out=$2; shift 2 ;;
    --policy|--html-url|--preset) [ "$1" != --policy ] || [ -f "$2" ] || exit 2; shift 2 ;;
    --*) shift ;;
    *) rest+=("$1"); shift ;;
  esac
done
case $command in
  bench)
    [ -f "${rest[0]}" ] || exit 2
    mkdir -p "$out"; echo measured > "$out/results.json"; exit "${BENCH_CODE:-0}" ;;
  snapshot) echo "$out" > "$out" ;;
  gate)
    [ -e "${rest[1]}" ] || exit 2
    code=$GATE_CODE
    [ -e "${rest[0]}" ] || code=4
    mkdir -p "$out"
    printf '<!-- ascend-perf-gate -->\\ncode %s\\n' "$code" > "$out/gate.md"
    touch "$out/gate.sarif" "$out/gate.xml"
    exit "$code" ;;
  *) exit 64 ;;
esac
"""

PYTHON = """#!/usr/bin/env bash
if [ "$1 $2" = "-m pip" ]; then exit 0; fi
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  ln -sf "$STUBS/python" "$3/bin/python"
  ln -sf "$STUBS/ascend-perf" "$3/bin/ascend-perf"
  exit 0
fi
exec "$REAL_PYTHON" "$@"
"""


@dataclass
class Machine:
    """A runner: a home, stubs on PATH, and a checkout for each job."""

    folder: Path
    gate_code: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    jobs: int = 0

    def __post_init__(self) -> None:
        stubs = self.folder / "stubs"
        stubs.mkdir()
        (self.folder / "home").mkdir()
        for name, text in (("ascend-perf", ASCEND_PERF), ("python", PYTHON), ("python3", PYTHON)):
            (stubs / name).write_text(text, "utf-8")
            (stubs / name).chmod(0o755)

    def checkout(self) -> Path:
        """A fresh work tree of a repository that holds the recipes, with a commit before the last."""
        self.jobs += 1
        tree = self.folder / f"job{self.jobs}"
        shutil.copytree(RECIPES, tree / "recipes")
        for words in (["init", "--quiet", "-b", "main"], ["add", "."], ["commit", "--quiet", "-m", "one"],
                      ["commit", "--quiet", "--allow-empty", "-m", "two"], ["branch", "base", "HEAD~1"],
                      ["update-ref", "refs/remotes/origin/main", "HEAD~1"]):  # fmt: skip
            identity = ["-c", "user.name=n", "-c", "user.email=e@example.invalid"]
            subprocess.run(["git", *identity, *words], cwd=tree, check=True, capture_output=True)
        return tree

    def run(self, script: str, tree: Path, **more: str) -> int:
        """One shell of the service, which ends at the first command that fails; its exit code."""
        stubs = self.folder / "stubs"
        environment = {
            "PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}", "HOME": str(self.folder / "home"), "no_proxy": "*",
            "CALLS": str(self.folder / "calls"), "STUBS": str(stubs), "REAL_PYTHON": sys.executable,
            "GATE_CODE": str(self.gate_code), **self.variables, **more,
        }  # fmt: skip
        assert BASH is not None
        done = subprocess.run([BASH, "-eo", "pipefail", "-c", script], cwd=tree, env=environment, check=False)
        return done.returncode

    def calls(self) -> list[str]:
        """What was asked of `ascend-perf`."""
        return (self.folder / "calls").read_text("utf-8").splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ---- GitHub: expressions and conditions of the composite action


def evaluated(text: str, context: Mapping[str, str]) -> str:
    """A text with its expressions replaced; an unknown name is an error."""
    return re.sub(r"\$\{\{\s*([\w.-]+)\s*\}\}", lambda found: context[found[1]], text)


def holds(condition: str, context: Mapping[str, str], has_failed: bool) -> bool:
    """A condition of a step. One without a function holds only as long as nothing has failed."""
    if "always()" not in condition and has_failed:
        return False
    words = condition.replace("always()", "True").replace("&&", " and ").replace("||", " or ")
    words = re.sub(r"hashFiles\('([^']+)'\)", lambda found: repr(
        "x" if (Path(context["tree"]) / found[1]).exists() else ""
    ), words)  # fmt: skip
    words = re.sub(r"\b(?:github|inputs|steps)\.[\w.-]+", lambda found: repr(context[found[0]]), words)
    return bool(eval(words, {"__builtins__": {}}))  # of our own recipe


def github(machine: Machine, steps: list[dict[str, object]], context: dict[str, str], cache: Path) -> int:
    """Steps one after the other; 1 where one failed that may not."""
    tree, failed = Path(context["tree"]), False
    for step in steps:
        if not holds(str(step.get("if", "True")), context, failed):
            continue
        uses, given = str(step.get("uses", "")), step.get("with", {})
        assert isinstance(given, dict)
        if uses.startswith("actions/cache/"):
            there = tree / evaluated(str(given["path"]), context)
            key = evaluated(str(given["key"]), context)
            if "save" in uses:
                shutil.copytree(there, cache / key)
            else:
                prefix = evaluated(str(given.get("restore-keys", "")), context)
                found = [one for one in sorted(cache.glob("*")) if one.name == key or one.name.startswith(prefix)]
                if found:
                    shutil.copytree(found[-1], there)
            continue
        if uses:
            continue
        variables = step.get("env", {})
        assert isinstance(variables, dict)
        output = machine.folder / "output"
        output.write_text("", "utf-8")
        code = machine.run(
            str(step["run"]), tree, GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=str(machine.folder / "summary"),
            **{name: evaluated(str(value), context) for name, value in variables.items()},
        )  # fmt: skip
        for line in output.read_text("utf-8").splitlines():
            name, _, value = line.partition("=")
            context[f"steps.{step['id']}.outputs.{name}"] = value
        failed |= code != 0 and not step.get("continue-on-error")
    return int(failed)


def of_github(machine: Machine, server: str, event: str, cache: Path) -> int:
    action = load(RECIPES / "github" / "action.yml")
    inputs, runs = action["inputs"], action["runs"]
    assert isinstance(inputs, dict) and isinstance(runs, dict)
    tree = machine.checkout()
    machine.variables = variables_of("github", server, machine.folder / "event.json")
    context = {
        "tree": str(tree), "github.event_name": event, "github.token": "t", "github.sha": f"sha{machine.jobs}",
        "github.event.pull_request.base.sha": "sha1", "github.server_url": "https://s", "github.repository": "o/r",
        "github.run_id": "5", "github.action_path": str(tree / "recipes" / "github"),
    }  # fmt: skip
    given = {"suite": "recipes/suite.yaml", "policy": "recipes/gate.yaml", "machine": "m"}
    for name, one in inputs.items():
        context[f"inputs.{name}"] = given.get(name) or evaluated(str(one.get("default", "")), context)
    return github(machine, runs["steps"], context, cache)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_composite_action_gates_on_the_cached_baseline(machine: Machine, server: str, code: int) -> None:
    cache = machine.folder / "cache"
    cache.mkdir()
    machine.gate_code = code
    assert of_github(machine, server, "pull_request", cache) == 1  # nothing to compare with: 4
    assert Comments.stored[1].endswith("code 4\n")
    assert of_github(machine, server, "push", cache) == 0
    assert [one.name for one in cache.iterdir()] == ["ascend-perf-m-sha2"]
    assert of_github(machine, server, "pull_request", cache) == int(code != 0)
    assert list(Comments.stored.values()) == [f"<!-- ascend-perf-gate -->\ncode {code}\n"]  # the same one
    assert "code 4" in (machine.folder / "summary").read_text("utf-8")
    assert machine.calls()[-1] == (
        "gate perf/base perf/head --policy recipes/gate.yaml -o perf/gate --html-url https://s/o/r/actions/runs/5"
    )


# ---- GitLab, Jenkins, GitCode


@pytest.mark.parametrize("code", [0, 1, 3])
def test_gitlab_s_jobs_measure_a_baseline_and_gate_on_it(machine: Machine, server: str, code: int) -> None:
    document = load(RECIPES / "gitlab" / "performance.gitlab-ci.yml")
    machine.gate_code = code
    machine.variables = {**variables_of("gitlab", server, machine.folder / "event.json"), "CI_JOB_URL": "https://j"}

    def job(name: str, cached: Path | None) -> tuple[int, Path]:
        body, shared = document[name], document[".ascend-perf"]
        assert isinstance(body, dict) and isinstance(shared, dict)
        tree = machine.checkout()
        if cached is not None:
            shutil.copytree(cached, tree / body["cache"]["paths"][0])
        return machine.run("\n".join([*shared["before_script"], *body["script"]]), tree), tree

    done, base = job("performance-baseline", None)
    assert done == 0
    done, head = job("performance-gate", base / "perf" / "base")
    assert done == code and (head / "perf" / "gate" / "gate.xml").is_file()
    assert list(Comments.stored.values()) == [f"<!-- ascend-perf-gate -->\ncode {code}\n"]
    assert job("performance-gate", None)[0] == 4  # no baseline yet


@pytest.mark.parametrize("code", [0, 1, 3])
def test_jenkins_keeps_the_baseline_of_a_branch_on_the_agent(machine: Machine, code: int) -> None:
    *blocks, install = scripts_of(RECIPES / "jenkins" / "Jenkinsfile")
    measure, gate, baseline = blocks
    machine.gate_code = code
    machine.variables = {"JOB_NAME": "repository/PR-7", "TARGET": "main", "BUILD_URL": "https://b"}
    tree = machine.checkout()
    assert machine.run(install, tree) == 0 and machine.run(measure, tree) == 0
    assert machine.run(gate, tree) == 4
    for _ in range(2):  # a second one replaces the first
        assert machine.run(baseline, tree, JOB_NAME="repository/main") == 0
    assert machine.run(gate, tree) == code
    assert machine.calls()[-1].startswith(f"gate {machine.folder}/home/ascend-perf/repository/main perf/head ")


@pytest.mark.parametrize("code", [0, 1])
def test_gitcode_s_workflow_keeps_its_baseline_on_the_runner(machine: Machine, server: str, code: int) -> None:
    scripts = scripts_of(RECIPES / "gitcode" / "performance.yml")
    machine.gate_code = code
    known = variables_of("gitcode", server, machine.folder / "event.json")

    def job(**variables: str) -> int:
        machine.variables = {**known, **variables}
        tree = machine.checkout()
        codes = [machine.run(script, tree) for script in scripts]
        assert codes[:-1] == [0] * (len(scripts) - 1)
        return codes[-1]

    request = {"ATOMGIT_EVENT_NAME": "pull_request", "ATOMGIT_BASE_REF": "main", "ATOMGIT_REF_NAME": "change"}
    assert job(**request) == 4
    assert job(ATOMGIT_EVENT_NAME="push", ATOMGIT_REF_NAME="main") == 0
    assert job(**request) == code
    assert list(Comments.stored.values()) == [f"<!-- ascend-perf-gate -->\ncode {code}\n"]


@pytest.mark.parametrize(("name", "service"), [
    ("github/operators.yml", "github"), ("gitcode/operators.yml", "gitcode"),
    ("gitlab/performance.gitlab-ci.yml", "gitlab"),
])  # fmt: skip
def test_operators_are_gated_without_hardware(machine: Machine, server: str, name: str, service: str) -> None:
    machine.gate_code = 1
    tree = machine.checkout()
    base = subprocess.run(["git", "rev-parse", "base"], cwd=tree, check=True, capture_output=True, text=True)
    machine.variables = {
        **variables_of(service, server, machine.folder / "event.json"), "BASE": base.stdout.strip(),
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base.stdout.strip(), "ATOMGIT_BASE_REF": "main",
        "GITHUB_STEP_SUMMARY": str(machine.folder / "summary"),
    }  # fmt: skip
    scripts = [one for one in scripts_of(RECIPES / name) if "snapshots.sh" in one or "comment.py" in one]
    if service == "gitlab":
        scripts = [one for one in scripts if "snapshots.sh" in one]
    elif service == "gitcode":
        scripts = scripts_of(RECIPES / name)
    codes = [machine.run(script, tree) for script in scripts]
    assert 1 in codes  # the gate's
    calls = machine.calls()
    snapshots = [call.split(" -o ")[1] for call in calls if call.startswith("snapshot")]
    half = len(snapshots) // 2
    assert half >= 2 and [Path(one).name for one in snapshots[:half]] == [Path(one).name for one in snapshots[half:]]
    assert "/base/" in snapshots[0] and "/head/" in snapshots[-1] and calls[-1].startswith("gate ")
    if service != "gitlab":  # there the result of the job and JUnit tell it
        assert list(Comments.stored.values()) == ["<!-- ascend-perf-gate -->\ncode 1\n"]


def test_runs_that_failed_reach_the_gate_and_other_errors_do_not(machine: Machine) -> None:
    measure = next(one for one in scripts_of(RECIPES / "jenkins" / "Jenkinsfile") if "bench" in one)
    tree = machine.checkout()
    assert machine.run("python3 -m venv .venv", tree) == 0
    assert machine.run(measure, tree, BENCH_CODE="3") == 0  # a benchmark without a complete run: the gate says so
    assert machine.run(measure, tree, BENCH_CODE="2") != 0
