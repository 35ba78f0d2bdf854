"""Fetch one file of a package index, or without PROJECT of a page: `fetch_package.py INDEX PROJECT FILENAME TARGET`.

A printed text runs this in place of envbuilder, for `pip download` chooses files for the Python that runs it. INDEX is the address of
a simple index (PEP 503); empty: the one of this machine's pip. The caller compares the file's sha256.
"""

import shutil
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin


class Links(HTMLParser):
    """The addresses that a page names."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if tag == "a" and name == "href" and value]


def main(index, project, filename, target):
    page = f"{(index or default_index()).rstrip('/')}/{project}/" if project else index
    links = Links()
    with urllib.request.urlopen(page, timeout=60) as answer:
        base = answer.url
        links.feed(answer.read().decode("utf-8", "replace"))
    for link in links.addresses:
        address, _ = urldefrag(urljoin(base, link))
        if unquote(address).rpartition("/")[2] == filename:
            with urllib.request.urlopen(address, timeout=60) as answer, open(target, "wb") as out:
                shutil.copyfileobj(answer, out)
            return
    sys.exit(f"{page} has no {filename}")


def default_index():
    """Return the index that pip asks: the one of its settings, otherwise its own."""
    usual = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    for words in (("-m", "pip", "config", "get", "global.index-url"), ("-c", usual)):
        asked = subprocess.run(
            (sys.executable, *words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        if asked.returncode == 0:
            return asked.stdout.decode().strip()
    return sys.exit("pip names no package index")


if __name__ == "__main__":
    main(*sys.argv[1:])
