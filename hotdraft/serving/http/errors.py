"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`."""

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from hotdraft.serving.messages.prompt_encoder import PromptError
from hotdraft.serving.messages.request import ParameterError

_OF_THE_BODY = {
    "missing": "The body is missing: a JSON object is needed",
    "model_attributes_type": "The body must be a JSON object, sent with Content-Type: application/json",
}
"""By pydantic's types of errors."""
_FASTAPIS_UNREADABLE = "There was an error parsing the body"
MOST_QUOTED = 1000
"""Characters of a message, or of a field's name."""
UNREADABLE = (
    "The body cannot be read as JSON: it is not UTF-8 (no Content-Encoding is taken), nested too deeply, or has a "
    "number of too many digits"
)


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    error: ErrorBody


class ApiError(Exception):
    """An error with an HTTP status. 4xx is the client's to mend, 5xx is ours."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message, param = _quotable(message), param and _quotable(param)
        super().__init__(message)
        self.status = status
        self.headers = headers
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = ErrorResponse(error=ErrorBody(message=message, type=kind, param=param, code=code))

    def response(self) -> JSONResponse:
        return JSONResponse(self.body.model_dump(), status_code=self.status, headers=self.headers)


def _quotable(text: str) -> str:
    """Messages quote what clients sent: megabytes, or half of a surrogate pair, which no answer can spell."""
    if len(text) > MOST_QUOTED:
        text = f"{text[: MOST_QUOTED // 2]} … {text[-MOST_QUOTED // 2 :]}"
    return text.encode(errors="backslashreplace").decode()


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route declares of the errors it may answer with."""
    return {status: {"model": ErrorResponse} for status in statuses}


def unknown_model(name: str, served: str) -> ApiError:
    says = f"The model `{name}` does not exist: this server has `{served}`."
    return ApiError(404, says, param="model", code="model_not_found")


def context_length_exceeded(limit: int, prompt_tokens: int, max_tokens: int, *, param: str) -> ApiError:
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {param}, {max_tokens} in the "
        f"completion). Please reduce the length of the {param} or completion.",
        param=param,
        code="context_length_exceeded",
    )


def from_validation(error: RequestValidationError) -> ApiError:
    """The first thing wrong with a request, by the field's name."""
    problem: dict[str, Any] = error.errors()[0]
    context = problem.get("ctx", {})
    if problem["type"] == "json_invalid":
        says, place = context.get("error", problem["msg"]), problem["loc"][-1]
        return ApiError(400, f"The body is not valid JSON: {says} (character {place})")
    field = _quotable(context.get("param") or ".".join(str(part) for part in problem["loc"][1:]))
    cause = context.get("error")
    message = str(cause) if isinstance(cause, ValueError) else problem["msg"]
    if not field:
        message = _OF_THE_BODY.get(problem["type"], message)
    if field and not re.search(rf"\b{re.escape(field)}\b", message):
        message = f"{field}: {message}"
    return ApiError(400, message, param=field or None)


def add_error_handlers(app: FastAPI) -> None:
    """Make every error of `app`, its framework's too, leave in OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(PromptError)
    async def prompt_error(request: Request, error: PromptError) -> JSONResponse:
        return ApiError(400, str(error), param=error.param, code=error.code).response()

    @app.exception_handler(ParameterError)
    async def parameter_error(request: Request, error: ParameterError) -> JSONResponse:
        return ApiError(400, str(error), param=error.param).response()

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return from_validation(error).response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers) if error.headers else None
        detail = UNREADABLE if error.detail == _FASTAPIS_UNREADABLE else str(error.detail)
        path = request.url.path
        if error.status_code == 404:
            detail = f"There is no {path} here: OpenAI's paths begin with /v1, and /docs has all there are."
        elif error.status_code == 405:
            headers = {"Allow": (allowed := ", ".join(_allowed_methods(request)))}
            detail = f"{path} takes {allowed}, not {request.method}."
        return ApiError(error.status_code, detail, headers=headers).response()

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        return ApiError(500, "The server had an error while processing your request.").response()


def _allowed_methods(request: Request) -> list[str]:
    """Of every route at the path: Starlette tells only those of the first."""

    def is_allowed(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT") if is_allowed(method)]
