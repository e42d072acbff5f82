"""Give a release the addresses of the repository that makes it: `addresses.py REPOSITORY TAG`.

They are unknown before, so pyproject.toml has none, and links in the README are relative. On the
page of a package index relative links lead nowhere. This changes both files where they are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^]]*)\]\((?P<target>[^)\s]+)\)")
_ELSEWHERE = ("https://", "http://", "mailto:", "#")
_URLS = """
[project.urls]
Source = "{repository}"
Issues = "{repository}/issues"
Changelog = "{repository}/blob/{tag}/CHANGELOG.md"
Documentation = "{repository}/tree/{tag}/docs"
"""


def with_addresses(readme: str, root: Path, repository: str, tag: str) -> str:
    """Return a README whose links work anywhere.

    Args:
        readme: The text of `root`/README.md.
        root: The checkout.
        repository: Address of the repository on the web.
        tag: What is released.

    Raises:
        ValueError: A link leads to no file.
    """

    def absolute(link: re.Match[str]) -> str:
        target = link["target"]
        if target.startswith(_ELSEWHERE):
            return link[0]
        if not (root / target.partition("#")[0]).exists():
            raise ValueError(f"README.md links to {target}, which does not exist")
        # A picture is loaded, not looked at in the repository.
        way = "raw" if link["bang"] else "blob"
        return f"{link['bang']}[{link['text']}]({repository}/{way}/{tag}/{target})"

    return _LINK.sub(absolute, readme)


def main(repository: str, tag: str) -> None:
    """Change both files of this checkout."""
    root = Path(__file__).resolve().parents[1]
    readme, project = root / "README.md", root / "pyproject.toml"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_addresses(text, root, repository, tag), encoding="utf-8")
    with project.open("a", encoding="utf-8") as file:
        file.write(_URLS.format(repository=repository, tag=tag))


if __name__ == "__main__":
    main(*sys.argv[1:])
