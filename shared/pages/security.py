"""What browsers may do with our pages."""

_POLICY = {
    "default-src": "'self'",  # no inline script or style, no other host
    "img-src": "'self' data:",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}

SECURITY_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {sources}" for name, sources in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""The headers of a page and its files."""
