"""What stays home, and why: built-in rules, then each folder's `.gitignore`, then each folder's `.torchrunignore`.

Within a layer the deeper folder wins, and within a file the last line, as in git (odd runs of stars such as `***` or
`a**/**` apart). A `!` in a `.gitignore` takes back lines of `.gitignore` files only: `!*/` there is not meant to ship
`.venv`. A `!name` in a `.torchrunignore` overrides everything, also inside a folder that is ignored as a whole.
Secrets are a layer of their own that only a `!` line which spells the file's name opens: `!*` never ships a key.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pathspec.patterns.gitignore.base import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

GITIGNORE = ".gitignore"
OWN = ".torchrunignore"

BUILT_IN = """
.git
.hg
.svn
.venv/
venv/
.env/
__pycache__/
*.py[cod]
*.egg-info/
.eggs/
node_modules/
wandb/
mlruns/
lightning_logs/
.mypy_cache/
.ruff_cache/
.pytest_cache/
.hypothesis/
.ipynb_checkpoints/
.tox/
.nox/
.cache/
.idea/
.vscode/
.direnv/
.terraform/
.DS_Store
*.swp
*~
"""

_SECRET_FOLDERS = frozenset({".aws", ".kube", ".ssh", ".gnupg", ".azure", ".gcloud"})
_SECRET_FILES = (
    ".env*", "*.pem", "*.p12", "*.pfx", "*.key", "credentials", "credentials.json", "credentials.y*ml",
    "credentials.toml", "credentials.ini", "credentials.csv", "*_credentials.json", ".git-credentials", ".netrc",
    ".pypirc", ".npmrc", "kubeconfig", "*.kubeconfig", "service-account*.json", "service_account*.json",
)  # fmt: skip
# `id_*` as ssh-keygen writes them. Not `id_map.py`: a rule that eats source code would be switched off.
_KEY = r"id_[a-z0-9_-]+(?:\.(?:pub|bak|old|key|orig))?\Z"
_SECRET = re.compile("|".join([*(fnmatch.translate(one) for one in _SECRET_FILES), _KEY]), re.IGNORECASE)

_WILD = re.compile(r"(?<!\\)[*?\[]")
_ANYWHERE = "^(?:.+/)?"
_DIRECTORY_MARK = "(?P<ps_d>/)"


class Reason(NamedTuple):
    """Why a path does not ship."""

    words: str
    secret: bool = False


@dataclass(frozen=True)
class Rule:
    """One line of one file of rules."""

    text: str
    where: str
    ships: bool
    regex: re.Pattern[str]
    only_folders: bool
    about_a_name: bool

    def matches(self, path: str) -> bool:
        """Whether the rule is about this very path (folders end in a slash), not merely about a folder above it."""
        found = self.regex.match(path)
        if found is None:
            return False
        mark = found.groupdict().get("ps_d")
        if mark is not None:
            return found.end("ps_d") == len(path)
        return not self.only_folders or path.endswith("/")

    @property
    def words(self) -> str:
        """The rule as it is told to a user."""
        return f"{self.where}: {self.text}"


class Rules:
    """The rules of one file, for paths relative to that file's folder. The last one that matches decides."""

    def __init__(self, rules: list[Rule]) -> None:
        self._rules = rules[::-1]
        names = [_unmarked(rule.regex.pattern) for rule in rules if rule.about_a_name]
        # Two regular expressions tell for nearly every path that no rule is about it, so that 5,000 files cost
        # milliseconds. Most rules are about a name anywhere: those look at the name alone.
        self._names = _any(pattern.removeprefix(_ANYWHERE) for pattern in names)
        self._paths = _any(_unmarked(rule.regex.pattern) for rule in rules if not rule.about_a_name)

    @staticmethod
    def parse(text: str, where: str) -> Rules:
        """Read a file of rules. Lines that git would ignore are ignored."""
        rules = []
        for number, raw in enumerate(text.split("\n"), 1):
            rule = _rule(raw.removesuffix("\r"), f"{where}:{number}" if where else "built-in rule")
            if rule is not None:
                rules.append(rule)
        return Rules(rules)

    def match(self, path: str, name: str) -> Rule | None:
        """The rule that decides about this path; `name` is its last part, both with a slash at a folder's end."""
        if not (self._names and self._names.match(name)) and not (self._paths and self._paths.match(path)):
            return None
        return next((rule for rule in self._rules if rule.matches(path)), None)

    def opened(self) -> set[str]:
        """Folders that must be entered although they are ignored, for a `!` line names something below them."""
        parents = set()
        for rule in self._rules:
            if rule.ships:
                parts = rule.text.removeprefix("!").strip("/").split("/")[:-1]
                for count in range(1, len(parts) + 1):
                    if not _WILD.search("/".join(parts[:count])):
                        parents.add("/".join(parts[:count]))
        return parents


def _any(patterns: Iterable[str]) -> re.Pattern[str] | None:
    joined = "|".join(f"(?:{pattern})" for pattern in patterns)
    return re.compile(joined) if joined else None


def _unmarked(pattern: str) -> str:
    return pattern.replace(_DIRECTORY_MARK, "/")


def _rule(line: str, where: str) -> Rule | None:
    line = line if line.endswith("\\ ") else line.rstrip(" ")  # git strips blanks, pathspec tabs as well
    meant = f"{line}*/" if line.endswith("/**/") else line  # folders inside; pathspec would take the folder itself, too
    try:
        regex, ignores = GitIgnoreSpecPattern.pattern_to_regex(meant)
    except GitIgnorePatternError:
        return None
    if regex is None or ignores is None:
        return None
    only_folders = line.endswith("/")
    about_a_name = regex.startswith(_ANYWHERE) and "/" not in line.removesuffix("/").removeprefix("**/")
    if not regex.startswith("^"):
        # pathspec's short forms for `*`, `**`, `*/` and `**/`: everything, or every folder.
        regex = ".*"
    elif line.endswith("/**"):
        regex += "."  # what is inside, not the folder itself
    return Rule(line, where, not ignores, re.compile(regex, re.DOTALL), only_folders, about_a_name)


class Scope:
    """The rules that hold in one folder of the tree. `enter` gives those of a folder within."""

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        self.folder = ""
        self._own: tuple[tuple[int, Rules], ...] = ()
        self._git: tuple[tuple[int, Rules], ...] = ()
        self._opened: frozenset[str] = frozenset(
            "/".join(path.split("/")[:n]) for path in named for n in range(1, path.count("/") + 1)
        )
        self._named = named
        self._above: Reason | None = None

    def enter(self, folder: str, gitignore: str | None, own: str | None, above: Reason | None) -> Scope:
        """The scope of `folder` (relative, no slash at its end) with the texts of its two files of rules."""
        new = Scope()
        new.folder = f"{folder}/" if folder else ""
        new._named, new._opened, new._own, new._git, new._above = (
            self._named, self._opened, self._own, self._git, above,
        )  # fmt: skip
        start = len(new.folder)
        if gitignore:
            new._git = ((start, Rules.parse(gitignore, f"{new.folder}{GITIGNORE}")), *self._git)
        if own:
            rules = Rules.parse(own, f"{new.folder}{OWN}")
            new._own = ((start, rules), *self._own)
            new._opened = self._opened | {new.folder + parent for parent in rules.opened()}
        return new

    def why_not(self, name: str, *, is_folder: bool) -> Reason | None:
        """Why this entry of the folder does not ship; None when it does."""
        path = self.folder + name
        if self._named and path in self._named:
            return None
        full, last = (path + "/", name + "/") if is_folder else (path, name)
        rule = _deciding(self._own, full, last)
        secret = _secret(name, is_folder=is_folder) or (self._above is not None and self._above.secret)
        if secret and not (rule is not None and rule.ships and not _WILD.search(rule.text.rstrip("/").split("/")[-1])):
            return Reason(f"looks like a secret; to ship it, write !{path} into {OWN}", secret=True)
        if rule is None:
            if self._above is not None:
                return self._above
            rule = _BUILT_IN.match(full, last) or _deciding(self._git, full, last)
        return None if rule is None or rule.ships else Reason(rule.words)

    def is_opened(self, name: str) -> bool:
        """Whether something below this ignored folder may ship all the same."""
        return self.folder + name in self._opened


def _deciding(layers: tuple[tuple[int, Rules], ...], path: str, name: str) -> Rule | None:
    for start, rules in layers:
        rule = rules.match(path[start:] if start else path, name)
        if rule is not None:
            return rule
    return None


def _secret(name: str, *, is_folder: bool) -> bool:
    if is_folder:
        return name.lower() in _SECRET_FOLDERS
    if name.endswith(".py") and name[0] != ".":
        return False  # most of a workspace, and none of the patterns: seen at a glance
    return _SECRET.match(name) is not None


_BUILT_IN = Rules.parse(BUILT_IN, "")
