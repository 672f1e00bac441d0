"""Private data in texts of others (logs, warnings of libraries) are masked: names of users and hosts, addresses of
networks and of mail, folders, serial numbers, and what looks like a secret.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from ascend_perf.collectors._machine import Machine

LEAST_NAME: Final = 3
"""Shorter names of users and hosts would mask parts of ordinary words. Status: assumed."""
COMMON_NAMES: Final = frozenset(
    {"root", "localhost", "home", "user", "users", "admin", "ubuntu", "data", "work", "none"}
)
"""Names that tell nobody apart, and that occur as words."""

_SECRETS: Final = (
    # Keys of services by their form, then whatever stands behind a word for a secret.
    re.compile(r"\b(?:hf_|ghp_|gho_|ghs_|github_pat_|glpat-|sk-|xox[abps]-|AKIA|ASIA|npm_|pypi-)[A-Za-z0-9_\-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----)?", re.DOTALL),
)
_NAMED_SECRET: Final = re.compile(
    r"(?P<name>(?:token|secret|passw(?:or)?d|passwd|api[_-]?key|access[_-]?key|credential|authorization)[\w.-]{0,40}"
    r"[\"']?\s{0,40}[=:]\s{0,40}[\"']?(?:bearer\s+|basic\s+)?|\b(?:bearer|basic)\s+|--(?:token|password|api-key)\s+)"
    r"(?P<value>[^\s\"',;&]{4,})",
    re.IGNORECASE,
)
_URL_USER: Final = re.compile(r"(?<=://)[^/\s:@]+(?::[^/\s@]*)?@")
_URL_HOST: Final = re.compile(
    r"\b(?P<scheme>[a-z][a-z0-9+.-]{1,12})://(?P<host>[^/\s:\"'<>]+)(?P<port>:\d{1,5})?[^\s\"'<>]*"
)
_MAIL: Final = re.compile(r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b")
_MAC: Final = re.compile(r"\b[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}\b")
_IPV4: Final = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]|\.\d)")
_IPV6: Final = re.compile(
    r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){2,7}(?::?[0-9A-Fa-f]{1,4})(?![\w:])"
    r"|(?<![\w:])[0-9A-Fa-f]{0,4}::[0-9A-Fa-f:]{1,30}(?![\w:])"
)
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(?::\d\d)?")
_SERIAL: Final = re.compile(
    r"(?P<name>(?:Serial Number|VDie ID|NDie ID|vdie_id=?|uuid)\s*[:=]?\s*\"?)"
    r"(?P<value>[\w-]{6,}(?: [0-9A-F]{6,})*)",
    re.IGNORECASE,
)
_NAMED_HOST: Final = re.compile(
    r"(?P<name>\b(?:host(?:_?name|_?ip)?|node(?:_?name)?|server(?:_?id|_?name)?|master_addr|rdzv_endpoint|fqdn)"
    r"[\"']?\s*[=:]\s*[\"']?)(?P<value>(?=[\w.-]*[\d.])[A-Za-z][\w-]*(?:\.[\w-]+)*)",
    re.IGNORECASE,
)
"""What stands behind a word for a host and looks like the name of one: it holds a digit or a dot."""
_USER_AT: Final = re.compile(r"(?<![\w.])[a-z_][\w.-]{0,31}@[A-Za-z][\w.-]{0,62}(?=[\s:$#~\]]|$)")
_HOME: Final = re.compile(r"(?:/home|/Users|/data/home)/([^/\s:;,\"']+)|[A-Za-z]:\\Users\\([^\\\s\"']+)")
_FOLDERS: Final = re.compile(r"(?<![\w.<])(?:~|\.\.?)?/(?:[^/\s:;,\"'()<>\]]+/)*(?=[^/\s:;,\"'()<>\]]*)")
_WINDOWS: Final = re.compile(r"(?:\b[A-Za-z]:|\\)\\(?:[^\\\s\"']+\\)*")
_SOCKET: Final = re.compile(r"\[[^\[\]\s]+\](?=:\d)")
"""As PyTorch writes the host of a socket."""
_OTHERS_HOME: Final = re.compile(r"~[\w.-]+(?=/)")


class Masks:
    """Masks texts; names that it learns of a user or a host are masked wherever they stand."""

    def __init__(self, environment: Mapping[str, str], *, user: str = "", host: str = "") -> None:
        """`user` and `host`: of this machine; the environment names more of them."""
        users = [user, *(environment.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME"))]
        users.append(PurePath(environment.get("HOME", "")).name)
        hosts = [host, *(environment.get(name, "") for name in ("HOSTNAME", "MASTER_ADDR", "HOST"))]
        hosts += [name.partition(".")[0] for name in hosts]
        self._names: dict[str, str] = {}
        self._learn(users, "<user>")
        self._learn(hosts, "<host>")

    def _learn(self, names: list[str], mask: str) -> None:
        for name in names:
            if len(name) >= LEAST_NAME and name.lower() not in COMMON_NAMES and not _IPV4.fullmatch(name):
                self._names.setdefault(name, mask)

    def of(self, text: str) -> str:
        """`text` without private data."""
        self._learn([first or second for first, second in _HOME.findall(text)], "<user>")
        for secret in _SECRETS:
            text = secret.sub("<secret>", text)
        text = _NAMED_SECRET.sub(lambda found: f"{found['name']}<secret>", text)
        text = _URL_USER.sub("", text)
        text = _MAIL.sub("<mail>", text)
        text = _USER_AT.sub("<user>@<host>", text)
        # The two slashes are set apart, that the address is not taken for a folder.
        text = _URL_HOST.sub(lambda found: f"{found['scheme']}:\1<host>{found['port'] or ''}", text)
        text = _NAMED_HOST.sub(lambda found: f"{found['name']}<host>", text)
        text = _SOCKET.sub("<host>", text)
        text = _MAC.sub("<address>", text)
        text = _IPV4.sub("<address>", text)
        text = _IPV6.sub(lambda found: found[0] if _CLOCK.fullmatch(found[0]) else "<address>", text)
        text = _SERIAL.sub(lambda found: f"{found['name']}<serial>", text)
        text = _WINDOWS.sub("", _FOLDERS.sub("", _OTHERS_HOME.sub("~", text))).replace("\1", "//")
        for name, mask in sorted(self._names.items(), key=lambda item: -len(item[0])):
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", mask, text)
        return text


def masks_of(machine: Machine) -> Masks:
    """Masks for this machine's user and host."""
    user = ""
    if machine.is_here:
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):  # no entry in the user database, as in many containers
            user = ""
    return Masks(machine.environment, user=user, host=socket.gethostname() if machine.is_here else "")
