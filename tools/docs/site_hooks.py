"""Hooks of mkdocs (mkdocs.yml): links that leave docs/, navigation of numbered pages, and a check of what was built.

A link from a page to a file of the repository outside docs/ works on GitHub as it stands; on the site it leads to that
file on GitHub. A link to a file that does not exist ends the build, as does a page that would load something from
another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/ingero-io/ingero/blob/main"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=[)\s])")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
# what a browser fetches by itself: not links that somebody follows
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc\s*=\s*["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?=[^>]*\brel\s*=\s*["']?(?:stylesheet|preload|preconnect|dns-prefetch|icon|manifest))"""
    r"""[^>]*\bhref\s*=\s*["']?(?:https?:)?//[^"'\s>]+"""
    r"""|(?:url\(|@import\s+)["']?(?:https?:)?//[^"')\s]+""",
    re.IGNORECASE,
)


def on_config(config: Any) -> Any:
    """Fills sections of the navigation that name a folder (`adr/`) with its pages, newest name last."""
    config.nav = [_filled(item) for item in config.nav]
    return config


def _filled(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    [(title, below)] = item.items()
    if isinstance(below, list):
        return {title: [_filled(one) for one in below]}
    if not below.endswith("/"):
        return item
    pages = sorted((DOCS / below).glob("*.md"))
    return {title: [{_title(path): path.relative_to(DOCS).as_posix()} for path in pages]}


def _title(path: Path) -> str:
    found = _TITLE.search(path.read_text(encoding="utf-8"))
    return found[1] if found else path.stem


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrites links that leave docs/.

    Raises:
        PluginError: a link leads to a file that does not exist.
    """
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        if target.startswith("docs/"):
            return link[0]
        if target.startswith("..") or not (ROOT / target).exists():
            raise PluginError(f"{page.file.src_uri}: {link[0]} leads nowhere")
        return f"{REPOSITORY}/{target}{link[2] or ''}"

    return _LINK.sub(rewritten, markdown)


def on_post_build(config: Any) -> None:
    """Reads what was built.

    Raises:
        PluginError: a page or a style sheet would fetch something from another host.
    """
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)}: {hit[0][-100:]}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for hit in _FETCHED.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    if found:
        raise PluginError("the site would ask other hosts:\n" + "\n".join(found[:20]))
