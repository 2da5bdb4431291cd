"""The live page's files and the headers that keep it to its own host. Knows no other route."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

INDEX = "index.html"
HEADERS = {
    # No script, style, font, picture or connection but this host's; nothing inline.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # An upgraded gateway serves another page under the same names.
    "Cache-Control": "no-cache",
}


def page_routes(folder: Path) -> list[Route]:
    """A route for each file, and / for the index.

    Not a mount at /, which would take every path and so hide that another method is wanted.
    """
    files = StaticFiles(directory=folder)

    def route(path: str, name: str) -> Route:
        async def get_file(request: Request) -> Response:
            response = await files.get_response(name, request.scope)
            response.headers.update(HEADERS)
            return response

        return Route(path, get_file, methods=["GET"])

    names = sorted(file.name for file in folder.iterdir() if file.is_file())
    return [route("/", INDEX), *(route(f"/{name}", name) for name in names)]
