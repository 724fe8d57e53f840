"""Web pages: files that a browser takes as they are, and the headers under which it runs nothing else. No FastAPI."""

from shared.pages.routes import is_page_path, page_routes
from shared.pages.security import SECURITY_HEADERS, SecurityHeaders

__all__ = ["SECURITY_HEADERS", "SecurityHeaders", "is_page_path", "page_routes"]
