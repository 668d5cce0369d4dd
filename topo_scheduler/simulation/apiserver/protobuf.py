"""Decode request bodies in protobuf, for the kinds that kubectl always sends in that format.

Since 1.32, typed clients of kubectl (``create namespace``, ``drain``, ``auth can-i``, …) send protobuf, though they
read JSON. Only the kinds and fields below, which kubectl sets, are supported. Anything else is rejected rather than
dropped. Field numbers are those of the ``generated.proto`` files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .objects import Json

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"

_Fields = Mapping[int, tuple[str, str]]
_META: Final = {1: ("metadata", "ObjectMeta")}
_AND_STATUS: Final = {**_META, 3: ("status", "ignored")}
_MESSAGES: Final[Mapping[str, _Fields]] = {
    "Unknown": {1: ("type", "TypeMeta"), 2: ("raw", "raw")},
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
    "ObjectMeta": {
        1: ("name", "string"), 2: ("generateName", "string"), 3: ("namespace", "string"), 5: ("uid", "string"),
        6: ("resourceVersion", "string"), 8: ("creationTimestamp", "ignored"), 11: ("labels", "map"),
        12: ("annotations", "map"),
        13: ("ownerReferences", "[OwnerReference"), 14: ("finalizers", "[string"), 17: ("managedFields", "ignored"),
    },
    "OwnerReference": {
        1: ("kind", "string"), 3: ("name", "string"), 4: ("uid", "string"), 5: ("apiVersion", "string"),
        6: ("controller", "bool"), 7: ("blockOwnerDeletion", "bool"),
    },
    "Namespace": {**_AND_STATUS, 2: ("spec", "ignored")},
    "ServiceAccount": _META,
    "ConfigMap": {**_META, 2: ("data", "map"), 3: ("binaryData", "bytesmap"), 4: ("immutable", "bool")},
    "Secret": {**_META, 2: ("data", "bytesmap"), 3: ("type", "string"), 4: ("stringData", "map")},
    "PriorityClass": {
        **_META, 2: ("value", "int"), 3: ("globalDefault", "bool"), 4: ("description", "string"),
        5: ("preemptionPolicy", "string"),
    },
    "Binding": {**_META, 2: ("target", "ObjectReference")},
    "ObjectReference": {1: ("kind", "string"), 2: ("namespace", "string"), 3: ("name", "string"), 4: ("uid", "string")},
    "Eviction": {**_META, 2: ("deleteOptions", "DeleteOptions")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"), 2: ("preconditions", "Preconditions"), 3: ("orphanDependents", "bool"),
        4: ("propagationPolicy", "string"), 5: ("dryRun", "[string"),
    },
    "Preconditions": {1: ("uid", "string"), 2: ("resourceVersion", "string")},
    "TokenRequest": {**_AND_STATUS, 2: ("spec", "TokenRequestSpec")},
    "TokenRequestSpec": {1: ("audiences", "[string"), 4: ("expirationSeconds", "int")},
    "SelfSubjectAccessReview": {**_AND_STATUS, 2: ("spec", "SelfSubjectAccessReviewSpec")},
    "SelfSubjectAccessReviewSpec": {
        1: ("resourceAttributes", "ResourceAttributes"), 2: ("nonResourceAttributes", "NonResourceAttributes"),
    },
    "ResourceAttributes": {
        1: ("namespace", "string"), 2: ("verb", "string"), 3: ("group", "string"), 4: ("version", "string"),
        5: ("resource", "string"), 6: ("subresource", "string"), 7: ("name", "string"),
    },
    "NonResourceAttributes": {1: ("path", "string"), 2: ("verb", "string")},
    "Role": {**_META, 2: ("rules", "[PolicyRule")},
    "ClusterRole": {**_META, 2: ("rules", "[PolicyRule")},
    "PolicyRule": {
        1: ("verbs", "[string"), 2: ("apiGroups", "[string"), 3: ("resources", "[string"),
        4: ("resourceNames", "[string"), 5: ("nonResourceURLs", "[string"),
    },
    "RoleBinding": {**_META, 2: ("subjects", "[Subject"), 3: ("roleRef", "RoleRef")},
    "ClusterRoleBinding": {**_META, 2: ("subjects", "[Subject"), 3: ("roleRef", "RoleRef")},
    "Subject": {1: ("kind", "string"), 2: ("apiGroup", "string"), 3: ("name", "string"), 4: ("namespace", "string")},
    "RoleRef": {1: ("apiGroup", "string"), 2: ("kind", "string"), 3: ("name", "string")},
    "Job": {**_AND_STATUS, 2: ("spec", "JobSpec")},
    "JobSpec": {
        1: ("parallelism", "int"), 2: ("completions", "int"), 6: ("template", "PodTemplateSpec"),
        7: ("backoffLimit", "int"), 9: ("completionMode", "string"), 10: ("suspend", "bool"),
    },
    "Deployment": {**_AND_STATUS, 2: ("spec", "DeploymentSpec")},
    "DeploymentSpec": {
        1: ("replicas", "int"), 2: ("selector", "LabelSelector"), 3: ("template", "PodTemplateSpec"),
        4: ("strategy", "DeploymentStrategy"),
    },
    "LabelSelector": {1: ("matchLabels", "map")},
    "DeploymentStrategy": {1: ("type", "string")},
    "PodTemplateSpec": {**_META, 2: ("spec", "PodSpec")},
    "PodSpec": {
        2: ("containers", "[Container"), 3: ("restartPolicy", "string"), 7: ("nodeSelector", "map"),
        8: ("serviceAccountName", "string"), 19: ("schedulerName", "string"), 24: ("priorityClassName", "string"),
    },
    "Container": {
        1: ("name", "string"), 2: ("image", "string"), 3: ("command", "[string"), 4: ("args", "[string"),
        6: ("ports", "[ContainerPort"), 7: ("env", "[EnvVar"), 14: ("imagePullPolicy", "string"),
    },
    "ContainerPort": {1: ("name", "string"), 3: ("containerPort", "int"), 4: ("protocol", "string")},
    "EnvVar": {1: ("name", "string"), 2: ("value", "string")},
}  # fmt: skip
"""Every message by field number: JSON name and type of the field; a bracket before the type marks a list."""


class NotUnderstoodError(Exception):
    """A kind, or a field with a value, is not in the table."""


def decode(body: bytes) -> Json:
    """Return the object in a body; raises ``ValueError`` if the body is malformed."""
    if not body.startswith(_MAGIC):
        raise ValueError("a protobuf body begins with its magic number")
    envelope = _message("Unknown", body[len(_MAGIC) :])
    kind = envelope.get("type", {}).get("kind", "")
    if kind not in _MESSAGES:
        raise NotUnderstoodError(f"{kind} in protobuf")
    return {**envelope["type"], **_message(kind, envelope.get("raw", b""))}


def _message(name: str, data: bytes) -> Json:
    fields, result = _MESSAGES[name], dict[str, Any]()
    for number, value in _read(data):
        if number not in fields:
            if value in (0, b""):
                continue  # Go also writes zero values
            raise NotUnderstoodError(f"field {number} of {name} in protobuf")
        field, kind = fields[number]
        if kind == "ignored":
            continue
        if kind.startswith("["):
            result.setdefault(field, []).append(_value(kind[1:], value))
        elif kind in ("map", "bytesmap"):
            entry = dict(_read(_bytes(value)))
            text = _value("string" if kind == "map" else "bytes", entry.get(2, b""))
            result.setdefault(field, {})[_value("string", entry.get(1, b""))] = text
        elif (decoded := _value(kind, value)) not in ("", {}):
            result[field] = decoded
    return result


def _value(kind: str, value: int | bytes) -> Any:
    match kind:
        case "int":
            number = int(value) if isinstance(value, int) else 0
            return number - (1 << 64) if number >> 63 else number
        case "bool":
            return bool(value)
        case "string":
            return _bytes(value).decode()
        case "bytes":
            return base64.b64encode(_bytes(value)).decode()
        case "raw":
            return _bytes(value)
    return _message(kind, _bytes(value))


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field has another type than its message says")
    return value


def _read(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and raw values of a message."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            length, position = _varint(data, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} is not used any more")
        if position + length > len(data):
            raise ValueError("a message ends too early")
        yield number, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number does not end")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
