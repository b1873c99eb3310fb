"""What the service says about itself, as an OpenAPI document: routes, bodies, answers and examples.

Routes and bodies are written down here, since MLflow's own route says nothing about what it takes.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from terrine.deployment.model import StudentModel

_REFUSALS = {
    "400": "What came cannot be answered: a damaged image, a wrong shape or type, NaN, values out of range.",
    "401": "The service has a key, and none or another was shown.",
    "408": "The body did not arrive in time.",
    "413": "The body is larger than the service lets in.",
    "415": "The body is of a type that this route does not take.",
}


def service_title(about: dict[str, Any]) -> str:
    """Return the service's name: that of the run, where a statement gives it."""
    return (about.get("privacy") or {}).get("run") or "A student of Terrine"


def in_short(about: dict[str, Any]) -> dict[str, Any] | None:
    """Return what every answer carries of the privacy statement."""
    told = about.get("privacy")
    return told and {name: told[name] for name in ("epsilon", "delta", "unit", "private", "statement_sha256")}


def openapi(student: StudentModel, about: dict[str, Any], most_bytes: int) -> dict[str, Any]:
    """Return the document, JSON values. about: what GET /model returns. most_bytes: the largest body of a request."""
    names = [str(name) for name in student.class_names]
    share = 1 / len(names)
    said = _array({"type": "number"}, "the number, or mean grade, of each image: only where classes have an order")
    numbers = {} if student.scale is None else {"numbers": said}
    answer = _object(
        {
            "predictions": _array(_array({"type": "number"}, "a probability for each class"), "a row for each image"),
            "labels": _array({"type": "string"}, "the likeliest class of each image"),
            **numbers,
            "class_names": _array({"type": "string"}, "what the columns of predictions stand for"),
            "files": _array({"type": ["string", "null"]}, "the name that each image came with"),
            "refused": _array(
                _object({"place": {"type": "integer"}, "message": {"type": "string"}}),
                "files that cannot be read, by their place in the form, from 0: the other lists are without them",
            ),
            "privacy": {"type": ["object", "null"], "description": "ε, δ, unit and the statement's SHA-256"},
        }
    )
    answer["required"] = [name for name in answer["required"] if name not in numbers]
    example = {
        "predictions": [[round(share, 3) for _ in names]],
        "labels": names[:1],
        **({} if student.scale is None else {"numbers": student.scale.middles[:1].tolist()}),
        "class_names": names,
        "files": [None],
        "refused": [],
        "privacy": in_short(about),
    }
    shape = ", ".join(map(str, ["images", *student.shape]))
    inputs = {"type": "array", "items": {}, "description": f"Floats [{shape}], JSON lists in lists."}
    invocations = _object({"inputs": inputs}, f'{{"inputs": [...]}}: floats [{shape}] in [0, 1].')
    stack = {"type": "string", "format": "binary", "description": f"A .npy file, [{shape}], uint8 or floats in [0, 1]."}
    image = {"type": "string", "format": "binary", "description": "One encoded image, of any size."}
    files = _object(
        {"files": _array({"type": "string", "format": "binary"}, "image files")},
        "Any number of image files as fields of a form, as a browser or curl -F sends them. If some cannot be read, "
        "the others are answered.",
    )
    bodies = {
        "multipart/form-data": {"schema": files},
        "image/*": {"schema": image},
        "application/x-npy": {"schema": stack},
    }
    probabilities = {"predictions": answer["properties"]["predictions"]}
    paths = {
        "/images": _post(
            "images",
            "Ask about images",
            f"An image alone and the same image in company get {company(student)}.",
            _answers("Probabilities and labels, in the order of the images.", answer, example),
            bodies,
        ),
        "/invocations": _post(
            "invocations",
            "Ask as MLflow's clients do",
            "Everything that speaks to an MLflow model speaks to this route.",
            _answers(
                "Probabilities.",
                {"type": "object", "properties": probabilities},
                {"predictions": example["predictions"]},
            ),
            {"application/json": {"schema": invocations}},
        ),
        "/model": _get(
            "model",
            "What this student is",
            "Class names, shape, statistics, digests, ε and δ.",
            _json("The student.", {"type": "object"}, about),
        ),
        "/metrics": _get(
            "metrics",
            "Requests so far",
            "By route and status, for Prometheus.",
            {"description": "Counts.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        ),
    }
    for name, summary, given in (
        ("ping", "Whether the service answers", "It does."),
        ("health", "Whether the service answers", "It does."),
        ("version", "MLflow's version", "The version, as text."),
    ):
        paths[f"/{name}"] = _get(name, summary, "As MLflow's scoring server.", _json(given, {}, None))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": service_title(about),
            "version": importlib.metadata.version("terrine"),
            "description": f"Classifies images into {len(names)} classes: {', '.join(names[:20])}"
            f"{', …' if len(names) > 20 else ''}. A body may have {most_bytes / 1e6:,.0f} MB. A refusal is "
            '{"error_code": ..., "message": "a sentence"}.',
        },
        "paths": paths,
    }


def company(student: StudentModel) -> str:
    """Say whether an answer depends on what else is in a request."""
    if student.statistics == "current":
        return "different answers: images are normalised with the statistics of the whole request"
    return "one answer: nothing else in a request counts"


def _array(items: dict[str, Any], description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": description}


def _json(description: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    content = {"schema": schema} | ({} if example is None else {"example": example})
    return {"description": description, "content": {"application/json": content}}


def _answers(description: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    refusal = {"type": "object", "properties": {"error_code": {"type": "string"}, "message": {"type": "string"}}}
    refusals = {status: _json(text, refusal, None) for status, text in _REFUSALS.items()}
    return {"200": _json(description, schema, example), **refusals}


def _object(properties: dict[str, Any], description: str = "") -> dict[str, Any]:
    described = {"description": description} if description else {}
    return {"type": "object", "required": list(properties), "properties": properties, **described}


def _get(name: str, summary: str, description: str, answer: dict[str, Any]) -> dict[str, Any]:
    route = {"operationId": name, "summary": summary, "description": description, "responses": {"200": answer}}
    return {"get": route}


def _post(
    name: str, summary: str, description: str, responses: dict[str, Any], bodies: dict[str, Any]
) -> dict[str, Any]:
    route = {"operationId": name, "summary": summary, "description": description, "responses": responses}
    return {"post": {**route, "requestBody": {"required": True, "content": bodies}}}
