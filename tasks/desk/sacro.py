"""Membership results in the report format of SACRO-ML 2.0.0 (`sacroml/attacks/attack.py`, `report.py`).

Output checkers of secure environments read reports of this format. The report contains the metrics of the attack that
Terrine computes; SACRO-ML's other metrics are absent. `P_HIGHER_AUC`, without which SACRO-ML would recommend every
model, is computed from the bootstrap interval of the AUC instead of SACRO-ML's normal approximation.
"""

import uuid
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

FORMAT = "2.0.0"
"""Version of SACRO-ML whose format is written."""
_NAME = "LiRA Attack"


def membership_report(result: Mapping[str, Any], statement: Mapping[str, Any], terrine: str) -> dict[str, Any]:
    """Return the content of a report.json.

    Args:
        result: Result of `tasks.auditing.membership.audit_student`.
        statement: Content of the run's privacy.json.
        terrine: Version of Terrine.
    """
    log_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:terrine:release:{statement['release_id']}"))
    rates = {f"TPR@{100 * float(fpr):g}%": rate["value"] for fpr, rate in result["members_found"].items()}
    return {
        f"{_NAME}_{log_id}": {
            "log_id": log_id,
            "metadata": {
                "sacroml_version": FORMAT,
                "generator": f"terrine {terrine}",
                "attack_name": _NAME,
                "attack_params": {"n_shadow_models": result["shadows"], "mode": "online", "unit": result["unit"]},
                "global_metrics": {
                    **{f"AUC_{end}": result["auc"][end] for end in ("low", "high")},
                    **{name: result[name] for name in ("epsilon_at_least", "epsilon_charged", "delta", "confidence")},
                },
                "target_model": f"Terrine student of run {statement['run']}",
                "target_model_params": {},
                "target_train_params": {},
            },
            "attack_experiment_logger": {
                "attack_instance_logger": {
                    "instance_0": {
                        "AUC": result["auc"]["value"],
                        "P_HIGHER_AUC": _p_value(result["auc"], result["confidence"]),
                        **rates,
                    }
                }
            },
        }
    }


def _p_value(auc: Mapping[str, float], confidence: float) -> float:
    """Return the p-value of an AUC above 0.5, given its two-sided interval at this confidence."""
    deviation = (auc["value"] - auc["low"]) / NormalDist().inv_cdf((1 + confidence) / 2)
    if deviation <= 0:
        return float(auc["value"] <= 0.5)
    return 1 - NormalDist(0.5, deviation).cdf(auc["value"])
