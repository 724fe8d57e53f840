"""What both services share: settings, errors, limits, metrics, logging and lifecycle. No torch."""

from shared.http.app import build_app
from shared.http.body_route import BodyRoute, add_body_routes
from shared.http.cpu import CpuWorkers
from shared.http.disconnect import unless_disconnected
from shared.http.errors import ApiError, ErrorEnvelope, error_envelope, error_response, error_responses
from shared.http.fields import StrictModel, Text
from shared.http.lifecycle import Lifecycle
from shared.http.metrics import HttpMetrics
from shared.http.request_context import current_request, note, note_error, request_started
from shared.http.server.run import run
from shared.http.settings import ServiceSettings, SettingsError, load_settings

__all__ = [
    "ApiError",
    "BodyRoute",
    "CpuWorkers",
    "ErrorEnvelope",
    "HttpMetrics",
    "Lifecycle",
    "ServiceSettings",
    "SettingsError",
    "StrictModel",
    "Text",
    "add_body_routes",
    "build_app",
    "current_request",
    "error_envelope",
    "error_response",
    "error_responses",
    "load_settings",
    "note",
    "note_error",
    "request_started",
    "run",
    "unless_disconnected",
]
