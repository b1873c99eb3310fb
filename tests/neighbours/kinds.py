"""Every kind of teacher, as small as it comes, as sections of the parameters."""

from typing import Any

_PRETRAINED = {
    "backbone": {"kind": "small_cnn"},
    "pretraining": {"images": {"count": 8, "sources": {"gaussian": 1}}, "epochs": 1, "batch": 8},
}
_NETWORK = {"epochs": 1, "batch": 8}
_ROUNDS = {"kind": "averaged", "rounds": 3, "steps": 2, "learning_rate": 2.0, "batch": 8}
_RELEASED = {**_ROUNDS, "clip": 1.0, "budget_share": 0.7}

KINDS: dict[str, dict[str, Any]] = {
    "linear, ridge": {"teachers": {"kind": "linear"}},
    "linear, deformed copies": {"teachers": {"kind": "linear", "copies": 2}},
    "linear, adam": {"teachers": {"kind": "linear", "optimiser": "adam", "epochs": 3, "batch": 8}},
    "finetune": {"teachers": {"kind": "finetune", "trainable": 3, **_NETWORK}, **_PRETRAINED},
    "scratch": {"teachers": {"kind": "scratch", **_NETWORK}},
    "estimator": {
        "teachers": {
            "kind": "estimator",
            "estimator": {"name": "RandomForestClassifier", "options": {"n_estimators": 2, "bootstrap": False}},
        }
    },
    "prompt": {"teachers": {"kind": "prompt", "prompt": {"epochs": 1, "batch": 8, "together": 16}}, **_PRETRAINED},
    "averaged, private": {"teachers": _RELEASED},
    "averaged, blocks": {"teachers": {**_ROUNDS, "averaging": "blocks", "block": 2}},
    "averaged, none": {"teachers": {**_ROUNDS, "averaging": "none"}},
}
