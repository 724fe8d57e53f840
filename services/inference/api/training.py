"""`GET /training`: how the model that is served was trained."""

from fastapi import FastAPI, Response

from services.inference.api.service import InferenceService
from services.inference.training_record import TrainingRecord
from shared.http import ApiError, error_responses


def add_training_route(app: FastAPI, service: InferenceService) -> None:
    """Add /training."""

    @app.get("/training", tags=["operations"], response_model=TrainingRecord, responses=error_responses(404, 503))
    async def training() -> Response:
        """How the model was trained, from its folder's `training.json`; 404 where there is none that can be used."""
        file = service.model.training
        if file.fault:
            raise ApiError(404, file.fault, code="no_training_record")
        return Response(file.json, media_type="application/json")
