"""What both services share: settings, errors, middleware, metrics, lifecycle and the HTTP server. No torch."""

from shared.http.app import build_app
from shared.http.body_route import BodyRoute, add_body_routes
from shared.http.concurrency import ThreadPool, cancel_on_disconnect, in_thread, wait_for_disconnect
from shared.http.errors import ApiError, ErrorEnvelope, error_envelope, error_response, error_responses, short_json
from shared.http.fields import AllowedSpecial, StrictModel
from shared.http.lifecycle import Lifecycle
from shared.http.metrics import HttpMetrics
from shared.http.request_context import add_log_fields, current_request, record_error, request_started
from shared.http.server.run import run
from shared.http.settings import ServiceSettings, SettingsError, load_settings

__all__ = [
    "AllowedSpecial",
    "ApiError",
    "BodyRoute",
    "ErrorEnvelope",
    "HttpMetrics",
    "Lifecycle",
    "ServiceSettings",
    "SettingsError",
    "StrictModel",
    "ThreadPool",
    "add_body_routes",
    "add_log_fields",
    "build_app",
    "cancel_on_disconnect",
    "current_request",
    "error_envelope",
    "error_response",
    "error_responses",
    "in_thread",
    "load_settings",
    "record_error",
    "request_started",
    "run",
    "short_json",
    "wait_for_disconnect",
]
