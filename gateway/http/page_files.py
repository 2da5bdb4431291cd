"""The live page's files and the headers that keep it to its own host. Knows no routes."""

from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

HEADERS = {
    # No script, style, font, picture or connection but this host's; nothing inline.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # An upgraded gateway serves another page under the same names.
    "Cache-Control": "no-cache",
}


class PageFiles(StaticFiles):
    """The files of one folder; index.html stands for the folder itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response
