"""Whether every link within a built site leads to a page, and to a place that is on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ADDRESSES = ("href", "src")


@dataclass
class Links(HTMLParser):
    """The addresses that a page refers to, and the names of its places."""

    addresses: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element refers to, and what it is called."""
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.places.add(value or "")
            elif name in ADDRESSES and value:
                self.addresses.append(value)
                if name == "src" or tag == "link":
                    self.fetched.append(value)


@cache
def of(page: Path) -> Links:
    """The links of the page in a file."""
    found = Links()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def broken(site: Path) -> Iterator[tuple[Path, str]]:
    """(page, address) of each link within the folder `site` that leads nowhere."""
    for page in sorted(site.rglob("*.html")):
        for address in of(page).addresses:
            if not (is_external(address) or leads_somewhere(address, page, site)):
                yield page, address


def leads_somewhere(address: str, page: Path, site: Path) -> bool:
    """Whether an address on a page is that of a file of the site, and of a place in it."""
    parts = urlsplit(address)
    target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not (target.is_file() and target.is_relative_to(site.resolve())):
        return False
    place = unquote(parts.fragment)
    return place in ("", "top") or target.suffix != ".html" or place in of(target).places


def is_external(address: str) -> bool:
    """Whether an address has a scheme of its own (`https:`, `data:`), or names a host."""
    parts = urlsplit(address)
    return bool(parts.scheme or parts.netloc)


def external(site: Path) -> list[str]:
    """The addresses on other hosts that the site's pages link to, in order, each once."""
    pages = site.rglob("*.html")
    found = {address for page in pages for address in of(page).addresses if is_external(address)}
    return sorted(address for address in found if urlsplit(address).netloc)


def fetched(site: Path) -> list[str]:
    """The addresses on other hosts that a browser fetches when it shows a page of the site."""
    pages = site.rglob("*.html")
    found = {address for page in pages for address in of(page).fetched if is_external(address)}
    return sorted(address for address in found if urlsplit(address).netloc)
