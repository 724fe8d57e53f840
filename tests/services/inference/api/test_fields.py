"""What a request may say wrong twenty thousand times in one field is told once."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.inference.api.completions.schemas import CompletionRequest
from services.inference.api.fields import ContinuationRequest
from services.inference.api.schemas import GenerateRequest

MANY = 20_000


@pytest.mark.parametrize("value", [-1, "\ud800", None, [], ["a"], {}], ids=repr)
@pytest.mark.parametrize("request_class", [GenerateRequest, CompletionRequest])
def test_many_faults_in_one_field_are_not_told_one_by_one(request_class: type[ContinuationRequest], value: Any) -> None:
    hostile: list[Any] = [[value] * MANY, [[value]] * MANY, {str(key): value for key in range(MANY)}]
    for field in [*request_class.model_fields, "unknown"]:
        for given in hostile:
            if field == "stream_options" and isinstance(given, dict) and value is None:
                continue  # options that are null are no options
            with pytest.raises(ValidationError) as refused:
                request_class.model_validate({"prompt": "a", field: given})
            assert refused.value.error_count() <= 4, (field, type(given))
