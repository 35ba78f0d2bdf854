"""Read `file:` URLs like those of the network, so a mirror may be a folder."""

import io
import os
import re
import stat
from pathlib import Path
from typing import Final

import requests
from requests.adapters import BaseAdapter

from envbuilder.sources.names import file_path

_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK  # a FIFO in place of a file must not block the open


class _File(io.FileIO):
    """A response's body that closes itself at its end, as urllib3's do and requests expects."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        if not data:
            self.close()
        return data


class FileAdapter(BaseAdapter):
    """Lets a requests session read `file:` URLs. A folder gives its `index.html`, as in package indexes."""

    def send(
        self, request: requests.PreparedRequest, *_args: object, **_options: object
    ) -> requests.Response:
        response = requests.Response()
        response.request = request
        response.url = request.url or ""
        path = file_path(response.url) or Path()
        path = path / "index.html" if path.is_dir() else path
        try:
            response.raw = _File(os.open(path, _OPEN))
        except OSError:
            response.raw = io.BytesIO()
            response.status_code = requests.codes.not_found
            return response
        status = os.fstat(response.raw.fileno())
        if not stat.S_ISREG(status.st_mode):
            response.raw.close()
            response.status_code = requests.codes.not_found
            return response
        response.status_code = requests.codes.ok
        response.headers["Content-Length"] = str(status.st_size)
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if part:
            with response.raw:
                response.raw.seek(int(part[1]))
                response.raw = io.BytesIO(response.raw.read(int(part[2]) - int(part[1]) + 1))
            response.status_code = requests.codes.partial_content
        response.headers["Content-Type"] = (
            "text/html" if path.suffix == ".html" else "application/octet-stream"
        )
        return response

    def close(self) -> None:
        pass
