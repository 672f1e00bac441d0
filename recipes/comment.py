"""Write gate.md as the one comment of a pull or merge request: the comment of an earlier run is replaced.

    python recipes/comment.py gate/gate.md

A comment is replaced only if the account of the token wrote it: anybody may begin a comment as ours begins, and could
change later what the gate has said in it.

Needs Python alone. Which service, which repository and which request come from the variables that the service sets:

GitHub    GITHUB_ACTIONS, GITHUB_API_URL, GITHUB_GRAPHQL_URL, GITHUB_REPOSITORY, GITHUB_EVENT_PATH, GITHUB_TOKEN
GitLab    GITLAB_CI, CI_API_V4_URL, CI_PROJECT_ID, CI_MERGE_REQUEST_IID, GITLAB_TOKEN (scope api; a job token may not)
GitCode   ATOMGIT_ACTIONS, ATOMGIT_API_URL, ATOMGIT_REPOSITORY, ATOMGIT_EVENT_PATH, ATOMGIT_TOKEN

PERF_REQUEST (a number) replaces what the event says. Ends with 0 where there is no request to comment on.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MARKER = "<!-- ascend-perf-gate -->"
PAGES = 50
"""Pages of 100 comments that are searched for ours."""


@dataclass(frozen=True)
class Service:
    """How a service lists, changes and adds comments."""

    comments: str
    """Address of the comments of the request."""
    one: str
    """Address of a comment without its id."""
    change: str
    """Method that changes a comment."""
    headers: Mapping[str, str]
    query: Mapping[str, str]
    """Added to each address."""
    account: str
    """Address that tells whose the token is: of GraphQL on GitHub, which refuses `GET /user` to the token of a job."""
    author: tuple[str, str]
    """Where a comment says who wrote it; the name of an account lies in the second field as well."""

    @property
    def is_graphql(self) -> bool:
        """Whether `account` is asked in GraphQL."""
        return self.account.endswith("/graphql")


def service_of(environment: Mapping[str, str]) -> Service | None:
    """The service from its variables; None where there is no request."""
    get = environment.get
    if get("GITHUB_ACTIONS") == "true":
        number = get("PERF_REQUEST") or _event_number(get("GITHUB_EVENT_PATH"))
        root = f"{environment['GITHUB_API_URL']}/repos/{environment['GITHUB_REPOSITORY']}/issues"
        headers = {"Authorization": f"Bearer {environment['GITHUB_TOKEN']}", "Accept": "application/vnd.github+json"}
        return Service(
            f"{root}/{number}/comments", f"{root}/comments", "PATCH", headers, {}, environment["GITHUB_GRAPHQL_URL"],
            ("user", "login"),
        ) if number else None  # fmt: skip
    if get("GITLAB_CI") == "true":
        number = get("PERF_REQUEST") or get("CI_MERGE_REQUEST_IID")
        root = f"{environment['CI_API_V4_URL']}/projects/{environment['CI_PROJECT_ID']}/merge_requests/{number}/notes"
        return Service(
            root, root, "PUT", {"PRIVATE-TOKEN": environment["GITLAB_TOKEN"]}, {},
            f"{environment['CI_API_V4_URL']}/user", ("author", "username"),
        ) if number else None  # fmt: skip
    if get("ATOMGIT_ACTIONS") == "true":
        number = get("PERF_REQUEST") or _event_number(get("ATOMGIT_EVENT_PATH"))
        root = f"{environment['ATOMGIT_API_URL']}/repos/{environment['ATOMGIT_REPOSITORY']}/pulls"
        query = {"access_token": environment["ATOMGIT_TOKEN"]}
        return Service(
            f"{root}/{number}/comments", f"{root}/comments", "PATCH", {}, query,
            f"{environment['ATOMGIT_API_URL']}/user", ("user", "login"),
        ) if number else None  # fmt: skip
    raise SystemExit("comment.py: neither GitHub, GitLab nor GitCode: GITHUB_ACTIONS, GITLAB_CI, ATOMGIT_ACTIONS unset")


def _event_number(path: str | None) -> str | None:
    if not path or not Path(path).is_file():
        return None
    event = json.loads(Path(path).read_text("utf-8"))
    request = event.get("pull_request") or event.get("merge_request") or {}
    number = request.get("number") or request.get("iid") or (event.get("number") if request else None)
    return str(number) if number else None


def account_of(service: Service) -> str | None:
    """The name of the account whose token we have; None where the service does not tell."""
    try:
        if service.is_graphql:
            answer = _call(service, "POST", service.account, {}, {"query": "query { viewer { login } }"})
            found = _at(answer, "data", "viewer", "login")
        else:
            found = _at(_call(service, "GET", service.account, {}), service.author[1])
    except Refused:
        return None
    return found if isinstance(found, str) and found else None


def _at(document: object, *names: str) -> object:
    """What lies in a JSON document below these names; None where it is not there."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def publish(text: str, service: Service) -> str:
    """Replace our comment, or add it; says which."""
    account = account_of(service)
    if account is None:
        _call(service, "POST", service.comments, {}, {"body": text})
        return "added; whose the token is was not told: earlier comments stay as they are"
    for page in range(1, PAGES + 1):
        comments = _call(service, "GET", service.comments, {"per_page": "100", "page": str(page)})
        if not isinstance(comments, list) or not comments:
            break
        ours = next((
            one for one in comments
            if str(_at(one, "body")).startswith(MARKER) and _at(one, *service.author) == account
        ), None)  # fmt: skip
        if ours is not None:
            _call(service, service.change, f"{service.one}/{ours['id']}", {}, {"body": text})
            return "replaced"
        if len(comments) < 100:
            break
    _call(service, "POST", service.comments, {}, {"body": text})
    return "added"


class Refused(SystemExit):
    """The service answered, but with an error."""


def _call(
    service: Service, method: str, address: str, query: Mapping[str, str], body: Mapping[str, str] | None = None
) -> object:
    fields = urllib.parse.urlencode({**query, **service.query})
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise SystemExit("comment.py: the address of the service is neither http nor https")
    request = urllib.request.Request(
        f"{address}?{fields}" if fields else address, method=method,
        data=None if body is None else json.dumps(body).encode("utf-8"),
        headers={**service.headers, "Content-Type": "application/json", "User-Agent": "ascend-perf"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        # Not the address: it may hold the token.
        raise Refused(f"comment.py: {method} was answered with {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise SystemExit(f"comment.py: the service cannot be reached: {error.reason}") from None
    except ValueError:
        raise Refused(f"comment.py: {method} was answered with something else than JSON") from None


def main() -> None:
    """Publish the file that is named."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: comment.py gate/gate.md")
    text = Path(sys.argv[1]).read_text("utf-8")
    if not text.startswith(MARKER):
        raise SystemExit(f"comment.py: {sys.argv[1]} does not start with {MARKER}")
    try:
        service = service_of(os.environ)
    except KeyError as error:
        raise SystemExit(f"comment.py: the variable {error.args[0]} is not set") from None
    print("no pull or merge request: nothing to comment on" if service is None else f"comment {publish(text, service)}")


if __name__ == "__main__":
    main()
