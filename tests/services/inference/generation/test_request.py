"""Twenty thousand faults in one field are reported once."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.inference.api.completions import CompletionRequest
from services.inference.api.generate import GenerateRequest
from services.inference.generation.request import GenerationRequest

MANY = 20_000


@pytest.mark.parametrize("value", [-1, "\ud800", None, [], ["a"], {}], ids=repr)
@pytest.mark.parametrize("request_class", [GenerateRequest, CompletionRequest])
def test_many_faults_in_one_field_are_reported_once(request_class: type[GenerationRequest], value: Any) -> None:
    hostile: list[Any] = [[value] * MANY, [[value]] * MANY, {str(key): value for key in range(MANY)}]
    for field in [*request_class.model_fields, "unknown"]:
        for given in hostile:
            if field == "stream_options" and isinstance(given, dict) and value is None:
                continue  # options that are null are no options
            with pytest.raises(ValidationError) as refused:
                request_class.model_validate({"prompt": "a", field: given})
            assert refused.value.error_count() <= 4, (field, type(given))
